//! Receives of no bytes, and of all bytes.

use std::{
    ptr,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
    time::Duration,
};

use libc::{MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL, c_int};

use crate::sockets::{Kind::Rdma, Kind::Tcp, Outcome, Stream, connected};

/// Asserts the same results of both kinds of sockets, and returns them.
fn same<T: std::fmt::Debug + PartialEq>(calls: impl Fn([Stream; 2]) -> T) -> T {
    let [tcp, rdma] = [Tcp, Rdma].map(|kind| calls(connected(kind)));
    assert_eq!(tcp, rdma);
    rdma
}

const AGAIN: Outcome = Err(libc::EAGAIN);

fn time_out(stream: &Stream, millis: i64) {
    let timeout = [millis / 1000, millis % 1000 * 1000]
        .map(i64::to_ne_bytes)
        .concat();
    let option = (libc::SOL_SOCKET, libc::SO_RCVTIMEO);
    stream.set(option, &timeout).unwrap();
}

#[test]
fn recv_of_no_bytes_needs_a_byte_and_read_does_not() {
    let results = same(|[client, server]| {
        let all = |stream: &Stream| {
            [0, MSG_PEEK, MSG_WAITALL]
                .map(|flags| stream.recv(0, flags))
                .into_iter()
                .chain([stream.read(0), stream.read_nothing()])
                .collect::<Vec<_>>()
        };
        time_out(&client, 20);
        let mut results = all(&client);
        results.push(client.recv(0, MSG_DONTWAIT));
        results.push(client.recv(0, MSG_DONTWAIT | MSG_PEEK));
        server.send(b"abc", 0).unwrap();
        time_out(&client, 20_000);
        results.extend(all(&client));
        results.push(client.recv(3, MSG_WAITALL));
        server.shut_down(libc::SHUT_WR).unwrap();
        results.extend(all(&client));
        let unconnected = Stream::open(client.kind, libc::AF_INET);
        results.extend(all(&unconnected));
        results
    });
    assert_eq!(results[5], AGAIN);
}

#[test]
fn wait_all_returns_a_part_at_the_end_and_after_the_timeout() {
    same(|[client, server]| {
        time_out(&client, 20);
        let mut results = Vec::new();
        for flags in [MSG_WAITALL, MSG_WAITALL | MSG_PEEK] {
            results.push(client.recv(10, flags));
        }
        server.send(b"abc", 0).unwrap();
        time_out(&client, 200);
        results.push(client.recv(10, MSG_WAITALL | MSG_PEEK));
        results.push(client.recv(10, MSG_WAITALL | MSG_PEEK | MSG_DONTWAIT));
        results.push(client.recv(3, MSG_WAITALL | MSG_PEEK));
        results.push(client.recv(10, MSG_WAITALL));
        server.send(b"abc", 0).unwrap();
        server.shut_down(libc::SHUT_WR).unwrap();
        time_out(&client, 20_000);
        for flags in [MSG_WAITALL | MSG_PEEK, MSG_WAITALL, MSG_WAITALL | MSG_PEEK] {
            results.push(client.recv(10, flags));
        }
        results
    });
}

#[test]
fn peek_of_all_waits_for_later_bytes_and_the_end() {
    let results = same(|[client, server]| {
        server.send(b"abc", 0).unwrap();
        let mut results = vec![client.recv(3, MSG_WAITALL | MSG_PEEK)];
        thread::scope(|scope| {
            let sender = scope.spawn(|| {
                // An early return would see three bytes.
                thread::sleep(Duration::from_millis(50));
                server.send(b"defghij", 0).unwrap();
            });
            results.push(client.recv(10, MSG_WAITALL | MSG_PEEK));
            sender.join().unwrap();
            let end = scope.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                server.send(b"k", 0).unwrap();
                server.shut_down(libc::SHUT_WR).unwrap();
            });
            results.push(client.recv(20, MSG_WAITALL | MSG_PEEK));
            end.join().unwrap();
        });
        results.push(client.recv(20, MSG_WAITALL));
        results
    });
    assert_eq!(results, [Ok(3), Ok(10), Ok(11), Ok(11)]);
}

/// TCP would wait for ever. Small pieces use up the sender's credits first, large ones the buffer.
#[test]
fn peek_beyond_the_receive_buffer_returns_its_contents() {
    for (piece, total) in [(1, 5000), (3000, 3_000_000), (1 << 20, 8 << 20)] {
        let [client, server] = connected(Rdma);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..total / piece {
                    assert_eq!(server.send(&vec![7; piece], 0), Ok(piece));
                }
            });
            let peeked = client.recv(total, MSG_WAITALL | MSG_PEEK).unwrap();
            assert!((1..total).contains(&peeked), "{piece}: {peeked}");
            assert_eq!(client.recv(total, MSG_WAITALL), Ok(total));
        });
    }
}

extern "C" fn ignore(_: c_int) {}

/// Calls `receive` while signals arrive.
fn interrupted(receive: impl FnOnce() -> Outcome) -> Outcome {
    // SAFETY: all zeros are a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = ignore as *const () as usize;
    // SAFETY: the handler does nothing.
    unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()) };
    let ended = AtomicBool::new(false);
    // SAFETY: no preconditions.
    let receiver = unsafe { libc::pthread_self() };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(SeqCst) {
                // SAFETY: the thread outlives this scope.
                unsafe { libc::pthread_kill(receiver, libc::SIGUSR1) };
                thread::sleep(Duration::from_millis(5));
            }
        });
        let received = receive();
        ended.store(true, SeqCst);
        received
    })
}

#[test]
fn wait_all_returns_a_part_after_a_signal() {
    let results = same(|[client, server]| {
        assert_eq!(interrupted(|| client.recv(0, 0)), Ok(0));
        let all = [MSG_WAITALL, MSG_WAITALL | MSG_PEEK];
        let mut results = all
            .map(|flags| interrupted(|| client.recv(10, flags)))
            .to_vec();
        server.send(b"abc", 0).unwrap();
        client.recv(3, MSG_WAITALL | MSG_PEEK).unwrap();
        for flags in [MSG_WAITALL | MSG_PEEK, MSG_WAITALL] {
            results.push(interrupted(|| client.recv(10, flags)));
        }
        results
    });
    let signal = Err(libc::EINTR);
    assert_eq!(results, [signal, signal, Ok(3), Ok(3)]);
}
