//! Listening, and accepting connections.

use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use cm::{
    CmId, ConnectRequest, Key,
    phases::{Connected, Idle, Listening},
};
use rustix::event::{PollFd, PollFlags, poll};
use verbs::{Context, Rts, fd::NotifyFd, waiting::EventFd};

use crate::{
    admission::{Admission, Decision, Held, Limits},
    connection::{Connection, ConnectionAddrs},
    endpoint::{Endpoint, bring_up},
    engine::Engine,
    memory::{Exposed, Memory},
    names::{mapped, scoped, unmapped},
    options::Options,
    proto::ConnectData,
    stream::Stream,
    trace::{StreamSpan, note},
};

fn unspecified() -> SocketAddr {
    SocketAddr::from(([0; 4], 0))
}

/// An accepted connection whose peer has not completed the handshake.
///
/// Owns the resources named in the reply: the queue pair, and the memory exposed to the peer.
#[derive(Debug)]
pub(crate) struct HalfOpen {
    endpoint: Endpoint<Rts>,
    peer: ConnectData,
    addrs: ConnectionAddrs,
    /// When the connection is dropped unless the handshake has completed.
    pub(crate) deadline: Option<Instant>,
}

impl HalfOpen {
    pub(crate) fn context(&self) -> &Context {
        self.endpoint.qp.pd().context()
    }
}

/// Counts of connection requests that a [`Listener`] has not turned into connections.
///
/// Peers are not authenticated: a count growing on a healthy network indicates a flood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusals {
    /// Requests rejected because too many waited for a place in the [backlog](Options::backlog), or the
    /// listener was [shut down](Listener::shutdown).
    pub rejected: u64,
    /// Half-open connections ended in favor of a request from another address, or a later one from the same.
    pub displaced: u64,
    /// Half-open connections ended after [`Options::handshake_timeout`], and requests held back for 90
    /// seconds.
    pub timed_out: u64,
    /// Requests rejected because of private data outside the protocol.
    pub invalid: u64,
    /// Connections ended during the handshake: by the peer, or for lack of memory or a device resource.
    pub failed: u64,
}

/// State of a listener filled by the engine.
#[derive(Debug)]
pub(crate) struct Backlog {
    queues: Mutex<Queues>,
    event_fd: Arc<EventFd>,
    /// Descriptor for the program, readable with the eventfd. Reading the eventfd itself would lose a wake-up.
    notify: NotifyFd,
    /// Options of future connections.
    options: Mutex<Options>,
    /// Local address. Connections have addresses of the same family.
    local_addr: Option<SocketAddr>,
}

#[derive(Debug, Default)]
struct Queues {
    half_open: Admission<Key>,
    /// Requests waiting for a place.
    held: Held<Request>,
    /// Established connections, ready to be accepted.
    waiting: VecDeque<Arc<Connection>>,
    refusals: Refusals,
    /// Set when the listener takes no more connections.
    closed: Option<Closed>,
}

/// Cause of the end of a listener.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Closed {
    ShutDown,
    DeviceRemoved,
}

impl Closed {
    fn error(self) -> io::Error {
        let (kind, reason) = match self {
            Self::ShutDown => (
                io::ErrorKind::InvalidInput,
                "the listener has been shut down",
            ),
            Self::DeviceRemoved => (
                io::ErrorKind::NetworkDown,
                "the device of the listener's address has been removed",
            ),
        };
        io::Error::new(kind, reason)
    }
}

/// A request with valid private data.
#[derive(Debug)]
struct Request {
    request: ConnectRequest,
    peer: ConnectData,
}

impl Request {
    fn key(&self) -> Key {
        self.request.id().key()
    }

    /// Peer address for the per-address limits.
    fn addr(&self) -> IpAddr {
        let peer = self.request.id().peer_addr();
        peer.unwrap_or_else(unspecified).ip().to_canonical()
    }
}

/// Outcome of a request that was not rejected.
#[derive(Debug)]
pub(crate) enum RequestOutcome {
    /// Accepted; the handshake is in progress.
    HalfOpen(Box<HalfOpen>),
    /// Held back for a place.
    Held,
}

impl Backlog {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts a connection request, or holds the request back until there is a place.
    /// [`established`](Self::established) completes the connection after the handshake.
    pub(crate) fn requested(
        &self,
        engine: &Engine,
        request: ConnectRequest,
    ) -> io::Result<RequestOutcome> {
        let peer = match ConnectData::decode(&request.param().private_data) {
            Ok(peer) => peer,
            Err(err) => {
                self.lock().refusals.invalid += 1;
                request.reject(&[])?;
                return Err(io::Error::new(io::ErrorKind::InvalidData, err));
            }
        };
        let options = self.options();
        let now = Instant::now();
        let request = Request { request, peer };
        let (key, addr) = (request.key(), request.addr());
        // Held requests come first; the engine serves them before sleeping.
        if self.lock().held.is_empty() && self.take_place(key, addr, &options, now) {
            let served = self.serve(engine, request, &options, now)?;
            return Ok(RequestOutcome::HalfOpen(Box::new(served)));
        }
        let mut queues = self.lock();
        let refused = if queues.closed.is_some() {
            Some(request)
        } else {
            queues.held.hold(addr, now, request)
        };
        queues.refusals.rejected += u64::from(refused.is_some());
        drop(queues);
        if let Some(refused) = refused {
            let other = refused.key();
            // If the rejection fails, dropping the request notifies the peer.
            drop(refused.request.reject(&[]));
            if other == key {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            engine.abandon(other);
        }
        Ok(RequestOutcome::Held)
    }

    /// Accepts the next held request with a place, which may displace a half-open connection. Returns its key, with the
    /// half-open connection or the failure; `None` without a servable request.
    pub(crate) fn serve_held(&self, engine: &Engine) -> Option<(Key, io::Result<HalfOpen>)> {
        let options = self.options();
        let now = Instant::now();
        let limits = Limits::new(options.backlog, options.half_open_per_address);
        let mut queues = self.lock();
        let Queues {
            half_open,
            held,
            waiting,
            refusals,
            ..
        } = &mut *queues;
        let decide = |addr| half_open.decide(addr, now, waiting.len(), limits);
        let request = held.take(
            |addr| half_open.count(addr),
            |addr| decide(addr) != Decision::Reject,
        )?;
        let (key, addr) = (request.key(), request.addr());
        let displaced = match decide(addr) {
            Decision::ServeInsteadOf(displaced) => Some(displaced),
            _ => None,
        };
        if let Some(displaced) = displaced {
            refusals.displaced += 1;
            half_open.end(displaced);
        }
        half_open.begin(key, addr, now);
        drop(queues);
        if let Some(displaced) = displaced {
            engine.abandon(displaced);
        }
        Some((key, self.serve(engine, request, &options, now)))
    }

    /// Drops the expired held requests. Returns their keys, and whether others remain.
    pub(crate) fn expire_held(&self) -> (Vec<Key>, bool) {
        let mut queues = self.lock();
        let expired = queues.held.expired(Instant::now());
        queues.refusals.timed_out += expired.len() as u64;
        let others = !queues.held.is_empty();
        drop(queues);
        // Dropping the requests notifies their peers.
        (expired.iter().map(Request::key).collect(), others)
    }

    /// Drops a held request withdrawn by its peer.
    pub(crate) fn withdrawn(&self, key: Key) {
        let withdrawn = self.lock().held.remove(|request| request.key() == key);
        drop(withdrawn);
    }

    /// Accepts a request with a reserved place.
    fn serve(
        &self,
        engine: &Engine,
        request: Request,
        options: &Options,
        now: Instant,
    ) -> io::Result<HalfOpen> {
        let Request { request, peer } = request;
        let id = request.id();
        let name = |addr: Option<SocketAddr>, near| {
            let addr = scoped(addr.unwrap_or_else(unspecified), near);
            match self.local_addr {
                Some(SocketAddr::V6(_)) => mapped(addr),
                _ => addr,
            }
        };
        let local_addr = name(id.local_addr(), self.local_addr);
        let addrs = ConnectionAddrs {
            local_addr,
            peer_addr: name(id.peer_addr(), Some(local_addr)),
            key: id.key(),
            span: StreamSpan::new(id.peer_addr().unwrap_or_else(unspecified)),
        };
        let key = addrs.key;
        note!(debug, addrs.span, "accepting");
        let accepted = accept(engine, request, options).inspect_err(|_error| {
            note!(warn, addrs.span, error = %_error, "not accepted");
            self.failed(key);
        });
        Ok(HalfOpen {
            endpoint: accepted?,
            peer,
            addrs,
            deadline: now.checked_add(options.handshake_timeout),
        })
    }

    /// Reserves a free place for a request. Returns whether there was one.
    fn take_place(&self, key: Key, addr: IpAddr, options: &Options, now: Instant) -> bool {
        let mut queues = self.lock();
        let serves = queues.closed.is_none() && {
            let limits = Limits::new(options.backlog, options.half_open_per_address);
            let waiting = queues.waiting.len();
            queues.half_open.decide(addr, now, waiting, limits) == Decision::Serve
        };
        if serves {
            queues.half_open.begin(key, addr, now);
        }
        serves
    }

    /// Records a failed handshake.
    pub(crate) fn failed(&self, key: Key) {
        let mut queues = self.lock();
        queues.refusals.failed += u64::from(queues.half_open.end(key));
    }

    /// Records a handshake past its deadline.
    pub(crate) fn timed_out(&self, key: Key) {
        let mut queues = self.lock();
        queues.refusals.timed_out += u64::from(queues.half_open.end(key));
    }

    /// Creates the connection after the handshake. The caller [offers](Self::offer) the connection to the
    /// program next.
    pub(crate) fn established(
        &self,
        engine: &Arc<Engine>,
        half_open: HalfOpen,
        id: CmId<Connected>,
    ) -> io::Result<Arc<Connection>> {
        let HalfOpen {
            endpoint,
            peer,
            addrs,
            deadline: _,
        } = half_open;
        let key = addrs.key;
        let connection = Connection::new(endpoint, |qp| Ok((qp, id)), &peer, addrs, engine);
        Ok(Arc::new(connection.inspect_err(|_| self.failed(key))?))
    }

    /// Queues an established connection for `accept`.
    pub(crate) fn offer(&self, key: Key, connection: Arc<Connection>) {
        let mut queues = self.lock();
        queues.half_open.end(key);
        queues.waiting.push_back(connection);
        // Notified under the lock: taking the connection drains the eventfd.
        self.event_fd.notify();
    }

    /// Returns a taken connection to the front of the queue.
    fn put_back(&self, connection: Arc<Connection>) {
        let mut queues = self.lock();
        queues.waiting.push_front(connection);
        self.event_fd.notify();
    }

    /// Stops listening. Queued connections can still be accepted; held requests are dropped.
    pub(crate) fn close(&self, engine: &Engine, cause: Closed) {
        let mut queues = self.lock();
        queues.closed = Some(cause);
        let held = std::mem::take(&mut queues.held);
        self.event_fd.notify();
        drop(queues);
        for request in held.iter() {
            engine.abandon(request.key());
        }
    }

    fn closed(&self) -> Option<Closed> {
        self.lock().closed
    }

    fn options(&self) -> Options {
        let options = self.options.lock();
        options.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes the next connection. The freed place goes to a held request.
    fn take(&self, engine: &Engine) -> Option<Arc<Connection>> {
        let mut queues = self.lock();
        let taken = queues.waiting.pop_front();
        if queues.waiting.is_empty() && queues.closed.is_none() {
            self.event_fd.drain();
        }
        if taken.is_some() && !queues.held.is_empty() {
            engine.wake_for_held();
        }
        taken
    }
}

/// Creates an endpoint for a request and accepts. A failure rejects the request.
fn accept(
    engine: &Engine,
    request: ConnectRequest,
    options: &Options,
) -> io::Result<Endpoint<Rts>> {
    let group = options.group.as_ref();
    let endpoint = Endpoint::new(request.id(), engine.devices(), group, options.settings)?;
    let param = endpoint.conn_param();
    endpoint.bring_up(|qp| {
        let qp = bring_up(request.id(), qp)?;
        Ok(request.accept_ready(qp, &param)?)
    })
}

/// Accepts connections, like [`std::net::TcpListener`].
///
/// Handshakes complete in the background; a peer that stalls delays no other. Requests beyond the
/// [backlog](Options::backlog) wait for a place, as with TCP. Dropping the last [clone](Self::try_clone) of
/// the listener ends all connections not yet accepted.
#[derive(Debug)]
pub struct Listener {
    inner: Arc<Inner>,
}

/// State shared by the clones of a listener.
#[derive(Debug)]
struct Inner {
    backlog: Arc<Backlog>,
    key: Key,
    /// `None` once the address is free. Field order: dropped before `engine`.
    id: Mutex<Option<CmId<Listening>>>,
    engine: Arc<Engine>,
    nonblocking: AtomicBool,
    local_addr: SocketAddr,
}

impl Listener {
    /// Listens at an address with the default [`Options`].
    ///
    /// # Errors
    /// As for [`Options::listen`].
    pub fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Options::new().listen(addr)
    }

    /// Takes the next connection. Blocks until there is one, unless [nonblocking](Self::set_nonblocking).
    ///
    /// # Errors
    /// - `WouldBlock`: the listener is nonblocking and has no connection.
    /// - `Interrupted`: a signal interrupted the call.
    /// - `InvalidInput`: the listener has been [shut down](Self::shutdown), before or during the call.
    /// - `NetworkDown`: the device of the listener's address has been removed. Listen again once the address
    ///   is back. A listener at the wildcard address has no device.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        loop {
            if let Some(stream) = self.try_accept()? {
                let peer = stream.connection().peer_addr();
                return Ok((stream, peer));
            }
            if self.inner.nonblocking.load(Relaxed) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let event_fd = &self.inner.backlog.event_fd;
            poll(&mut [PollFd::new(event_fd, PollFlags::IN)], None)?;
        }
    }

    /// Stops listening, for all clones. Established connections can still be accepted; afterwards
    /// [`accept`](Self::accept) fails, even in blocked threads, and [`incoming`](Self::incoming) ends. Later
    /// requests are rejected. Does not block.
    pub fn shutdown(&self) {
        let backlog = &self.inner.backlog;
        backlog.close(&self.inner.engine, Closed::ShutDown);
    }

    /// Creates another handle of the same listener, like [`std::net::TcpListener::try_clone`]. The
    /// nonblocking mode is shared by all clones. Does not block.
    ///
    /// ```
    /// # let _fabric = doctest::lasting_host();
    /// let listener = rsocket::Listener::bind("10.9.0.1:7471")?;
    /// # let connect = || rsocket::Stream::connect("10.9.0.1:7471");
    /// # std::thread::spawn(move || (connect(), connect()));
    /// let other = listener.try_clone()?;
    /// std::thread::spawn(move || other.accept());
    /// listener.accept()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// None at present.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            inner: Arc::clone(&self.inner),
        })
    }

    /// Takes the next connection, if any. An error if there will be none. Does not block.
    pub(crate) fn try_accept(&self) -> io::Result<Option<Stream>> {
        let Inner {
            backlog, engine, ..
        } = &*self.inner;
        // Read before the queue: after the end, no connection is added.
        let closed = backlog.closed();
        match (backlog.take(engine), closed) {
            (Some(connection), _) => {
                let stream = Stream::new(connection, engine, &backlog.options());
                Ok(Some(stream))
            }
            (None, Some(closed)) => Err(closed.error()),
            (None, None) => Ok(None),
        }
    }

    /// Ends all connections not accepted, and frees the address, even with calls in progress in other threads.
    pub(crate) fn end(&self) {
        self.shutdown();
        self.inner.end();
    }

    /// Makes an accepted connection the next one to be accepted. `stream` is its only handle.
    pub(crate) fn put_back(&self, stream: Arc<Stream>) {
        let connection = Arc::clone(stream.connection());
        // So that the drop of the handle ends nothing. The next handle sets the time again.
        connection.set_linger(Duration::ZERO);
        drop(stream);
        self.inner.backlog.put_back(connection);
    }

    /// Readable while a connection is ready to be accepted, or after the end of the listener.
    pub(crate) fn event_fd(&self) -> &Arc<EventFd> {
        &self.inner.backlog.event_fd
    }

    /// Whether [`try_accept`](Self::try_accept) has a connection or an error.
    pub(crate) fn is_ready(&self) -> bool {
        let queues = self.inner.backlog.lock();
        !queues.waiting.is_empty() || queues.closed.is_some()
    }

    /// Sets the options of future connections, except the backlog.
    pub(crate) fn set_options(&self, options: &Options) {
        let own = self.inner.backlog.options.lock();
        let mut own = own.unwrap_or_else(PoisonError::into_inner);
        let backlog = own.backlog;
        *own = options.clone().backlog(backlog);
    }

    /// Returns the counts of refused requests since the listener was created.
    pub fn refusals(&self) -> Refusals {
        self.inner.backlog.lock().refusals
    }

    /// Returns an iterator over accepted connections. Each step blocks as [`accept`](Self::accept) does.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming {
            listener: self,
            is_over: false,
        }
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// None today; a `Result` as in [`std::net`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.inner.local_addr)
    }

    /// Sets whether [`accept`](Self::accept) returns at once. Accepted streams start in blocking mode either
    /// way.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.inner.nonblocking.store(nonblocking, Relaxed);
    }
}

/// Iterator over the connections of a [`Listener`]. Ends when the listener is [shut
/// down](Listener::shutdown), and after the error of a removed device.
#[derive(Debug)]
pub struct Incoming<'l> {
    listener: &'l Listener,
    is_over: bool,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<Stream>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        match self.listener.accept() {
            Ok((stream, _)) => Some(Ok(stream)),
            Err(err) if err.kind() == io::ErrorKind::InvalidInput => None,
            Err(err) => {
                self.is_over = err.kind() == io::ErrorKind::NetworkDown;
                Some(Err(err))
            }
        }
    }
}

impl AsFd for Listener {
    /// Readable while a connection is ready to be accepted, after a shutdown, and after the removal of the device.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.backlog.notify.as_fd()
    }
}

impl Inner {
    /// Ends all connections not accepted, and frees the address.
    fn end(&self) {
        let id = self
            .id
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if id.is_none() {
            return;
        }
        self.engine.forget(self.key);
        drop(id);
        let mut queues = self.backlog.lock();
        let ended = Queues {
            closed: queues.closed,
            refusals: queues.refusals,
            ..Queues::default()
        };
        let ended = std::mem::replace(&mut *queues, ended);
        drop(queues);
        let held = ended.held.iter().map(Request::key);
        for key in ended.half_open.keys().into_iter().chain(held) {
            self.engine.abandon(key);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.end();
    }
}

impl Options {
    /// Listens at an address. Port 0 selects a free port.
    ///
    /// `::` also accepts IPv4 clients, except over iWARP, where Linux rejects them.
    ///
    /// # Errors
    /// - `NotFound`, `ENODEV`: no RDMA device, or none with this address.
    /// - `AddrInUse`: another socket listens at the address.
    /// - `ENOMEM`: the process may not lock the memory of a connection (`RLIMIT_MEMLOCK`). The error names
    ///   the limit.
    pub fn listen(&self, addr: impl ToSocketAddrs) -> io::Result<Listener> {
        let engine = Engine::get()?;
        let mut last = None;
        for addr in addr.to_socket_addrs()? {
            match self.bind_to(&engine, addr) {
                Ok(listener) => return Ok(listener),
                Err(err) => last = Some(err),
            }
        }
        Err(last.unwrap_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "no address to listen at")
        }))
    }

    fn bind_to(&self, engine: &Arc<Engine>, addr: SocketAddr) -> io::Result<Listener> {
        let mut id = engine.channel().create_id()?;
        id.bind(unmapped(addr))?;
        self.check_memory(&id)?;
        self.listen_with(engine, id)
    }

    /// Listens with a bound identifier.
    pub(crate) fn listen_with(&self, engine: &Arc<Engine>, id: CmId<Idle>) -> io::Result<Listener> {
        let event_fd = Arc::new(EventFd::new()?);
        let backlog = Arc::new(Backlog {
            queues: Mutex::default(),
            notify: NotifyFd::of(event_fd.as_fd())?,
            event_fd,
            options: Mutex::new(self.clone()),
            local_addr: id.local_addr(),
        });
        let key = id.key();
        engine.listen(key, &backlog, id.bound_context()?);
        let id = id.listen(self.backlog).map_err(|refused| {
            engine.forget(key);
            refused.error
        })?;
        let inner = Inner {
            local_addr: id.local_addr().unwrap_or_else(unspecified),
            backlog,
            key,
            id: Mutex::new(Some(id)),
            engine: Arc::clone(engine),
            nonblocking: AtomicBool::new(false),
        };
        Ok(Listener {
            inner: Arc::new(inner),
        })
    }

    /// Registers and releases the memory of one connection, on the device of `id` or on any. A listener in a
    /// process without enough lockable memory would otherwise reject every request unnoticed by the program.
    pub(crate) fn check_memory(&self, id: &CmId<Idle>) -> io::Result<()> {
        let contexts = match id.bound_context()? {
            Some(ctx) => vec![ctx],
            None => cm::devices()?,
        };
        let settings = self.settings.clamped(u32::MAX);
        let mut failure = None;
        for ctx in contexts {
            let registered = ctx.alloc_pd().and_then(|pd| {
                let exposed = Exposed::new(&pd, &settings)?;
                Memory::new(&pd, &settings, exposed)
            });
            match registered {
                Ok(_) => return Ok(()),
                Err(err) => failure = Some(err),
            }
        }
        failure.map_or(Ok(()), |err| Err(err.into()))
    }
}
