//! Sockets with a kind and state chosen at run time, as in C.

mod connect;
mod data;
mod driver;
mod event_set;
mod mirror;
mod options;
mod poll;
mod source;

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::Waker,
};

use cm::{CmId, phases::Idle};
use rustix::{event::epoll, io::Errno};
use verbs::fd::InternalFd;

pub use data::{RecvFlags, SendOptions};
use driver::Reflection;
pub use event_set::{Event, EventSet, Registration};
use options::Choices;
pub use poll::{PollEntry, PollEvents, Sleep, SleepEntry, poll, poll_by};

use crate::{
    config::config,
    connecting::{Connecting, FailureHook},
    datagram::DatagramSocket,
    engine::Engine,
    errno::errno,
    listener::Listener,
    names::{mapped, unmapped},
    proto::{
        datagram::DatagramStats,
        stream::{Direction, StreamStats},
    },
    stream::Stream,
};

/// Address family of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    fn unspecified(self) -> SocketAddr {
        let ip = match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Self::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        SocketAddr::new(ip, 0)
    }
}

/// A socket with a role chosen at run time: unconnected, connected or listening stream, or datagram socket.
///
/// Intended for code that executes another program's socket calls, such as the C library. Other programs are
/// better served by [`Stream`] and [`Listener`], whose types exclude calls in the wrong state.
///
/// All methods can be called from any thread at any time. A connection attempt continues in the background,
/// with or without a waiting call.
///
/// ```
/// # let _fabric = doctest::lasting_host();
/// use std::io::IoSliceMut;
///
/// use rsocket::{Family, RecvFlags, Socket};
///
/// let listener = Socket::new(Family::V4)?;
/// listener.bind("10.9.0.1:0".parse().unwrap())?;
/// listener.listen(16)?;
/// let client = Socket::new(Family::V4)?;
/// client.connect(listener.local_addr()?)?;
/// let (server, _) = listener.accept()?;
/// client.send(b"hello")?;
/// let mut hello = [0; 5];
/// server.recv_msg(&mut [IoSliceMut::new(&mut hello)], RecvFlags::WAIT_ALL)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Socket {
    engine: Arc<Engine>,
    family: Family,
    state: Mutex<SocketState>,
    nonblocking: AtomicBool,
    /// `epoll` instance watching the event source of the present phase. Created by the first use.
    poller: OnceLock<Arc<InternalFd>>,
    /// Shows the socket's readiness to programs unaware of rsockets.
    reflection: Reflection,
}

/// Counters of a [`Socket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketStats {
    /// Counters of a connected stream.
    Stream(StreamStats),
    /// Counters of a datagram socket.
    Datagram(DatagramStats),
}

#[derive(Debug)]
struct SocketState {
    phase: Phase,
    choices: Choices,
    /// First unreported error.
    error: Option<i32>,
    /// For the next attempt in the background.
    failure_hook: Option<FailureHook>,
    /// No call of `connect` has returned the success of an attempt in the background.
    unreported_success: bool,
    /// The failure of the connection has been reported.
    reported_failure: bool,
    /// Woken by a change of the phase.
    tasks: Vec<Waker>,
}

#[derive(Debug)]
enum Phase {
    /// Bound if there is an identifier.
    Idle(Option<CmId<Idle>>),
    Connecting(Arc<Connecting>),
    Connected(Arc<Stream>),
    Listening(Arc<Listener>),
    /// Datagram socket.
    Datagram(Arc<DatagramSocket>),
    /// The connection attempt has failed.
    Failed,
    /// Another socket has connected in place of a failed attempt. The owner of this socket uses the other one from now on.
    Replaced {
        readable: bool,
    },
    /// A listener after a shutdown, bound to its address again; not bound if another socket has taken the address.
    Ended(Option<CmId<Idle>>),
    Closed,
}

fn watch(poller: &InternalFd, fd: impl AsFd) -> io::Result<()> {
    let data = epoll::EventData::new_u64(0);
    Ok(epoll::add(poller, fd, data, epoll::EventFlags::IN)?)
}

/// The failure of a connection, as TCP reports it.
fn failure_of(stream: &Stream) -> Option<io::Error> {
    Some(as_of_tcp(stream, stream.take_error()?))
}

/// A reset after the peer's end of sending is a broken pipe: all bytes of the peer have arrived.
fn as_of_tcp(stream: &Stream, error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::ConnectionReset if stream.connection().has_peer_ended() => {
            io::ErrorKind::BrokenPipe.into()
        }
        _ => error,
    }
}

fn os_error(errno: Errno) -> io::Error {
    io::Error::from(errno)
}

impl SocketState {
    fn set_phase(&mut self, phase: Phase) -> Phase {
        let old = std::mem::replace(&mut self.phase, phase);
        // Wakers of this crate, which take no lock of a socket.
        self.tasks.iter().for_each(Waker::wake_by_ref);
        old
    }

    fn fail(&mut self, error: &io::Error) -> Phase {
        // Only the first error is kept.
        self.error.get_or_insert(errno(error));
        self.set_phase(Phase::Failed)
    }
}

impl Socket {
    /// Creates a stream socket. Files in `/etc/rdma/rsocket` set its sizes, one number each:
    /// `sqsize_default`, `rqsize_default`, `mem_default` (receive buffer), `wmem_default` (send buffer),
    /// `inline_default` and `iomap_size`.
    ///
    /// # Errors
    /// - `NotFound`, `ENODEV`: there is no RDMA device.
    /// - `PermissionDenied`: sockets from before 16 changes of the process's credentials are open, each change with two threads and an
    ///   event channel of its own. They end with the last socket from before the change.
    pub fn new(family: Family) -> io::Result<Self> {
        let choices = Choices {
            settings: config().settings,
            ..Choices::default()
        };
        let engine = Engine::get()?;
        Ok(Self::with_phase(engine, family, Phase::Idle(None), choices))
    }

    /// Creates a datagram socket, like [`std::net::UdpSocket`].
    ///
    /// The socket has a UDP address, and firewalls must pass its datagrams. The first datagrams to a peer,
    /// and any exceeding the device's MTU, are sent over UDP; all others directly between the devices.
    /// Maximum length: 2032 bytes (IPv6: 2020). Lost datagrams are not retransmitted.
    ///
    /// The queue depths equal the number of 2048-byte slots in the buffers: 64 by default.
    ///
    /// ```no_run
    /// use rsocket::{Family, Socket};
    ///
    /// let server = Socket::datagram(Family::V4)?;
    /// server.bind("10.9.0.1:7174".parse().unwrap())?;
    /// let client = Socket::datagram(Family::V4)?;
    /// client.send_to(b"hello", server.local_addr()?)?;
    /// let mut hello = [0; 100];
    /// let (len, peer) = server.recv_from(&mut hello)?;
    /// assert_eq!(&hello[..len], b"hello");
    /// server.send_to(b"welcome", peer)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// - `NotFound`, `ENODEV`: there is no RDMA device.
    /// - `PermissionDenied`: sockets from before 16 changes of the process's credentials are open, each change with two threads and an
    ///   event channel of its own. They end with the last socket from before the change.
    pub fn datagram(family: Family) -> io::Result<Self> {
        let engine = Engine::get()?;
        let choices = Choices {
            settings: config().settings,
            ..Choices::default()
        };
        let datagram = DatagramSocket::new(&engine, family, choices.settings)?;
        let phase = Phase::Datagram(datagram);
        Ok(Self::with_phase(engine, family, phase, choices))
    }

    /// Whether the kernel refuses this thread's calls to bind and connect this socket, as the thread has other credentials than
    /// when the socket was created: after `setuid(2)` and the like. An established stream works as before.
    pub fn is_refused(&self) -> bool {
        self.engine.is_refused()
    }

    fn with_phase(engine: Arc<Engine>, family: Family, phase: Phase, choices: Choices) -> Self {
        Self {
            engine,
            family,
            state: Mutex::new(SocketState {
                phase,
                choices,
                error: None,
                failure_hook: None,
                unreported_success: false,
                reported_failure: false,
                tasks: Vec::new(),
            }),
            nonblocking: AtomicBool::new(false),
            poller: OnceLock::new(),
            reflection: Reflection::default(),
        }
    }

    /// Returns the descriptor of [`AsFd`], or the error of its creation.
    ///
    /// # Errors
    /// - `EMFILE`, `ENFILE`: too many open descriptors.
    pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.poller()?.as_fd())
    }

    /// The `epoll` instance of [`AsFd`].
    fn poller(&self) -> io::Result<&Arc<InternalFd>> {
        // Locked, so that no phase begins meanwhile. The end of a connection attempt stays to be reported.
        let state = self.lock_raw();
        if let Some(poller) = self.poller.get() {
            return Ok(poller);
        }
        let poller = Arc::new(verbs::fd::raised(epoll::create(
            epoll::CreateFlags::CLOEXEC,
        )?));
        match &state.phase {
            Phase::Connecting(connecting) => watch(&poller, connecting.event_fd())?,
            Phase::Connected(stream) => stream.connection().shared().notify_in(&poller)?,
            Phase::Listening(listener) => watch(&poller, &**listener)?,
            Phase::Datagram(datagram) => datagram.shared().notify_in(&poller)?,
            Phase::Idle(_)
            | Phase::Failed
            | Phase::Replaced { .. }
            | Phase::Ended(_)
            | Phase::Closed => {}
        }
        Ok(self.poller.get_or_init(|| poller))
    }

    /// Adds the event source of a new phase to the `epoll` instance, if there is one.
    fn watch(&self, fd: impl AsFd) -> io::Result<()> {
        self.poller.get().map_or(Ok(()), |poller| watch(poller, fd))
    }

    /// Locks the state, after applying the results of background work.
    fn lock(&self) -> MutexGuard<'_, SocketState> {
        let mut state = self.lock_raw();
        drop(self.advance(&mut state));
        state
    }

    fn lock_raw(&self) -> MutexGuard<'_, SocketState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates an identifier with the chosen options.
    fn create_id(&self, choices: &Choices) -> io::Result<CmId<Idle>> {
        let mut id = self.engine.channel().create_id()?;
        if choices.reuse_addr {
            id.set_reuse_addr(true)?;
        }
        if let Some(only) = choices.v6_only
            && self.family == Family::V6
        {
            id.set_af_only(only)?;
        }
        if let Some(tos) = choices.tos {
            id.set_tos(tos)?;
        }
        Ok(id)
    }

    /// Binds to a local address. Port 0 selects a free port.
    ///
    /// # Errors
    /// - `InvalidInput`: the socket is already bound, connected or listening; or the address is a mapped IPv4
    ///   address, and the socket is [limited to IPv6](Self::set_v6_only).
    /// - `EAFNOSUPPORT`: an IPv6 address for an IPv4 socket.
    /// - `AddrNotAvailable`: for datagrams, the address is not local.
    /// - `AddrInUse`, `AddrNotAvailable`, `ENODEV`: as for [`Options::listen`](crate::Options::listen).
    pub fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        if let Some(datagram) = self.datagram_socket() {
            return datagram.bind(unmapped(addr));
        }
        let mut state = self.lock();
        let Phase::Idle(None) = state.phase else {
            return Err(os_error(Errno::INVAL));
        };
        let addr = self.plain(addr, &state.choices, Errno::INVAL)?;
        let mut id = self.create_id(&state.choices)?;
        if let Err(err) = id.bind(addr) {
            return Err(self.bind_error(err.into(), addr));
        }
        state.phase = Phase::Idle(Some(id));
        Ok(())
    }

    /// Corrects the error for an address in use. The kernel reports an unavailable address if the port is
    /// taken by a wildcard listener, or for a wildcard listen on a taken port.
    fn bind_error(&self, err: io::Error, addr: SocketAddr) -> io::Error {
        if errno(&err) != Errno::ADDRNOTAVAIL.raw_os_error() || addr.port() == 0 {
            return err;
        }
        let with_any_port = self.engine.channel().create_id().and_then(|mut id| {
            let any_port = SocketAddr::new(addr.ip(), 0);
            id.bind(any_port)
        });
        match with_any_port {
            Ok(()) => os_error(Errno::ADDRINUSE),
            Err(_) => err,
        }
    }

    /// Listens, with at most `backlog` half-open or unaccepted connections. A second call changes the backlog only. An
    /// unbound socket gets a free port. After a [shutdown](Self::shutdown), listens at the same address again.
    ///
    /// # Errors
    /// - `InvalidInput`: the socket is connected or connecting.
    /// - `AddrInUse`: another socket listens at the address.
    /// - `Unsupported`: the socket is a datagram socket.
    /// - `ENOMEM`: the process may not lock the memory of a connection. The socket stays bound.
    pub fn listen(&self, backlog: u32) -> io::Result<()> {
        let mut state = self.lock();
        let id = match &mut state.phase {
            Phase::Listening(listener) => {
                listener.set_backlog(backlog);
                return Ok(());
            }
            Phase::Idle(id) => id.take(),
            Phase::Ended(id) => Some(id.take().ok_or_else(|| os_error(Errno::ADDRINUSE))?),
            Phase::Datagram(_) => return Err(os_error(Errno::OPNOTSUPP)),
            _ => return Err(os_error(Errno::INVAL)),
        };
        let id = match id {
            Some(id) => id,
            None => {
                let mut id = self.create_id(&state.choices)?;
                id.bind(self.family.unspecified())?;
                id
            }
        };
        let options = state.choices.options().backlog(backlog.max(1));
        if let Err(err) = options.check_memory(&id) {
            state.set_phase(Phase::Idle(Some(id)));
            return Err(err);
        }
        let local = id.local_addr();
        let listener = options
            .listen_with(&self.engine, id)
            .map_err(|err| match local {
                Some(local) => self.bind_error(err, local),
                None => err,
            })?;
        self.watch(&listener)?;
        state.set_phase(Phase::Listening(Arc::new(listener)));
        drop(state);
        self.reflect(true);
        Ok(())
    }

    /// Takes the next connection. Blocks until there is one, unless [nonblocking](Self::set_nonblocking). The
    /// new socket inherits the sizes and options of this one, but not the
    /// [nonblocking mode](Self::set_nonblocking).
    ///
    /// # Errors
    /// - `InvalidInput`: the socket is not listening, or has been [shut down](Self::shutdown) before or
    ///   during the call.
    /// - `NetworkDown`: the device of the local address has been removed.
    /// - `WouldBlock`: the socket is nonblocking and has no connection.
    /// - `Interrupted`: a signal interrupted the call.
    /// - `Unsupported`: the socket is a datagram socket.
    pub fn accept(&self) -> io::Result<(Self, SocketAddr)> {
        let (accepted, peer, ()) = self.accept_with(|_| Ok(()))?;
        Ok((accepted, peer))
    }

    /// As [`accept`](Self::accept), and calls `prepare` with the new socket before the connection leaves the
    /// backlog. If `prepare` fails, for instance for lack of descriptors, the connection stays the next one to be
    /// accepted. Before, half-open connections give way, as for lack of memory, and `prepare` is called once more.
    ///
    /// # Errors
    /// As for [`accept`](Self::accept), and the error of `prepare`.
    pub fn accept_with<T>(
        &self,
        prepare: impl FnMut(&Self) -> io::Result<T>,
    ) -> io::Result<(Self, SocketAddr, T)> {
        let accepted = self.take_connection(prepare);
        self.reflect(false);
        accepted
    }

    fn take_connection<T>(
        &self,
        mut prepare: impl FnMut(&Self) -> io::Result<T>,
    ) -> io::Result<(Self, SocketAddr, T)> {
        let mut has_freed = false;
        loop {
            let (listener, choices) = {
                let state = self.lock();
                let listener = match &state.phase {
                    Phase::Listening(listener) => Arc::clone(listener),
                    Phase::Datagram(_) => return Err(os_error(Errno::OPNOTSUPP)),
                    _ => return Err(os_error(Errno::INVAL)),
                };
                (listener, state.choices.clone())
            };
            if let Some(stream) = listener.try_accept()? {
                let peer = self.name_of(stream.connection().peer_addr());
                let stream = Arc::new(stream);
                let phase = Phase::Connected(Arc::clone(&stream));
                let engine = Arc::clone(&self.engine);
                let accepted = Self::with_phase(engine, self.family, phase, choices);
                let err = match prepare(&accepted) {
                    Ok(prepared) => return Ok((accepted, peer, prepared)),
                    Err(err) => err,
                };
                drop(accepted.lock_raw().set_phase(Phase::Closed));
                listener.put_back(stream);
                if has_freed || !listener.free_descriptors(peer, &err) {
                    return Err(err);
                }
                has_freed = true;
                continue;
            }
            drop(listener);
            if self.is_nonblocking() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            poll(&mut [PollEntry::socket(self, PollEvents::IN)], None)?;
        }
    }

    /// Returns the datagram socket, if this is one.
    pub(crate) fn datagram_socket(&self) -> Option<Arc<DatagramSocket>> {
        match &self.lock_raw().phase {
            Phase::Datagram(datagram) => Some(Arc::clone(datagram)),
            _ => None,
        }
    }

    /// Returns the connected stream, if any.
    fn stream(&self) -> Option<Arc<Stream>> {
        match &self.lock().phase {
            Phase::Connected(stream) => Some(Arc::clone(stream)),
            _ => None,
        }
    }

    /// Returns the counters of this side of the connection, or of the datagram socket; `None` for other sockets. Does
    /// not block, and makes no system call.
    ///
    /// ```no_run
    /// use rsocket::{Family, Socket, SocketStats};
    ///
    /// let socket = Socket::datagram(Family::V4)?;
    /// socket.send_to(b"hello", "10.9.0.1:7174".parse().unwrap())?;
    /// let Some(SocketStats::Datagram(stats)) = socket.stats() else { panic!("no datagram socket") };
    /// assert_eq!((stats.bytes_sent, stats.datagrams_sent_by_udp), (5, 1));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn stats(&self) -> Option<SocketStats> {
        if let Some(datagram) = self.datagram_socket() {
            return Some(SocketStats::Datagram(datagram.stats()));
        }
        Some(SocketStats::Stream(self.stream()?.stats()))
    }

    /// Shuts down one direction or both; see [`Stream::shutdown`]. A shutdown of reading stops a listener, and any shutdown
    /// ends an attempt to connect.
    ///
    /// On a datagram socket, the peer is not notified. Received datagrams can still be read.
    ///
    /// # Errors
    /// - `NotConnected`: the stream socket is not connected, or both sides have ended sending.
    /// - The device has failed.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if let Some(datagram) = self.datagram_socket() {
            return datagram.shut_down(match how {
                Shutdown::Read => Direction::Read,
                Shutdown::Write => Direction::Write,
                Shutdown::Both => Direction::Both,
            });
        }
        let mut state = self.lock();
        state.unreported_success = false;
        let stream = match &state.phase {
            Phase::Listening(_) => {
                drop(state);
                if how != Shutdown::Write {
                    self.end_listening();
                }
                return Ok(());
            }
            Phase::Connecting(connecting) => {
                connecting.cancel();
                let before = state.fail(&io::ErrorKind::ConnectionReset.into());
                drop(state);
                drop(before);
                self.reflect(true);
                return Ok(());
            }
            Phase::Connected(stream) if !stream.connection().is_closed() => Arc::clone(stream),
            _ => return Err(io::ErrorKind::NotConnected.into()),
        };
        drop(state);
        let ended = stream.shutdown(how);
        self.reflect(false);
        ended
    }

    /// Stops listening; threads blocked in `accept` return. The socket stays bound.
    fn end_listening(&self) {
        let mut state = self.lock();
        let Phase::Listening(listener) = &state.phase else {
            return;
        };
        listener.end();
        let rebound = self.create_id(&state.choices).and_then(|mut id| {
            id.bind(unmapped(listener.local_addr()?))?;
            Ok(id)
        });
        let listener = state.set_phase(Phase::Ended(rebound.ok()));
        drop(state);
        drop(listener);
        self.reflect(true);
    }

    /// Closes the socket, and waits for the peer to acknowledge sent data if a [`linger`](Self::linger) time is set;
    /// otherwise the engine delivers the data in the background. Calls blocked in other threads return. Dropping the socket
    /// also closes.
    pub fn close(&self) {
        let (old, linger) = {
            let mut state = self.lock_raw();
            let linger = state.choices.options().linger;
            (state.set_phase(Phase::Closed), linger)
        };
        self.reflection.end();
        match old {
            Phase::Datagram(datagram) => datagram.close(linger),
            Phase::Connecting(connecting) => connecting.cancel(),
            Phase::Connected(stream) if Arc::strong_count(&stream) > 1 => {
                // Another thread is inside a call; the shutdown makes the call return.
                drop(stream.connection().shut_down(Direction::Both));
            }
            _ => {}
        }
    }

    /// Drops the socket and delivers unsent data in the background.
    fn linger_in_background(self) {
        if let Phase::Connected(stream) = &self.lock_raw().phase {
            stream.set_linger_in_background(true);
        }
    }

    /// Returns the local address from binding or connecting, or the unspecified address before.
    ///
    /// # Errors
    /// None today; a `Result` as in [`std::net`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let addr = match &self.lock().phase {
            Phase::Idle(Some(id)) | Phase::Ended(Some(id)) => id.local_addr(),
            Phase::Connected(stream) => Some(stream.connection().local_addr()),
            Phase::Listening(listener) => listener.local_addr().ok(),
            Phase::Datagram(datagram) => datagram.local_addr().ok(),
            Phase::Idle(None)
            | Phase::Connecting(_)
            | Phase::Failed
            | Phase::Replaced { .. }
            | Phase::Ended(None)
            | Phase::Closed => None,
        };
        Ok(addr.map_or_else(|| self.family.unspecified(), |addr| self.name_of(addr)))
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// - `NotConnected`: the socket has no peer, its connection has failed, or both sides have ended sending.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        if let Some(datagram) = self.datagram_socket() {
            let peer = datagram.peer_addr();
            return Ok(self.name_of(peer.ok_or(io::ErrorKind::NotConnected)?));
        }
        let stream = self.stream();
        let stream = stream.ok_or(io::ErrorKind::NotConnected)?;
        if stream.connection().is_closed() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        Ok(self.name_of(stream.connection().peer_addr()))
    }

    /// Converts an address to that of a device: an IPv6 socket reaches IPv4 devices by mapped addresses.
    ///
    /// # Errors
    /// - `EAFNOSUPPORT`: an IPv6 address for an IPv4 socket.
    /// - `v6_only`: a mapped address for a socket limited to IPv6.
    fn plain(&self, addr: SocketAddr, choices: &Choices, v6_only: Errno) -> io::Result<SocketAddr> {
        let plain = unmapped(addr);
        if self.family == Family::V4 && addr.is_ipv6() {
            return Err(os_error(Errno::AFNOSUPPORT));
        }
        if plain != addr && choices.v6_only == Some(true) {
            return Err(os_error(v6_only));
        }
        Ok(plain)
    }

    /// Converts an address to the socket's family: an IPv6 socket maps IPv4 addresses.
    fn name_of(&self, addr: SocketAddr) -> SocketAddr {
        match self.family {
            Family::V6 => mapped(addr),
            Family::V4 => addr,
        }
    }

    /// Whether calls return at once instead of blocking.
    pub fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Relaxed)
    }

    /// Sets whether calls return at once instead of blocking.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Relaxed);
        if let Some(stream) = self.stream() {
            stream.set_nonblocking(nonblocking);
        }
    }
}

impl AsFd for Socket {
    /// Returns the same descriptor for the life of the socket, created by the first call. The descriptor becomes
    /// readable once a failed call (`WouldBlock`) may succeed, and stays readable until the retry. With too many
    /// open descriptors, returns a descriptor that is always readable.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.poller() {
            Ok(poller) => poller.as_fd(),
            Err(_) => self.engine.always_readable(),
        }
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Socket")
            .field("family", &self.family)
            .field("phase", &state.phase)
            .finish_non_exhaustive()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.close();
    }
}
