//! Connection attempts in the background.

use std::{net::SocketAddr, os::unix::thread::JoinHandleExt, thread};

use softnic::{Call, When};

use crate::{
    border::{count, handle},
    program::{Fd, Kind, Outcome, Rdma, Tcp, exclusive, host, outcome},
};

/// A listener with one connection, and no capacity for another.
fn full_listener(kind: Kind) -> (Fd, Fd) {
    let listener = Fd::stream(kind);
    listener.bind(SocketAddr::new(kind.ip(), 0)).unwrap();
    // SAFETY: numbers only.
    outcome(unsafe { libc::listen(listener.0, 0) }).unwrap();
    let first = listener.dial(kind);
    (listener, first)
}

/// Waits for the end of an attempt.
fn wait_writable(fd: &Fd) {
    let mut entry = libc::pollfd {
        fd: fd.0,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one entry.
    let ready = unsafe { libc::poll(&raw mut entry, 1, 60_000) };
    assert_eq!((ready, entry.revents), (1, libc::POLLOUT));
}

/// The first call after the success of an attempt has it.
#[test]
fn connect_after_success_in_background_succeeds_once() {
    let _exclusive = exclusive();
    let of_kind = |kind| -> Vec<Outcome> {
        let listener = Fd::listener(kind);
        let client = Fd::stream(kind);
        client.set_nonblocking();
        let begun = client.connect(&listener.name());
        wait_writable(&client);
        let calls = [(); 3].map(|()| client.connect(&listener.name()));
        client.send(b"x").unwrap();
        assert_eq!(listener.accept().unwrap().recv(9).unwrap(), b"x");
        [begun].into_iter().chain(calls).collect()
    };
    let expected = [
        Err(libc::EINPROGRESS),
        Ok(0),
        Err(libc::EISCONN),
        Err(libc::EISCONN),
    ];
    for kind in [Tcp, Rdma] {
        assert_eq!(of_kind(kind), expected, "{kind:?}");
    }
}

/// An attempt that fails at once goes on by TCP, which finds no route or no host.
#[test]
fn nonblocking_connect_does_not_wait_for_tcp() {
    let _exclusive = exclusive();
    let client = Fd::stream(Rdma);
    client.set_nonblocking();
    let _failing = host().fail(Call::ResolveAddr, When::Every, libc::ENETUNREACH);
    let begun = client.connect(&Fd::listener(Rdma).name());
    assert!(
        matches!(begun, Err(libc::EINPROGRESS | libc::ENETUNREACH)),
        "{begun:?}"
    );
}

#[test]
fn connect_interrupted_by_a_signal_goes_on_in_the_background() {
    let _exclusive = exclusive();
    handle(libc::SIGUSR1, count, 0);
    let of_kind = |kind| -> [Outcome; 4] {
        let (listener, _first) = full_listener(kind);
        let client = Fd::stream(kind);
        let (fd, name) = (client.0, listener.name());
        let blocked = thread::spawn(move || {
            let len = name.len().try_into().unwrap();
            // SAFETY: the bytes of the name are readable.
            outcome(unsafe { libc::connect(fd, name.as_ptr().cast(), len) })
        });
        while !blocked.is_finished() {
            // SAFETY: the thread has not been joined.
            let sent = unsafe { libc::pthread_kill(blocked.as_pthread_t(), libc::SIGUSR1) };
            assert_eq!(sent, 0);
            thread::yield_now();
        }
        let interrupted = blocked.join().unwrap();
        client.set_nonblocking();
        let in_progress = client.connect(&listener.name());
        let _accepted = listener.accept().unwrap();
        wait_writable(&client);
        let calls = [(); 2].map(|()| client.connect(&listener.name()));
        [interrupted, in_progress, calls[0], calls[1]]
    };
    let expected = [
        Err(libc::EINTR),
        Err(libc::EALREADY),
        Ok(0),
        Err(libc::EISCONN),
    ];
    for kind in [Tcp, Rdma] {
        assert_eq!(of_kind(kind), expected, "{kind:?}");
    }
}
