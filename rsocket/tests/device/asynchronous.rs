//! Streams and datagrams in asynchronous tasks.

use std::{
    io::{ErrorKind, IoSliceMut},
    net::Shutdown,
    sync::Arc,
    time::Duration,
};

use rsocket::{
    Family, RecvFlags, Socket,
    tokio::{Datagram, Listener, Stream},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::{local, local_v6};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

async fn pair() -> (Stream, Stream) {
    let listener = Listener::bind(local()).unwrap();
    let addr = listener.local_addr().unwrap();
    let (client, server) = tokio::join!(Stream::connect(addr), listener.accept());
    (client.unwrap(), server.unwrap().0)
}

#[tokio::test]
async fn async_read_waits_for_write_of_another_task() {
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
        timeout(TEST_TIMEOUT, client.read_exact(&mut back))
            .await
            .expect("an answer was not noticed")
            .unwrap();
        assert_eq!(back, sent);
    }
    let stats = client.stats();
    assert_eq!((stats.bytes_sent, stats.bytes_received), (20_100, 20_100));
    client.shutdown().await.unwrap();
    timeout(TEST_TIMEOUT, echo)
        .await
        .expect("the end was not noticed")
        .unwrap();
}

/// Both halves are woken, although one half may process completions of the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn async_stream_split_into_two_tasks_transfers() {
    const LEN: usize = 3 << 20;
    let (client, server) = pair().await;
    let mut tasks = vec![];
    for stream in [client, server] {
        let (mut reader, mut writer) = tokio::io::split(stream);
        tasks.push(tokio::spawn(async move {
            let chunk = [7; 5000];
            let mut remaining = LEN;
            while remaining > 0 {
                let len = remaining.min(chunk.len());
                writer.write_all(&chunk[..len]).await.unwrap();
                remaining -= len;
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
        timeout(TEST_TIMEOUT, task)
            .await
            .expect("a half is stuck")
            .unwrap();
    }
}

#[tokio::test]
async fn async_read_cancelled_loses_no_data() {
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

    // A connection attempt cancelled midway has no effect on others.
    let listener = Listener::bind(local()).unwrap();
    let addr = listener.local_addr().unwrap();
    for _ in 0..5 {
        drop(timeout(Duration::from_micros(300), Stream::connect(addr)).await);
    }
    let (client, server) = tokio::join!(Stream::connect(addr), listener.accept());
    let (mut client, _server) = (client.unwrap(), server.unwrap());
    client.write_all(b"!").await.unwrap();
}

#[tokio::test]
async fn async_datagrams_between_tasks_round_trip() {
    for any in [local(), local_v6()] {
        let server = Datagram::bind(any).unwrap();
        let client = Datagram::bind(any).unwrap();
        client.connect(server.local_addr().unwrap()).unwrap();
        assert_eq!(client.peer_addr().unwrap(), server.local_addr().unwrap());
        assert_eq!(
            server.peer_addr().unwrap_err().kind(),
            ErrorKind::NotConnected
        );
        let expected = client.local_addr().unwrap();
        let echo = tokio::spawn(async move {
            let mut buf = [0; 2000];
            loop {
                let (len, from) = match server.recv_from(&mut buf).await {
                    Err(err) => break err.kind(),
                    Ok(received) => received,
                };
                assert_eq!(from, expected);
                if len == 0 {
                    // After a shutdown of reading, queued datagrams still arrive, then the end.
                    server.get_ref().shutdown(Shutdown::Read).unwrap();
                    continue;
                }
                assert_eq!(server.send_to(&buf[..len], from).await.unwrap(), len);
            }
        });
        // The first datagrams are sent over UDP.
        for round in 1..200_u8 {
            let sent = vec![round; usize::from(round) * 5];
            client.send(&sent).await.unwrap();
            let mut back = vec![0; 2000];
            let mut bufs = [IoSliceMut::new(&mut back[..3])];
            let peeked = client.recv_msg(&mut bufs, RecvFlags::PEEK);
            let peeked = timeout(TEST_TIMEOUT, peeked)
                .await
                .expect("an answer was not noticed")
                .unwrap();
            assert_eq!((peeked.len, peeked.full_len), (3, sent.len()));
            let source = peeked.source.unwrap();
            assert_eq!(client.peek(&mut back[..2]).await.unwrap(), 2);
            let peeked = client.peek_from(&mut back[..4]).await.unwrap();
            assert_eq!(peeked, (4, source));
            assert_eq!(back[..4], [round; 4]);
            let len = client.recv(&mut back).await.unwrap();
            assert_eq!(back[..len], sent);
        }
        client.send(b"").await.unwrap();
        let end = timeout(TEST_TIMEOUT, echo)
            .await
            .expect("the end was missed");
        assert_eq!(end.unwrap(), ErrorKind::UnexpectedEof);
    }
}

/// All tasks sharing a socket are woken, although one task may take the event of another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn async_recv_by_several_tasks_gets_one_datagram_each() {
    const TASKS: u8 = 20;
    let server = Arc::new(Datagram::bind(local()).unwrap());
    let client = Datagram::bind(local()).unwrap();
    client.connect(server.local_addr().unwrap()).unwrap();
    for _ in 0..20 {
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let server = Arc::clone(&server);
                tokio::spawn(async move {
                    let mut buf = [0];
                    assert_eq!(server.recv(&mut buf).await.unwrap(), 1);
                    buf[0]
                })
            })
            .collect();
        // Some receives start waiting and time out.
        let mut buf = [0];
        for _ in 0..3 {
            let waited = timeout(Duration::from_millis(1), server.recv(&mut buf)).await;
            assert!(waited.is_err(), "nothing has been sent yet");
        }
        for number in 0..TASKS {
            client.send(&[number]).await.unwrap();
        }
        let mut got = vec![];
        for task in tasks {
            let number = timeout(TEST_TIMEOUT, task)
                .await
                .expect("a task is not woken");
            got.push(number.unwrap());
        }
        got.sort_unstable();
        assert!(got.into_iter().eq(0..TASKS));
    }
}

/// Datagrams beyond the queues and UDP's buffer wait for room.
#[tokio::test]
async fn async_send_without_room_waits() {
    let server = Datagram::bind(local()).unwrap();
    let client = Datagram::bind(local()).unwrap();
    let bytes = [7; 1000];
    for _ in 0..1000 {
        let sent = client.send_to(&bytes, server.local_addr().unwrap());
        let sent = timeout(TEST_TIMEOUT, sent).await.expect("there is no room");
        assert_eq!(sent.unwrap(), bytes.len());
    }
    let mut buf = [0; 1000];
    let (len, from) = server.recv_from(&mut buf).await.unwrap();
    assert_eq!((len, from), (bytes.len(), client.local_addr().unwrap()));
}

#[tokio::test]
async fn async_datagram_of_stream_socket_is_refused() {
    let stream = Socket::new(Family::V4).unwrap();
    let refused = Datagram::new(stream).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    let unbound = Datagram::new(Socket::datagram(Family::V4).unwrap()).unwrap();
    let receive_error = unbound.recv(&mut [0]).await.unwrap_err();
    assert_eq!(receive_error.kind(), ErrorKind::InvalidInput);
    let send_error = unbound.send(b"x").await.unwrap_err();
    assert_eq!(rsocket::errno(&send_error), 89);
    assert!(unbound.into_inner().is_nonblocking());
}

/// Number of open descriptors.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Neither a stream removed from the runtime nor a dropped clone leaves a watcher behind.
#[tokio::test]
async fn async_stream_converted_back_leaks_no_descriptor() {
    let (client, mut server) = pair().await;
    let mut stream = client.into_inner();
    let before = descriptors();
    // Streams of earlier tests may close their descriptors meanwhile, but not as many as ten leaks.
    for _ in 0..10 {
        let unwatched = descriptors();
        let mut watched = Stream::new(stream).unwrap();
        assert!(
            descriptors() <= unwatched,
            "it has no descriptor of its own"
        );
        // A read waits and times out.
        let mut buf = [0];
        let read = timeout(Duration::from_millis(20), watched.read(&mut buf));
        assert!(read.await.is_err());
        stream = watched.into_inner();
        drop(Stream::new(stream.try_clone().unwrap()).unwrap());
    }
    let after = descriptors();
    assert!(after <= before, "{after} descriptors after {before}");
    // The stream still works in blocking and asynchronous mode.
    stream.set_nonblocking(false);
    std::io::Write::write_all(&mut stream, b"x").unwrap();
    let mut client = Stream::new(stream).unwrap();
    server.read_exact(&mut [0]).await.unwrap();
    server.write_all(b"y").await.unwrap();
    let mut buf = [0];
    let read = timeout(TEST_TIMEOUT, client.read_exact(&mut buf));
    read.await.expect("it is not woken").unwrap();
}

/// Number of pairs of streams whose descriptors are counted.
const PAIRS: usize = 10;

#[tokio::test]
async fn async_stream_has_one_descriptor() {
    // The engine has descriptors of its own, created with the first stream.
    let (first, _first_server) = pair().await;
    let max = 2 * PAIRS;
    let mut added = usize::MAX;
    // On softnic, other tests of this process open and close descriptors meanwhile.
    for _ in 0..10 {
        let before = descriptors();
        let mut pairs = Vec::new();
        for _ in 0..PAIRS {
            pairs.push(pair().await);
        }
        added = added.min(descriptors().saturating_sub(before));
        if added <= max {
            break;
        }
    }
    assert!(added <= max, "{added} descriptors for {PAIRS} pairs");
    // Two runtimes' handles of one stream are watched independently.
    let stream = first.into_inner();
    let mut handles = [(); 2].map(|()| Stream::new(stream.try_clone().unwrap()).unwrap());
    for handle in &mut handles {
        let mut buf = [0];
        let read = timeout(Duration::from_millis(20), handle.read(&mut buf));
        assert!(read.await.is_err());
    }
}
