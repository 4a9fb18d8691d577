//! The calls of a program, with sockets of both kinds.

use std::{
    io,
    mem::MaybeUninit,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ptr,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::Duration,
};

use libc::{c_int, c_long, socklen_t};
use softnic::{Fabric, Host};

/// Pause after which no descriptor has been released: the library's threads are idle.
const RELEASE_PAUSE: Duration = Duration::from_millis(10);

/// Implementation of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tcp,
    Rdma,
}

pub(crate) use Kind::{Rdma, Tcp};

impl Kind {
    /// Address of the listeners.
    pub(crate) fn ip(self) -> IpAddr {
        match self {
            Tcp => Ipv4Addr::LOCALHOST.into(),
            Rdma => Ipv4Addr::new(10, 9, 0, 1).into(),
        }
    }
}

/// Result of a call: the value returned, or `errno`.
pub(crate) type Outcome = Result<usize, c_int>;

/// Converts a return value of -1 to `errno`.
pub(crate) fn outcome(returned: impl TryInto<usize>) -> Outcome {
    let error = io::Error::last_os_error();
    returned
        .try_into()
        .map_err(|_| error.raw_os_error().unwrap())
}

fn len_of(len: usize) -> socklen_t {
    len.try_into().unwrap()
}

/// The host of the program. Its fabric lasts, as the library's objects do, until the process ends.
pub(crate) fn host() -> &'static Host {
    static FABRIC: OnceLock<(Fabric, Host)> = OnceLock::new();
    let (_, host) = FABRIC.get_or_init(|| {
        let fabric = Fabric::new().keep_objects();
        let addrs = [1, 2].map(|last| Ipv4Addr::new(10, 9, 0, last).into());
        let host = fabric.host_with_addrs(&addrs);
        host.make_default();
        (fabric, host)
    });
    host
}

/// Starts the fabric. One test runs at a time: the tests change the limits of the process.
pub(crate) fn exclusive() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    host();
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A descriptor, closed on drop.
#[derive(Debug)]
pub(crate) struct Fd(pub(crate) c_int);

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the descriptor belongs to this value.
        unsafe { libc::close(self.0) };
    }
}

impl Fd {
    pub(crate) fn of(returned: c_long) -> Self {
        assert!(returned >= 0, "{}", io::Error::last_os_error());
        Self(returned.try_into().unwrap())
    }

    pub(crate) fn stream(kind: Kind) -> Self {
        Self::stream_of(kind, libc::AF_INET)
    }

    pub(crate) fn stream_of(kind: Kind, family: c_int) -> Self {
        let stream = libc::SOCK_STREAM;
        Self::of(match kind {
            // The library does not intercept the creation of a socket by number.
            // SAFETY: numbers only.
            Tcp => unsafe { libc::syscall(libc::SYS_socket, family, stream, 0) },
            // SAFETY: as above.
            Rdma => unsafe { libc::socket(family, stream, 0) }.into(),
        })
    }

    /// A listener at a free port.
    pub(crate) fn listener(kind: Kind) -> Self {
        let listener = Self::stream(kind);
        listener.bind(SocketAddr::new(kind.ip(), 0)).unwrap();
        listener.listen().unwrap();
        listener
    }

    pub(crate) fn bind(&self, addr: SocketAddr) -> Outcome {
        let addr = interpose::encode(addr);
        let (at, len) = (addr.as_ptr().cast(), len_of(addr.len()));
        // SAFETY: `len` bytes are readable.
        outcome(unsafe { libc::bind(self.0, at, len) })
    }

    pub(crate) fn listen(&self) -> Outcome {
        // SAFETY: numbers only.
        outcome(unsafe { libc::listen(self.0, 30) })
    }

    pub(crate) fn shut_down(&self, how: c_int) -> Outcome {
        // SAFETY: numbers only.
        outcome(unsafe { libc::shutdown(self.0, how) })
    }

    /// Local address, as the C library writes it.
    pub(crate) fn name(&self) -> Vec<u8> {
        let mut name = vec![0; 128];
        let mut len = 128;
        // SAFETY: `len` bytes are writable.
        let got = unsafe { libc::getsockname(self.0, name.as_mut_ptr().cast(), &raw mut len) };
        assert_eq!(got, 0);
        name.truncate(len as usize);
        name
    }

    pub(crate) fn connect(&self, name: &[u8]) -> Outcome {
        // SAFETY: the bytes of the name are readable.
        outcome(unsafe { libc::connect(self.0, name.as_ptr().cast(), len_of(name.len())) })
    }

    pub(crate) fn dial(&self, kind: Kind) -> Self {
        let client = Self::stream(kind);
        client.connect(&self.name()).unwrap();
        client
    }

    pub(crate) fn accept(&self) -> Result<Self, c_int> {
        // SAFETY: null addresses.
        let fd = unsafe { libc::accept4(self.0, ptr::null_mut(), ptr::null_mut(), 0) };
        outcome(fd).map(|_| Self(fd))
    }

    pub(crate) fn set_nonblocking(&self) {
        // SAFETY: numbers only.
        let set = unsafe { libc::fcntl(self.0, libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(set, 0);
    }

    /// Events of a poll without a wait.
    pub(crate) fn events(&self) -> i16 {
        let mut fd = libc::pollfd {
            fd: self.0,
            events: libc::POLLIN | libc::POLLOUT,
            revents: 0,
        };
        // SAFETY: one entry.
        let ready = unsafe { libc::poll(&raw mut fd, 1, 0) };
        assert!(ready >= 0);
        fd.revents
    }

    pub(crate) fn wait_readable(&self) {
        let mut fd = libc::pollfd {
            fd: self.0,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry.
        let ready = unsafe { libc::poll(&raw mut fd, 1, 10_000) };
        assert_eq!(ready, 1);
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> Outcome {
        let (at, flags) = (bytes.as_ptr().cast(), libc::MSG_NOSIGNAL);
        // SAFETY: the bytes are readable.
        outcome(unsafe { libc::send(self.0, at, bytes.len(), flags) })
    }

    pub(crate) fn recv(&self, len: usize) -> Result<Vec<u8>, c_int> {
        let mut bytes = vec![0; len];
        // SAFETY: the bytes are writable.
        let got = outcome(unsafe { libc::recv(self.0, bytes.as_mut_ptr().cast(), len, 0) })?;
        bytes.truncate(got);
        Ok(bytes)
    }
}

/// An `epoll` instance.
#[derive(Debug)]
pub(crate) struct Epoll(Fd);

impl Epoll {
    pub(crate) fn new() -> Self {
        // SAFETY: numbers only.
        Self(Fd::of(
            unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }.into(),
        ))
    }

    pub(crate) fn add(&self, fd: &Fd, events: c_int) {
        let mut event = libc::epoll_event {
            events: events.cast_unsigned(),
            u64: 0,
        };
        let op = libc::EPOLL_CTL_ADD;
        // SAFETY: a valid event.
        let added = unsafe { libc::epoll_ctl(self.0.0, op, fd.0, &raw mut event) };
        assert_eq!(added, 0);
    }

    /// Events of the first ready member, within `timeout` milliseconds; 0 without any.
    pub(crate) fn events(&self, timeout: c_int) -> u32 {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        let ready = unsafe { libc::epoll_wait(self.0.0, &raw mut event, 1, timeout) };
        assert!(ready >= 0);
        event.events
    }
}

/// Both ends of a connection.
pub(crate) fn connected(kind: Kind) -> [Fd; 2] {
    let listener = Fd::listener(kind);
    let client = listener.dial(kind);
    [client, listener.accept().unwrap()]
}

/// Limit of open descriptors. The former limit returns on drop.
#[derive(Debug)]
pub(crate) struct Limit(libc::rlimit);

impl Limit {
    fn get() -> libc::rlimit {
        let mut limit = MaybeUninit::uninit();
        // SAFETY: writes the limit.
        let got = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, limit.as_mut_ptr()) };
        assert_eq!(got, 0);
        // SAFETY: written.
        unsafe { limit.assume_init() }
    }

    fn set(limit: libc::rlimit) {
        // SAFETY: a valid limit.
        let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        assert_eq!(set, 0);
    }

    /// Uses up all descriptors but `free`, once the library's threads have released those of earlier tests. Returns the limit, and the
    /// descriptors that fill it.
    pub(crate) fn all_but(free: usize) -> (Self, Vec<Fd>) {
        let former = Self::get();
        let limit = Self(former);
        Self::set(libc::rlimit {
            rlim_cur: 400,
            ..former
        });
        let duplicate = || {
            // SAFETY: numbers only.
            let fd = unsafe { libc::fcntl(0, libc::F_DUPFD, 0 as c_long) };
            (fd >= 0).then_some(Fd(fd))
        };
        let (mut all, mut before) = (Vec::new(), None);
        while before != Some(all.len()) {
            before = Some(all.len());
            all.extend(std::iter::from_fn(duplicate));
            thread::sleep(RELEASE_PAUSE);
        }
        all.truncate(all.len() - free);
        (limit, all)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        Self::set(self.0);
    }
}
