//! Streams after their end.

use crate::program::{Outcome, Rdma, Tcp, connected, exclusive, outcome};

/// Programs, such as Python's `ssl`, recognise a closed connection by the missing peer.
#[test]
fn reset_stream_has_no_peer() {
    let _exclusive = exclusive();
    let of_kind = |kind| {
        let [client, server] = connected(kind);
        let peer = || {
            let (mut name, mut len) = ([0_u8; 128], 128);
            let at = name.as_mut_ptr().cast();
            // SAFETY: `len` bytes are writable.
            outcome(unsafe { libc::getpeername(server.0, at, &raw mut len) })
        };
        let before = peer();
        client.send(b"abc").unwrap();
        server.wait_readable();
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        let (level, option) = (libc::SOL_SOCKET, libc::SO_LINGER);
        let (at, len) = ((&raw const linger).cast(), size_of_val(&linger));
        let len = len.try_into().unwrap();
        // SAFETY: a valid value.
        outcome(unsafe { libc::setsockopt(client.0, level, option, at, len) }).unwrap();
        drop(client);
        while server.events() & libc::POLLHUP == 0 {
            std::thread::yield_now();
        }
        let data = server.recv(9);
        let after: [Outcome; 2] = [peer(), server.recv(9).map(|bytes| bytes.len())];
        (before, data, after)
    };
    assert_eq!(of_kind(Tcp), of_kind(Rdma));
}
