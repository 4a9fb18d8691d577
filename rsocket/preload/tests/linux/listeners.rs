//! Listeners after a shutdown.

use std::{net::SocketAddr, sync::mpsc, thread};

use crate::program::{Epoll, Fd, Outcome, Rdma, Tcp, exclusive, outcome};

#[test]
fn listener_after_shutdown_listens_again() {
    let _exclusive = exclusive();
    let ends = [libc::SHUT_RD, libc::SHUT_WR, libc::SHUT_RDWR];
    for how in ends {
        let of_kind = |kind| {
            let listener = Fd::listener(kind);
            listener.set_nonblocking();
            let waiting = listener.dial(kind);
            listener.wait_readable();
            let ended = listener.shut_down(how);
            let now: [Outcome; 2] = [ended, listener.accept().map(|_| 0)];
            let events = listener.events() & (libc::POLLHUP | libc::POLLIN);
            // The connections of the backlog end.
            waiting.wait_readable();
            let end = waiting.recv(1).map(|bytes| bytes.len()).unwrap_or(0);
            let again = [listener.listen(), listener.accept().map(|_| 0)];
            let client = listener.dial(kind);
            listener.wait_readable();
            let server = listener.accept().unwrap();
            client.send(b"x").unwrap();
            assert_eq!(server.recv(9).unwrap(), b"x");
            (now, events, end, again)
        };
        assert_eq!(of_kind(Tcp), of_kind(Rdma), "{how}");
    }
}

#[test]
fn listener_after_shutdown_keeps_its_address() {
    let _exclusive = exclusive();
    let other = Fd::listener(Rdma);
    let listener = Fd::listener(Rdma);
    let name = listener.name();
    for _ in 0..3 {
        listener.shut_down(libc::SHUT_RDWR).unwrap();
        assert_eq!(listener.name(), name);
        let any: SocketAddr = ([10, 9, 0, 1], 0).into();
        assert_eq!(listener.bind(any), Err(libc::EINVAL));
        listener.listen().unwrap();
        assert_eq!(listener.name(), name);
    }
    // A former listener may connect.
    listener.shut_down(libc::SHUT_RDWR).unwrap();
    listener.connect(&other.name()).unwrap();
    let server = other.accept().unwrap();
    listener.send(b"x").unwrap();
    assert_eq!(server.recv(9).unwrap(), b"x");
}

/// More clients at once than the backlog of `Fd::listen` has places, and than one address may have half-open.
#[test]
fn many_clients_at_once_connect() {
    let _exclusive = exclusive();
    let listener = Fd::listener(Rdma);
    for _ in 0..2 {
        let clients = [(); 60].map(|()| {
            let client = Fd::stream(Rdma);
            client.set_nonblocking();
            assert_eq!(client.connect(&listener.name()), Err(libc::EINPROGRESS));
            client
        });
        let servers = [(); 60].map(|()| listener.accept().unwrap());
        for server in &servers {
            server.send(b"hello").unwrap();
        }
        for client in &clients {
            client.wait_readable();
            assert_eq!(client.recv(9).unwrap(), b"hello");
        }
    }
}

/// As many as a backlog of 128 has places for, with the requests that wait for one. Serving them may take longer than
/// the age at which a half-open connection may be displaced.
#[test]
fn connections_of_a_burst_stay_connected() {
    let _exclusive = exclusive();
    let listener = Fd::stream(Rdma);
    listener.bind(([10, 9, 0, 1], 0).into()).unwrap();
    // SAFETY: numbers only.
    outcome(unsafe { libc::listen(listener.0, 128) }).unwrap();
    let clients = [(); 220].map(|()| {
        let client = Fd::stream(Rdma);
        client.set_nonblocking();
        assert_eq!(client.connect(&listener.name()), Err(libc::EINPROGRESS));
        client
    });
    let servers = [(); 220].map(|()| {
        listener.wait_readable();
        listener.accept().unwrap()
    });
    for server in &servers {
        server.send(b"hello").unwrap();
    }
    for client in &clients {
        client.wait_readable();
        assert_eq!(client.recv(9), Ok(b"hello".to_vec()));
    }
}

/// In an `epoll` instance, the end of a listener is an event.
#[test]
fn watched_listener_after_shutdown_listens_again() {
    let _exclusive = exclusive();
    for kind in [Tcp, Rdma] {
        let listener = Fd::listener(kind);
        let set = Epoll::new();
        set.add(&listener, libc::EPOLLIN | libc::EPOLLRDHUP);
        for _ in 0..3 {
            assert_eq!(set.events(0), 0);
            listener.shut_down(libc::SHUT_RDWR).unwrap();
            assert_ne!(set.events(10_000), 0);
            assert_eq!(listener.accept().unwrap_err(), libc::EINVAL);
            listener.listen().unwrap();
            assert_eq!(set.events(0), 0, "{kind:?}");
            let client = listener.dial(kind);
            assert_eq!(set.events(10_000), libc::EPOLLIN.cast_unsigned());
            let server = listener.accept().unwrap();
            client.send(b"x").unwrap();
            assert_eq!(server.recv(9).unwrap(), b"x");
        }
    }
}

/// The address is free for the next `listen`, although another thread is inside `accept`.
#[test]
fn blocked_accept_ends_with_the_shutdown_and_the_listener_listens_again() {
    let _exclusive = exclusive();
    for kind in [Tcp, Rdma] {
        let listener = Fd::listener(kind);
        let (sender, accepted) = mpsc::channel();
        thread::scope(|scope| {
            let accepting = scope.spawn(|| {
                let first = listener.accept().unwrap();
                sender.send(()).unwrap();
                (first, listener.accept().map(drop))
            });
            let _client = listener.dial(kind);
            accepted.recv().unwrap();
            listener.shut_down(libc::SHUT_RDWR).unwrap();
            listener.listen().unwrap();
            // Either the end of the former listener, or a connection of the present one.
            let next = listener.dial(kind);
            let (_first, ended) = accepting.join().unwrap();
            if ended == Err(libc::EINVAL) {
                let server = listener.accept().unwrap();
                next.send(b"x").unwrap();
                assert_eq!(server.recv(9).unwrap(), b"x");
            }
        });
    }
}
