//! Sockets of both kinds with the same calls.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    ptr,
    sync::OnceLock,
};

use libc::{c_int, socklen_t};
use rsocket_capi as capi;

/// Implementation of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tcp,
    Rdma,
}

use Kind::{Rdma, Tcp};

/// A stream socket, closed on drop.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) kind: Kind,
    pub(crate) fd: c_int,
}

/// Result of a call: the value returned, or `errno`.
pub(crate) type Outcome = Result<usize, c_int>;

/// Converts a return value of -1 to `errno`.
pub(crate) fn outcome(returned: isize) -> Outcome {
    usize::try_from(returned).map_err(|_| io::Error::last_os_error().raw_os_error().unwrap())
}

pub(crate) fn len_of(len: usize) -> socklen_t {
    len.try_into().unwrap()
}

/// Chooses between a function of libc and the function of this library.
macro_rules! call {
    ($kind:expr, $libc:ident, safe $capi:ident, $($arg:expr),*) => {
        match $kind {
            // SAFETY: numbers only.
            Tcp => unsafe { libc::$libc($($arg),*) },
            Rdma => capi::$capi($($arg),*),
        }
    };
    ($kind:expr, $libc:ident, $capi:ident, $($arg:expr),*) => {
        match $kind {
            // SAFETY: pointers among the arguments are valid for the lengths beside them.
            Tcp => unsafe { libc::$libc($($arg),*) },
            // SAFETY: as above.
            Rdma => unsafe { capi::$capi($($arg),*) },
        }
    };
}

impl Stream {
    pub(crate) fn open(kind: Kind, family: c_int) -> Self {
        static FABRIC: OnceLock<()> = OnceLock::new();
        FABRIC.get_or_init(|| {
            // The library's objects exist until the process ends.
            Box::leak(Box::new(doctest::lasting_host()));
        });
        let fd = call!(kind, socket, safe rsocket, family, libc::SOCK_STREAM, 0);
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        Self { kind, fd }
    }

    /// Sets an option. `len` replaces the length of the value.
    pub(crate) fn set_with_len(
        &self,
        (level, name): (c_int, c_int),
        value: &[u8],
        len: socklen_t,
    ) -> Outcome {
        let at = value.as_ptr().cast();
        outcome(call!(
            self.kind,
            setsockopt,
            rsetsockopt,
            self.fd,
            level,
            name,
            at,
            len
        ) as isize)
    }

    pub(crate) fn set(&self, option: (c_int, c_int), value: &[u8]) -> Outcome {
        self.set_with_len(option, value, len_of(value.len()))
    }

    /// Returns an option with a length of `size`.
    pub(crate) fn get(
        &self,
        (level, name): (c_int, c_int),
        size: socklen_t,
    ) -> Result<Vec<u8>, c_int> {
        let mut value = vec![0; 256];
        let (at, mut len) = (value.as_mut_ptr().cast(), size);
        let len_ptr = &raw mut len;
        outcome(call!(
            self.kind,
            getsockopt,
            rgetsockopt,
            self.fd,
            level,
            name,
            at,
            len_ptr
        ) as isize)?;
        value.truncate(len as usize);
        Ok(value)
    }

    /// Receives up to `len` bytes. Returns the number of bytes.
    pub(crate) fn recv(&self, len: usize, flags: c_int) -> Outcome {
        let mut bytes = vec![0_u8; len];
        let at = bytes.as_mut_ptr().cast();
        outcome(call!(self.kind, recv, rrecv, self.fd, at, len, flags))
    }

    pub(crate) fn read(&self, len: usize) -> Outcome {
        let mut bytes = vec![0_u8; len];
        let at = bytes.as_mut_ptr().cast();
        outcome(call!(self.kind, read, rread, self.fd, at, len))
    }

    /// Reads into two empty buffers.
    pub(crate) fn read_nothing(&self) -> Outcome {
        let none = libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        };
        let vectors = [none; 2];
        let at = vectors.as_ptr();
        outcome(call!(self.kind, readv, rreadv, self.fd, at, 2))
    }

    pub(crate) fn send(&self, bytes: &[u8], flags: c_int) -> Outcome {
        let (at, len) = (bytes.as_ptr().cast(), bytes.len());
        outcome(call!(self.kind, send, rsend, self.fd, at, len, flags))
    }

    pub(crate) fn shut_down(&self, how: c_int) -> Outcome {
        let ended = call!(self.kind, shutdown, safe rshutdown, self.fd, how);
        outcome(isize::try_from(ended).unwrap())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        call!(self.kind, close, safe rclose, self.fd);
    }
}

/// Both ends of a connection.
pub(crate) fn connected(kind: Kind) -> [Stream; 2] {
    let listener = Stream::open(kind, libc::AF_INET);
    let ip = match kind {
        Tcp => Ipv4Addr::LOCALHOST,
        Rdma => Ipv4Addr::new(10, 9, 0, 1),
    };
    let any = interpose::encode(SocketAddr::new(ip.into(), 0));
    let (at, len) = (any.as_ptr().cast(), len_of(any.len()));
    assert_eq!(call!(kind, bind, rbind, listener.fd, at, len), 0);
    assert_eq!(call!(kind, listen, safe rlisten, listener.fd, 1), 0);
    let mut name = [0_u8; 128];
    let mut len = len_of(name.len());
    let at = name.as_mut_ptr().cast();
    let got = call!(
        kind,
        getsockname,
        rgetsockname,
        listener.fd,
        at,
        &raw mut len
    );
    assert_eq!(got, 0);
    let client = Stream::open(kind, libc::AF_INET);
    let at = name.as_ptr().cast();
    assert_eq!(call!(kind, connect, rconnect, client.fd, at, len), 0);
    let fd = call!(
        kind,
        accept,
        raccept,
        listener.fd,
        ptr::null_mut(),
        ptr::null_mut()
    );
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    [client, Stream { kind, fd }]
}

/// Number of open descriptors.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The completion channel, and the descriptor of the C interface.
#[test]
fn stream_has_two_descriptors() {
    const PAIRS: usize = 20;
    let _first = connected(Rdma);
    // Other tests open and close descriptors meanwhile.
    let mut added = (0..10).map(|_| {
        let before = descriptors();
        let pairs = [(); PAIRS].map(|()| connected(Rdma));
        for [client, server] in &pairs {
            for (from, to) in [(client, server), (server, client)] {
                assert_eq!(to.recv(9, libc::MSG_DONTWAIT), Err(libc::EAGAIN));
                assert_eq!(from.send(b"x", 0), Ok(1));
                assert_eq!(to.recv(9, 0), Ok(1));
            }
        }
        descriptors().saturating_sub(before)
    });
    assert!(added.any(|added| added <= 2 * 2 * PAIRS));
}
