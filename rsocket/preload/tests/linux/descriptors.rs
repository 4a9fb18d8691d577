//! Calls with too many open descriptors.

use crate::program::{Fd, Limit, Rdma, Tcp, alone};

/// More descriptors than a connection needs.
const ENOUGH: usize = 12;

#[test]
fn accept_without_free_descriptor_leaves_the_connection_in_the_backlog() {
    let _alone = alone();
    for kind in [Tcp, Rdma] {
        let listener = Fd::listener(kind);
        listener.set_nonblocking();
        assert_eq!(listener.accept().unwrap_err(), libc::EAGAIN);
        let clients = [(); 2].map(|()| listener.dial(kind));
        for client in &clients {
            client.send(b"hello").unwrap();
        }
        for (index, client) in clients.iter().enumerate() {
            listener.wait_readable();
            let mut accepted = None;
            for left in 0..ENOUGH {
                let full = Limit::all_but(left);
                match listener.accept() {
                    Ok(server) => {
                        accepted.get_or_insert((left, server));
                        break;
                    }
                    Err(err) => assert_eq!(err, libc::EMFILE, "{kind:?} with {left} left"),
                }
                assert_eq!(listener.events(), libc::POLLIN, "{kind:?} with {left} left");
                drop(full);
            }
            let (left, server) = accepted.expect("no connection is left");
            assert!(
                left > 0 && (kind == Rdma || left == 1),
                "{kind:?} {index}: {left}"
            );
            assert_eq!(server.recv(9).unwrap(), b"hello");
            server.send(b"welcome").unwrap();
            assert_eq!(client.recv(9).unwrap(), b"welcome");
        }
        // An empty backlog, without and with a free descriptor.
        let full = Limit::all_but(0);
        assert_eq!(listener.accept().unwrap_err(), libc::EMFILE, "{kind:?}");
        drop(full);
        assert_eq!(listener.accept().unwrap_err(), libc::EAGAIN, "{kind:?}");
    }
}

/// Neither a socket of the other kind, nor the descriptor of another socket.
#[test]
fn socket_without_free_descriptor_fails_and_changes_nothing() {
    let _alone = alone();
    let listener = Fd::listener(Rdma);
    let client = listener.dial(Rdma);
    let server = listener.accept().unwrap();
    let mut left = 0;
    let made = loop {
        let full = Limit::all_but(left);
        // SAFETY: numbers only.
        let made = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
        let error = std::io::Error::last_os_error().raw_os_error();
        if made >= 0 {
            break Fd(made);
        }
        drop(full);
        assert_eq!(error, Some(libc::EMFILE), "{left} left");
        left += 1;
        assert!(left < ENOUGH);
    };
    made.connect(&listener.name()).unwrap();
    client.send(b"x").unwrap();
    assert_eq!(server.recv(9).unwrap(), b"x");
}
