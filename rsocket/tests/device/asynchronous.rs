//! Streams in tasks.

use std::time::Duration;

use rsocket::{AsyncListener, AsyncStream};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::local;

const PATIENCE: Duration = Duration::from_secs(30);

async fn pair() -> (AsyncStream, AsyncStream) {
    let listener = AsyncListener::bind(local()).unwrap();
    let addr = listener.local_addr();
    let (client, server) = tokio::join!(AsyncStream::connect(addr), listener.accept());
    (client.unwrap(), server.unwrap().0)
}

#[tokio::test]
async fn a_task_waits_for_what_another_sends() {
    let (mut client, mut server) = pair().await;
    let echo = tokio::spawn(async move {
        let mut buf = [0; 1000];
        loop {
            let len = server.read(&mut buf).await.unwrap();
            if len == 0 {
                return;
            }
            server.write_all(&buf[..len]).await.unwrap();
        }
    });
    for round in 0..200_u8 {
        let sent = vec![round; usize::from(round) + 1];
        client.write_all(&sent).await.unwrap();
        let mut back = vec![0; sent.len()];
        timeout(PATIENCE, client.read_exact(&mut back))
            .await
            .expect("an answer was not noticed")
            .unwrap();
        assert_eq!(back, sent);
    }
    client.shutdown().await.unwrap();
    timeout(PATIENCE, echo)
        .await
        .expect("the end was not noticed")
        .unwrap();
}

/// The two halves are woken each, though one of them may handle the other's completions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_halves_go_on_in_tasks_of_their_own() {
    const LEN: usize = 3 << 20;
    let (client, server) = pair().await;
    let mut tasks = vec![];
    for stream in [client, server] {
        let (mut reader, mut writer) = tokio::io::split(stream);
        tasks.push(tokio::spawn(async move {
            let chunk = [7; 5000];
            let mut left = LEN;
            while left > 0 {
                let len = left.min(chunk.len());
                writer.write_all(&chunk[..len]).await.unwrap();
                left -= len;
            }
        }));
        tasks.push(tokio::spawn(async move {
            let mut received = 0;
            let mut buf = vec![0; 70_000];
            while received < LEN {
                let len = reader.read(&mut buf).await.unwrap();
                assert!(buf[..len].iter().all(|&byte| byte == 7) && len > 0);
                received += len;
            }
        }));
    }
    for task in tasks {
        timeout(PATIENCE, task)
            .await
            .expect("a half is stuck")
            .unwrap();
    }
}

#[tokio::test]
async fn a_future_that_is_dropped_loses_nothing() {
    let (mut client, mut server) = pair().await;
    let brief = Duration::from_millis(5);
    for _ in 0..20 {
        let mut buf = [0; 4];
        let waited = timeout(brief, client.read(&mut buf)).await;
        assert!(waited.is_err(), "nothing has been sent yet");
    }
    server.write_all(b"late").await.unwrap();
    let mut buf = [0; 4];
    client.read_exact(&mut buf).await.unwrap();
    assert_eq!(&buf, b"late");

    // An attempt to connect that is given up in the middle harms nobody.
    let listener = AsyncListener::bind(local()).unwrap();
    let addr = listener.local_addr();
    for _ in 0..5 {
        drop(timeout(Duration::from_micros(300), AsyncStream::connect(addr)).await);
    }
    let (client, server) = tokio::join!(AsyncStream::connect(addr), listener.accept());
    let (mut client, _) = (client.unwrap(), server.unwrap());
    client.write_all(b"!").await.unwrap();
}
