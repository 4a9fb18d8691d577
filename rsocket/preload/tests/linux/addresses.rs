//! Addresses of all families and lengths.

use std::{io, ptr};

use libc::{c_int, sockaddr, socklen_t};

use crate::program::{Fd, Kind, Outcome, Rdma, Tcp, exclusive, outcome};

/// Lengths around those of addresses.
const LENGTHS: [socklen_t; 13] = [0, 1, 2, 8, 15, 16, 23, 24, 27, 28, 128, 129, u32::MAX];

const FAMILIES: [c_int; 5] = [
    libc::AF_UNSPEC,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_UNIX,
    99,
];

/// Loopback addresses have port 1, which nothing listens at; the other ones port 0.
fn address(family: c_int, is_loopback: bool) -> [u8; 128] {
    let mut bytes = [0; 128];
    bytes[..2].copy_from_slice(&u16::try_from(family).unwrap().to_ne_bytes());
    if is_loopback {
        bytes[3] = 1;
        match family {
            libc::AF_INET6 => bytes[23] = 1,
            _ => bytes[4..8].copy_from_slice(&[127, 0, 0, 1]),
        }
    }
    bytes
}

type Call = unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;

fn result(call: Call, kind: Kind, domain: c_int, at: *const u8, len: socklen_t) -> Outcome {
    let fd = Fd::stream_of(kind, domain);
    // SAFETY: the bytes are readable, or the kernel refuses the length before it reads.
    outcome(unsafe { call(fd.0, at.cast(), len) })
}

/// Each call has the result of TCP, for all families and lengths.
fn compare(call: Call, is_loopback: bool) {
    let _exclusive = exclusive();
    for domain in [libc::AF_INET, libc::AF_INET6] {
        for family in FAMILIES {
            let bytes = address(family, is_loopback);
            for len in LENGTHS {
                for at in [bytes.as_ptr(), ptr::null()] {
                    let expected = result(call, Tcp, domain, at, len);
                    assert_eq!(
                        result(call, Rdma, domain, at, len),
                        expected,
                        "domain {domain}, family {family}, {len} bytes at {at:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn bind_accepts_the_addresses_that_tcp_accepts() {
    compare(libc::bind, false);
}

#[test]
fn connect_refuses_the_addresses_that_tcp_refuses() {
    compare(libc::connect, true);
}

/// As Open MPI binds its sockets.
#[test]
fn socket_bound_with_the_unspecified_family_stays_an_rsocket() {
    let _exclusive = exclusive();
    let listener = Fd::stream(Rdma);
    let bytes = address(libc::AF_UNSPEC, false);
    // SAFETY: the bytes are readable.
    let bound = unsafe { libc::bind(listener.0, bytes.as_ptr().cast(), 16) };
    assert_eq!(bound, 0, "{}", io::Error::last_os_error());
    listener.listen().unwrap();
    let mut name = listener.name();
    name[4..8].copy_from_slice(&[10, 9, 0, 1]);
    let client = Fd::stream(Rdma);
    client.connect(&name).unwrap();
    let server = listener.accept().unwrap();
    client.send(b"by RDMA").unwrap();
    assert_eq!(server.recv(9).unwrap(), b"by RDMA");
}
