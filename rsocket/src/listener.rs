//! Listening, and accepting connections.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use cm::{
    CmId, EventChannel, Key,
    phases::{Idle, Listening},
};
use rustix::event::{PollFd, PollFlags, poll};
use verbs::waiting::EventFd;

use crate::{
    backlog::{Backlog, Closed, Refusals, is_exhausted, limited_addr, unspecified},
    engine::Engine,
    memory::{Exposed, send_buffer},
    names::unmapped,
    options::Options,
    stream::Stream,
};

/// Accepts connections, like [`std::net::TcpListener`].
///
/// Handshakes complete in the background; a peer that stalls delays no other. Requests beyond the
/// [backlog](Options::backlog) wait for an entry, as with TCP. Dropping the last [clone](Self::try_clone) of
/// the listener ends all connections not yet accepted.
#[derive(Debug)]
pub struct Listener {
    inner: Arc<ListenerInner>,
}

/// State shared by the clones of a listener.
#[derive(Debug)]
struct ListenerInner {
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
    /// - `PermissionDenied`: the process has other credentials than when it opened the device, as after `setuid(2)`. Drop the
    ///   listener, and listen again.
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
        let ListenerInner {
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

    /// Frees descriptors for a connection that cannot be accepted without. Returns whether another attempt may succeed.
    pub(crate) fn free_descriptors(&self, peer: SocketAddr, error: &io::Error) -> bool {
        let ListenerInner {
            backlog, engine, ..
        } = &*self.inner;
        is_exhausted(error) && backlog.free_descriptors(engine, limited_addr(Some(peer)))
    }

    /// Readable while a connection is ready to be accepted, or after the end of the listener.
    pub(crate) fn event_fd(&self) -> &Arc<EventFd> {
        &self.inner.backlog.event_fd
    }

    /// Whether [`try_accept`](Self::try_accept) has a connection or an error.
    pub(crate) fn is_ready(&self) -> bool {
        self.inner.backlog.is_ready()
    }

    /// Sets the options of future connections, except the backlog.
    pub(crate) fn set_options(&self, options: &Options) {
        self.inner.backlog.set_options(options);
    }

    /// Changes the [backlog](Options::backlog), at most to the maximum of the system (`net.core.somaxconn`), as a second
    /// `listen(2)` of TCP. Connections above a smaller backlog remain.
    pub fn set_backlog(&self, backlog: u32) {
        let ListenerInner {
            backlog: queue,
            engine,
            ..
        } = &*self.inner;
        queue.set_length(backlog.max(1), engine);
    }

    /// Returns the counts of refused requests since the listener was created.
    pub fn refusals(&self) -> Refusals {
        self.inner.backlog.refusals()
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
/// down](Listener::shutdown), and after the error of a removed device or of other credentials.
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
                let ends = [io::ErrorKind::NetworkDown, io::ErrorKind::PermissionDenied];
                self.is_over = ends.contains(&err.kind());
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

impl ListenerInner {
    /// Ends all connections not accepted, and frees the address.
    fn end(&self) {
        let id = self
            .id
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(mut id) = id else {
            return;
        };
        // After a change of credentials, the kernel refuses the destruction on the engine's channel, and would keep the address.
        let channel = self.engine.is_refused().then(EventChannel::new);
        if let Some(Ok(channel)) = &channel {
            // If this fails, the address is free at the end of the process.
            drop(id.migrate(channel));
        }
        self.engine.forget(self.key);
        drop(id);
        self.backlog.end(&self.engine);
    }
}

impl Drop for ListenerInner {
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
    /// - `PermissionDenied`: as for [`Socket::new`](crate::Socket::new).
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
        let backlog = Arc::new(Backlog::new(self.clone(), id.local_addr())?);
        let key = id.key();
        engine.listen(key, &backlog, id.bound_context()?);
        let id = id.listen(backlog.options().backlog).map_err(|refused| {
            engine.forget(key);
            refused.error
        })?;
        let inner = ListenerInner {
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
                Ok((exposed, send_buffer(&pd, &settings)?))
            });
            match registered {
                Ok(_) => return Ok(()),
                Err(err) => failure = Some(err),
            }
        }
        failure.map_or(Ok(()), |err| Err(err.into()))
    }
}
