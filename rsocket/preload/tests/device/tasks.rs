//! Unchanged programs based on tokio and mio: this test program, run again with the library.

use std::{
    collections::HashMap,
    env,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
    thread,
};

use mio::{Events, Interest, Poll, Token};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{LEAST, Preload, address, packets};

/// Concurrent connections, each moving a megabyte in both directions in total.
const CONNECTIONS: u8 = 5;
const SIZE: usize = 200_000;

/// Set in the process of the program.
const ROLE: &str = "PRELOADED_PROGRAM";

fn any_port() -> SocketAddr {
    SocketAddr::new(address().parse().unwrap(), 0)
}

/// Runs a test of this program with the library. Returns the number of packets sent.
fn run(test: &str) -> u64 {
    let before = packets();
    let ran = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, "1")
        .env("LD_PRELOAD", Preload::Ours.library().unwrap())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{test}: {}: {errors}", ran.status);
    let output = String::from_utf8_lossy(&ran.stdout);
    assert!(output.contains("all is well"), "{output}");
    packets() - before
}

async fn tokio_client(server: SocketAddr, seed: u8) {
    let client = tokio::net::TcpStream::connect(server).await.unwrap();
    let (mut reader, mut writer) = client.into_split();
    let sent = tokio::spawn(async move {
        writer.write_all(&vec![seed; SIZE]).await.unwrap();
        writer.shutdown().await.unwrap();
    });
    let mut back = Vec::new();
    reader.read_to_end(&mut back).await.unwrap();
    assert!(back.len() == SIZE && back.iter().all(|byte| *byte == seed));
    sent.await.unwrap();
}

async fn tokio_program() {
    let listener = tokio::net::TcpListener::bind(any_port()).await.unwrap();
    let server = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut peer, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut reader, mut writer) = peer.split();
                tokio::io::copy(&mut reader, &mut writer).await.unwrap();
            });
        }
    });
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|seed| tokio::spawn(tokio_client(server, seed)))
        .collect();
    for client in clients {
        client.await.unwrap();
    }
}

#[test]
fn tokio_program_runs_over_rdma() {
    if env::var_os(ROLE).is_none() {
        let packets = run("tasks::tokio_program_runs_over_rdma");
        assert!(packets >= LEAST, "{packets} packets");
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_io()
        .build()
        .unwrap();
    runtime.block_on(tokio_program());
    println!("all is well");
}

/// State of a peer in a server like mio's examples.
struct Peer {
    stream: mio::net::TcpStream,
    waiting: Vec<u8>,
    ended: bool,
}

impl Peer {
    /// Reads and writes until both would block. Returns whether the peer has disconnected.
    fn serve(&mut self) -> bool {
        let mut piece = [0; 5000];
        while !self.ended {
            match self.stream.read(&mut piece) {
                Ok(0) => self.ended = true,
                Ok(len) => self.waiting.extend_from_slice(&piece[..len]),
                Err(err) if err.kind() == ErrorKind::WouldBlock => break,
                Err(err) => panic!("{err}"),
            }
        }
        while !self.waiting.is_empty() {
            match self.stream.write(&self.waiting) {
                Ok(len) => drop(self.waiting.drain(..len)),
                Err(err) if err.kind() == ErrorKind::WouldBlock => break,
                Err(err) => panic!("{err}"),
            }
        }
        self.ended && self.waiting.is_empty()
    }
}

fn mio_server(mut listener: mio::net::TcpListener) {
    const LISTENER: Token = Token(usize::MAX);
    let mut poll = Poll::new().unwrap();
    let registry = poll.registry().try_clone().unwrap();
    registry
        .register(&mut listener, LISTENER, Interest::READABLE)
        .unwrap();
    let mut events = Events::with_capacity(4);
    let mut peers = HashMap::new();
    let mut served = 0;
    while served < CONNECTIONS {
        poll.poll(&mut events, None).unwrap();
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((mut stream, _)) = listener.accept() {
                    let token = Token(peers.len() + usize::from(served));
                    let both = Interest::READABLE | Interest::WRITABLE;
                    registry.register(&mut stream, token, both).unwrap();
                    let peer = Peer {
                        stream,
                        waiting: Vec::new(),
                        ended: false,
                    };
                    peers.insert(token, peer);
                }
            } else if peers.get_mut(&event.token()).is_some_and(Peer::serve) {
                peers.remove(&event.token());
                served += 1;
            }
        }
    }
}

fn std_client(server: SocketAddr, seed: u8) {
    let mut client = TcpStream::connect(server).unwrap();
    let mut writer = client.try_clone().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            writer.write_all(&vec![seed; SIZE]).unwrap();
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut back = Vec::new();
        client.read_to_end(&mut back).unwrap();
        assert!(back.len() == SIZE && back.iter().all(|byte| *byte == seed));
    });
}

#[test]
fn mio_program_runs_over_rdma() {
    if env::var_os(ROLE).is_none() {
        let packets = run("tasks::mio_program_runs_over_rdma");
        assert!(packets >= LEAST, "{packets} packets");
        return;
    }
    let listener = mio::net::TcpListener::bind(any_port()).unwrap();
    let server = listener.local_addr().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| mio_server(listener));
        for seed in 0..CONNECTIONS {
            scope.spawn(move || std_client(server, seed));
        }
    });
    println!("all is well");
}
