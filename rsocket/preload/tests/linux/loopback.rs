//! Sockets of the library at loopback addresses, which are sockets of the kernel.

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::BorrowedFd,
};

use libc::c_int;
use rustix::net::{AddressFamily, sockopt::socket_domain};

use crate::program::{Fd, Outcome, Rdma, Tcp, exclusive, outcome};

const V4: c_int = libc::AF_INET;
const V6: c_int = libc::AF_INET6;

/// Families of sockets, with a loopback address for each.
const ADDRESSES: [(c_int, &str); 4] = [
    (V4, "127.0.0.1"),
    (V4, "127.8.0.1"),
    (V6, "::1"),
    (V6, "::ffff:127.0.0.1"),
];

fn socket(family: c_int, kind: c_int) -> Fd {
    // SAFETY: numbers only.
    let socket = Fd::of(unsafe { libc::socket(family, kind, 0) }.into());
    assert!(is_rsocket(&socket));
    socket
}

/// Whether the kernel has a local socket, as the descriptor of an rsocket is.
fn is_rsocket(fd: &Fd) -> bool {
    // SAFETY: open, and closed by the owner only.
    let fd = unsafe { BorrowedFd::borrow_raw(fd.0) };
    socket_domain(fd).unwrap() == AddressFamily::UNIX
}

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse::<IpAddr>().unwrap(), port)
}

fn listener(family: c_int, ip: &str) -> Fd {
    let listener = socket(family, libc::SOCK_STREAM);
    listener.bind(at(ip, 0)).unwrap();
    listener.listen().unwrap();
    assert!(!is_rsocket(&listener));
    listener
}

fn pass(from: &Fd, to: &Fd) {
    from.send(b"hello").unwrap();
    to.wait_readable();
    assert_eq!(to.recv(9).unwrap(), b"hello");
}

#[test]
fn streams_at_loopback_are_tcp_and_carry_data_both_ways() {
    let _exclusive = exclusive();
    for (family, ip) in ADDRESSES {
        for nonblocking in [false, true] {
            let listener = listener(family, ip);
            let client = socket(family, libc::SOCK_STREAM);
            let expected = match nonblocking {
                true => {
                    client.set_nonblocking();
                    Err(libc::EINPROGRESS)
                }
                false => Ok(0),
            };
            assert_eq!(client.connect(&listener.name()), expected, "{ip}");
            let server = listener.accept().unwrap();
            assert!(!is_rsocket(&client) && !is_rsocket(&server));
            pass(&client, &server);
            pass(&server, &client);
            assert_eq!(
                client.connect(&listener.name()).ok(),
                nonblocking.then_some(0)
            );
        }
    }
}

/// As for TCP, the socket may connect again.
#[test]
fn connect_to_loopback_without_listener_is_refused_and_repeated() {
    let _exclusive = exclusive();
    for (family, ip) in ADDRESSES {
        let free = listener(family, ip).name();
        let client = socket(family, libc::SOCK_STREAM);
        for _ in 0..2 {
            assert_eq!(client.connect(&free), Err(libc::ECONNREFUSED), "{ip}");
        }
        let listener = listener(family, ip);
        client.connect(&listener.name()).unwrap();
        pass(&client, &listener.accept().unwrap());
    }
}

/// A program without the library, and the unspecified address as that of a peer.
#[test]
fn listener_at_loopback_accepts_tcp_clients() {
    let _exclusive = exclusive();
    let listener = listener(V4, "127.0.0.1");
    let client = listener.dial(Tcp);
    pass(&listener.accept().unwrap(), &client);
    let port = u16::from_be_bytes(listener.name()[2..4].try_into().unwrap());
    let client = socket(V4, libc::SOCK_STREAM);
    client
        .connect(&interpose::encode(at("0.0.0.0", port)))
        .unwrap();
    pass(&listener.accept().unwrap(), &client);
}

#[test]
fn loopback_address_in_wrong_state_leaves_the_rsocket() {
    let _exclusive = exclusive();
    let free = listener(V4, "127.0.0.1").name();
    let rdma = Fd::listener(Rdma);
    assert_eq!(rdma.bind(at("127.0.0.1", 0)), Err(libc::EINVAL));
    assert_eq!(rdma.connect(&free), Err(libc::EISCONN));
    let client = rdma.dial(Rdma);
    assert_eq!(client.connect(&free), Err(libc::EISCONN));
    pass(&client, &rdma.accept().unwrap());
    let pending = socket(V4, libc::SOCK_STREAM);
    pending.set_nonblocking();
    assert_eq!(pending.connect(&rdma.name()), Err(libc::EINPROGRESS));
    let again: Outcome = pending.connect(&free);
    // As with TCP, the first call after a success in the background succeeds with any address.
    assert!(matches!(again, Ok(_) | Err(libc::EALREADY)));
    pass(&rdma.accept().unwrap(), &pending);
    assert!([&rdma, &client, &pending].map(is_rsocket) == [true; 3]);
}

/// Sends a datagram by each call with an address.
fn send_to(fd: &Fd, name: &[u8], call: usize) -> Outcome {
    let mut bytes = *b"hello";
    let to: *mut libc::c_void = name.as_ptr().cast_mut().cast();
    let len = name.len().try_into().unwrap();
    if call == 0 {
        let at = bytes.as_ptr().cast();
        // SAFETY: the bytes and the name are readable.
        return outcome(unsafe { libc::sendto(fd.0, at, bytes.len(), 0, to.cast(), len) });
    }
    let mut piece = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: a message is plain data.
    let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
    message.msg_hdr.msg_name = to;
    message.msg_hdr.msg_namelen = len;
    message.msg_hdr.msg_iov = &raw mut piece;
    message.msg_hdr.msg_iovlen = 1;
    match call {
        // SAFETY: the bytes and the name are readable.
        1 => outcome(unsafe { libc::sendmsg(fd.0, &raw const message.msg_hdr, 0) }),
        // SAFETY: as above, with one message.
        _ => outcome(unsafe { libc::sendmmsg(fd.0, &raw mut message, 1, 0) }),
    }
}

#[test]
fn datagram_sockets_at_loopback_are_udp() {
    let _exclusive = exclusive();
    for (family, ip) in ADDRESSES {
        let server = socket(family, libc::SOCK_DGRAM);
        server.bind(at(ip, 0)).unwrap();
        assert!(!is_rsocket(&server));
        for call in 0..3 {
            let client = socket(family, libc::SOCK_DGRAM);
            send_to(&client, &server.name(), call).unwrap();
            assert!(!is_rsocket(&client), "{ip}: {call}");
            server.wait_readable();
            assert_eq!(server.recv(9).unwrap(), b"hello");
        }
        let client = socket(family, libc::SOCK_DGRAM);
        client.connect(&server.name()).unwrap();
        assert!(!is_rsocket(&client));
        pass(&client, &server);
        server.connect(&client.name()).unwrap();
        pass(&server, &client);
    }
}
