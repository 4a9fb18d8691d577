//! Fairness between a task with continuous work and other tasks of the same thread.

use std::{
    io::ErrorKind,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rsocket::{
    Options,
    tokio::{Datagram, Listener, Stream},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::{JoinHandle, yield_now},
    time::timeout,
};

use crate::{local, probe::ListeningProbe};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Counts the turns of a concurrent task on the same thread.
struct Turns {
    counter: Arc<AtomicU32>,
    task: JoinHandle<()>,
}

impl Turns {
    fn count() -> Self {
        let counter = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&counter);
        let task = tokio::spawn(async move {
            loop {
                counted.fetch_add(1, Relaxed);
                yield_now().await;
            }
        });
        Self { counter, task }
    }

    fn end(self) -> u32 {
        self.task.abort();
        self.counter.load(Relaxed)
    }
}

/// One-byte reads with data available, and writes with room available.
#[tokio::test]
async fn stream_task_yields_while_reads_and_writes_are_ready() {
    const BYTES: u32 = 20_000;
    let listener = Listener::bind(local()).unwrap();
    let addr = listener.local_addr().unwrap();
    let (client, server) = tokio::join!(Stream::connect(addr), listener.accept());
    let (mut client, mut server) = (client.unwrap(), server.unwrap().0);
    client.write_all(&vec![1; BYTES as usize]).await.unwrap();
    let mut peeked = vec![0; BYTES as usize];
    while server.get_ref().peek(&mut peeked).unwrap_or(0) < peeked.len() {
        yield_now().await;
    }
    let turns = Turns::count();
    for _ in 0..BYTES {
        server.read_u8().await.unwrap();
    }
    let turns = turns.end();
    assert!(turns >= BYTES / 1000, "reads: {turns} turns");
    let turns = Turns::count();
    // As many as fit without reads by the peer.
    for _ in 0..300 {
        client.write_u8(1).await.unwrap();
    }
    let turns = turns.end();
    assert!(turns >= 2, "writes: {turns} turns");
}

#[tokio::test]
async fn listener_task_yields_while_connections_are_waiting() {
    const CONNECTIONS: usize = 200;
    let listener = Options::new().backlog(256).listen(local()).unwrap();
    let addr = listener.local_addr().unwrap();
    let options = Options::new().send_buffer(4096).receive_buffer(4096);
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|_| options.connect(addr).unwrap())
        .collect();
    let listener = Listener::new(listener).unwrap();
    let turns = Turns::count();
    for _ in 0..CONNECTIONS {
        listener.accept().await.unwrap();
    }
    let turns = turns.end();
    assert!(turns >= 1, "{turns} turns");
    drop(clients);
}

#[tokio::test]
async fn datagram_task_yields_while_sends_are_ready() {
    let server = Datagram::bind(local()).unwrap();
    let client = Datagram::bind(local()).unwrap();
    client.connect(server.local_addr().unwrap()).unwrap();
    let turns = Turns::count();
    let mut buf = [0; 10];
    for _ in 0..500 {
        client.send(b"hello").await.unwrap();
        timeout(TEST_TIMEOUT, server.peek(&mut buf))
            .await
            .expect("a datagram is missing")
            .unwrap();
        server.recv(&mut buf).await.unwrap();
    }
    let turns = turns.end();
    assert!(turns >= 3, "{turns} turns");
}

/// A peer that never replies.
#[tokio::test]
async fn connect_in_task_times_out() {
    let silent = ListeningProbe::new();
    let options = Options::new().connect_timeout(Duration::from_millis(300));
    let failed = timeout(TEST_TIMEOUT, Stream::connect_with(silent.addr(), &options))
        .await
        .expect("the timeout is not heeded")
        .unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::TimedOut);
    let expected = "there was no connection within the timeout of 300ms";
    assert_eq!(failed.to_string(), expected);
    let failed = options.connect(silent.addr()).unwrap_err();
    assert_eq!(failed.to_string(), expected);
    // An established connection is not affected later. On a slow machine, a connection may take longer than the timeout.
    let listener = Listener::bind(local()).unwrap();
    let addr = listener.local_addr().unwrap();
    let until = Instant::now() + TEST_TIMEOUT;
    let mut client = loop {
        match Stream::connect_with(addr, &options).await {
            Ok(client) => break client,
            Err(failed) => assert!(Instant::now() < until, "{failed}"),
        }
    };
    let mut server = loop {
        let (server, peer) = listener.accept().await.unwrap();
        if peer == client.get_ref().local_addr().unwrap() {
            break server;
        }
    };
    tokio::time::sleep(Duration::from_millis(400)).await;
    client.write_all(b"late").await.unwrap();
    let mut late = [0; 4];
    server.read_exact(&mut late).await.unwrap();
}
