//! Options and flags of sockets that become TCP sockets.

use std::os::fd::BorrowedFd;

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, c_int};
use rustix::net::{AddressFamily, sockopt::socket_domain};

use crate::program::{Fd, Outcome, exclusive, outcome};

/// Options with a number as the value.
const NUMBERS: [(c_int, c_int, c_int); 17] = [
    (SOL_SOCKET, libc::SO_REUSEADDR, 1),
    (SOL_SOCKET, libc::SO_REUSEPORT, 1),
    (SOL_SOCKET, libc::SO_RCVBUF, 50_000),
    (SOL_SOCKET, libc::SO_SNDBUF, 60_000),
    (SOL_SOCKET, libc::SO_KEEPALIVE, 1),
    (SOL_SOCKET, libc::SO_OOBINLINE, 1),
    (SOL_SOCKET, libc::SO_PRIORITY, 3),
    (IPPROTO_TCP, libc::TCP_NODELAY, 1),
    (IPPROTO_TCP, libc::TCP_KEEPIDLE, 70),
    (IPPROTO_TCP, libc::TCP_KEEPINTVL, 8),
    (IPPROTO_TCP, libc::TCP_KEEPCNT, 5),
    (IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 9000),
    (IPPROTO_TCP, libc::TCP_SYNCNT, 2),
    (IPPROTO_TCP, libc::TCP_CORK, 1),
    (IPPROTO_IP, libc::IP_TTL, 33),
    (IPPROTO_IP, libc::IP_TOS, 0x10),
    (IPPROTO_IP, libc::IP_FREEBIND, 1),
];

fn set(fd: &Fd, level: c_int, name: c_int, value: &[u8]) -> Outcome {
    let len = value.len().try_into().unwrap();
    // SAFETY: `len` bytes are readable.
    outcome(unsafe { libc::setsockopt(fd.0, level, name, value.as_ptr().cast(), len) })
}

fn get(fd: &Fd, level: c_int, name: c_int) -> Vec<u8> {
    let (mut value, mut len) = (vec![0; 64], 64);
    let at = value.as_mut_ptr().cast();
    // SAFETY: `len` bytes are writable.
    let got = unsafe { libc::getsockopt(fd.0, level, name, at, &raw mut len) };
    assert_eq!(outcome(got), Ok(0), "{level} {name}");
    value.truncate(len as usize);
    value
}

/// All values of the options, set by the program, and flags.
fn settings(fd: &Fd) -> Vec<Vec<u8>> {
    let times = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO, libc::SO_LINGER];
    let numbers = NUMBERS.map(|(level, name, _)| (level, name));
    let all = numbers
        .into_iter()
        .chain(times.map(|name| (SOL_SOCKET, name)));
    let mut values: Vec<_> = all.map(|(level, name)| get(fd, level, name)).collect();
    values.extend([libc::F_GETFL, libc::F_GETFD].map(|cmd| {
        // SAFETY: a command without argument.
        unsafe { libc::fcntl(fd.0, cmd) }.to_ne_bytes().to_vec()
    }));
    values
}

/// Sets each option; the receive buffer twice, so that the last value counts.
fn set_all(fd: &Fd) {
    set(fd, SOL_SOCKET, libc::SO_RCVBUF, &20_000_i32.to_ne_bytes()).unwrap();
    for (level, name, value) in NUMBERS {
        assert_eq!(set(fd, level, name, &value.to_ne_bytes()), Ok(0), "{name}");
    }
    let time = |seconds: i64| [seconds.to_ne_bytes(), 500_000_i64.to_ne_bytes()].concat();
    set(fd, SOL_SOCKET, libc::SO_RCVTIMEO, &time(3)).unwrap();
    set(fd, SOL_SOCKET, libc::SO_SNDTIMEO, &time(4)).unwrap();
    let linger = [1_i32.to_ne_bytes(), 7_i32.to_ne_bytes()].concat();
    set(fd, SOL_SOCKET, libc::SO_LINGER, &linger).unwrap();
    fd.set_nonblocking();
    // SAFETY: numbers only.
    let flagged = unsafe { libc::fcntl(fd.0, libc::F_SETFD, libc::FD_CLOEXEC) };
    assert_eq!(flagged, 0);
}

/// Whether the kernel has a network socket.
fn is_tcp(fd: &Fd) -> bool {
    // SAFETY: open, and closed by the owner only.
    let fd = unsafe { BorrowedFd::borrow_raw(fd.0) };
    socket_domain(fd).unwrap() == AddressFamily::INET
}

#[test]
fn stream_that_becomes_tcp_keeps_the_options_set_before() {
    let _exclusive = exclusive();
    let [of_kernel, of_library] = [false, true].map(|is_own| {
        let (family, kind) = (libc::AF_INET, libc::SOCK_STREAM);
        let fd = Fd::of(match is_own {
            // SAFETY: numbers only.
            true => unsafe { libc::socket(family, kind, 0) }.into(),
            // SAFETY: as above.
            false => unsafe { libc::syscall(libc::SYS_socket, family, kind, 0) },
        });
        assert_eq!(is_tcp(&fd), !is_own);
        set_all(&fd);
        fd.bind(([127, 0, 0, 1], 0).into()).unwrap();
        assert!(is_tcp(&fd));
        settings(&fd)
    });
    assert_eq!(of_library, of_kernel);
}

/// Options that were not set have the defaults of TCP, not those of rsockets.
#[test]
fn stream_that_becomes_tcp_has_the_defaults_of_tcp() {
    let _exclusive = exclusive();
    let [of_kernel, of_library] = [false, true].map(|is_own| {
        let (family, kind) = (libc::AF_INET6, libc::SOCK_STREAM);
        let fd = Fd::of(match is_own {
            // SAFETY: numbers only.
            true => unsafe { libc::socket(family, kind, 0) }.into(),
            // SAFETY: as above.
            false => unsafe { libc::syscall(libc::SYS_socket, family, kind, 0) },
        });
        let only = 1_i32.to_ne_bytes();
        set(&fd, IPPROTO_IPV6, libc::IPV6_V6ONLY, &only).unwrap();
        fd.bind("[::1]:0".parse().unwrap()).unwrap();
        let mut settings = settings(&fd);
        settings.push(get(&fd, IPPROTO_IPV6, libc::IPV6_V6ONLY));
        settings
    });
    assert_eq!(of_library, of_kernel);
}
