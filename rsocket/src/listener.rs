//! Listening, and accepting connections.

use std::{
    collections::VecDeque,
    io,
    net::{SocketAddr, ToSocketAddrs},
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

use cm::{
    CmId, ConnectRequest, Key,
    phases::{Connected, Idle, Listening},
};
use verbs::{Context, Rts, fd::NotifyFd};

use crate::{
    admission::{Admission, Decision, Limits},
    connection::{Connection, Ends},
    endpoint::{Endpoint, bring_up},
    engine::Engine,
    options::Options,
    proto::ConnectData,
    stream::Stream,
    waiters::Bell,
    waiting::sleep,
};

fn unspecified() -> SocketAddr {
    SocketAddr::from(([0; 4], 0))
}

/// A connection that was accepted, and whose peer has not completed the handshake.
///
/// It holds what the reply has to name: the queue pair, and the memory that the peer may write to.
#[derive(Debug)]
pub(crate) struct HalfOpen {
    endpoint: Endpoint<Rts>,
    peer: ConnectData,
    ends: Ends,
    /// When it is given up.
    pub(crate) deadline: Instant,
}

impl HalfOpen {
    pub(crate) fn context(&self) -> &Context {
        self.endpoint.qp.pd().context()
    }
}

/// Counts of connection requests that a [`Listener`] has not turned into connections.
///
/// Peers are not authenticated: a count that grows without a fault of the network is a sign of a flood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusals {
    /// Requests rejected because the [backlog](Options::backlog) was full, or their address had as many half-open
    /// connections as [`Options::half_open_per_address`] permits.
    pub rejected: u64,
    /// Half-open connections ended to serve a request of another address, or a later one of the same.
    pub displaced: u64,
    /// Half-open connections ended after [`Options::handshake_timeout`].
    pub timed_out: u64,
    /// Requests rejected because their private data are not of the protocol.
    pub invalid: u64,
    /// Connections that ended during the handshake: by their peer, or because memory or a resource of the device was
    /// exhausted.
    pub failed: u64,
}

/// The part of a listener that the engine fills.
#[derive(Debug)]
pub(crate) struct Backlog {
    queues: Mutex<Queues>,
    bell: Bell,
    /// Handed out in place of the bell, which a program could read or make blocking.
    notify: NotifyFd,
    /// What connections get that come from now on.
    options: Mutex<Options>,
}

#[derive(Debug, Default)]
struct Queues {
    half_open: Admission<Key>,
    /// Connections that can be accepted.
    waiting: VecDeque<Arc<Connection>>,
    refusals: Refusals,
}

impl Backlog {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts the connection that a peer has requested, or rejects it. The connection is
    /// [established](Self::established) when the peer has completed the handshake.
    pub(crate) fn requested(
        &self,
        engine: &Engine,
        request: ConnectRequest,
    ) -> io::Result<HalfOpen> {
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
        let id = request.id();
        let ends = Ends {
            local_addr: id.local_addr().unwrap_or_else(unspecified),
            peer_addr: id.peer_addr().unwrap_or_else(unspecified),
            key: id.key(),
        };
        if !self.make_room(engine, &ends, &options, now) {
            request.reject(&[])?;
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let key = ends.key;
        let accepted = accept(engine, request, &options).inspect_err(|_| self.failed(key));
        Ok(HalfOpen {
            endpoint: accepted?,
            peer,
            ends,
            deadline: now + options.handshake_timeout,
        })
    }

    /// Takes a place for a request, if there is one for it.
    fn make_room(&self, engine: &Engine, ends: &Ends, options: &Options, now: Instant) -> bool {
        let limits = Limits::new(options.backlog, options.half_open_per_address);
        let addr = ends.peer_addr.ip().to_canonical();
        let mut queues = self.lock();
        let waiting = queues.waiting.len();
        let displaced = match queues.half_open.decide(addr, now, waiting, limits) {
            Decision::Serve => None,
            Decision::ServeInsteadOf(key) => {
                queues.refusals.displaced += 1;
                queues.half_open.end(key);
                Some(key)
            }
            Decision::Reject => {
                queues.refusals.rejected += 1;
                return false;
            }
        };
        queues.half_open.begin(ends.key, addr, now);
        drop(queues);
        if let Some(key) = displaced {
            engine.abandon(key);
        }
        true
    }

    /// Ends the handshake of a connection that has failed.
    pub(crate) fn failed(&self, key: Key) {
        let mut queues = self.lock();
        queues.refusals.failed += u64::from(queues.half_open.end(key));
    }

    /// Ends the handshake of a connection whose deadline has come.
    pub(crate) fn timed_out(&self, key: Key) {
        let mut queues = self.lock();
        queues.refusals.timed_out += u64::from(queues.half_open.end(key));
    }

    /// Makes the connection of a peer that has completed the handshake. It is to be [offered](Self::offer).
    pub(crate) fn established(
        &self,
        engine: &Arc<Engine>,
        half_open: HalfOpen,
        id: CmId<Connected>,
    ) -> io::Result<Arc<Connection>> {
        let HalfOpen {
            endpoint,
            peer,
            ends,
            deadline: _,
        } = half_open;
        let key = ends.key;
        let connection = Connection::new(endpoint, |qp| Ok((qp, id)), &peer, ends, engine);
        Ok(Arc::new(connection.inspect_err(|_| self.failed(key))?))
    }

    /// Lets the program accept a connection.
    pub(crate) fn offer(&self, key: Key, connection: Arc<Connection>) {
        let mut queues = self.lock();
        queues.half_open.end(key);
        queues.waiting.push_back(connection);
        // Before the connection can be taken, which clears the bell.
        self.bell.ring();
    }

    fn options(&self) -> Options {
        let options = self.options.lock();
        options.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn take(&self) -> Option<Arc<Connection>> {
        let mut queues = self.lock();
        let taken = queues.waiting.pop_front();
        if queues.waiting.is_empty() {
            self.bell.clear();
        }
        taken
    }
}

/// Makes an endpoint for a request, and accepts. The request is rejected if that fails.
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

/// Takes connections, in the manner of [`std::net::TcpListener`].
///
/// Connections are made in the background; a peer that does not finish holds nobody up. Dropping
/// the listener ends those that have not been accepted.
#[derive(Debug)]
pub struct Listener {
    backlog: Arc<Backlog>,
    // Dropped before `engine` forgets it.
    id: CmId<Listening>,
    engine: Arc<Engine>,
    nonblocking: AtomicBool,
    local_addr: SocketAddr,
}

impl Listener {
    /// Listens at an address, with the default [`Options`].
    ///
    /// # Errors
    /// As for [`Options::bind`].
    pub fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Options::new().bind(addr)
    }

    /// Takes the next connection, waiting for one unless
    /// [nonblocking](Self::set_nonblocking).
    ///
    /// # Errors
    /// - `WouldBlock`: there is none, and it does not wait.
    /// - `Interrupted`: a signal came.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        loop {
            if let Some(stream) = self.try_accept() {
                let peer = stream.peer_addr();
                return Ok((stream, peer));
            }
            if self.nonblocking.load(Relaxed) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            sleep([self.backlog.bell.as_fd()], None)?;
        }
    }

    /// Takes the next connection, if there is one.
    pub(crate) fn try_accept(&self) -> Option<Stream> {
        let connection = self.backlog.take()?;
        Some(Stream::new(
            connection,
            &self.engine,
            &self.backlog.options(),
        ))
    }

    /// Readable while there is a connection to accept.
    pub(crate) fn bell(&self) -> &Bell {
        &self.backlog.bell
    }

    /// Whether there is a connection to accept.
    pub(crate) fn is_ready(&self) -> bool {
        !self.backlog.lock().waiting.is_empty()
    }

    /// Says what connections get that come from now on.
    pub(crate) fn set_options(&self, options: &Options) {
        let own = self.backlog.options.lock();
        let mut own = own.unwrap_or_else(PoisonError::into_inner);
        let backlog = own.backlog;
        *own = options.clone().backlog(backlog);
    }

    /// Returns how many requests have been refused, and why, since the listener was created.
    pub fn refusals(&self) -> Refusals {
        self.backlog.lock().refusals
    }

    /// The connections that come, one after the other.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// The address it listens at.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Whether [`accept`](Self::accept) returns at once. Streams that it gives block in any case.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Relaxed);
    }
}

/// The connections that come to a [`Listener`]. It has no end.
#[derive(Debug)]
pub struct Incoming<'l> {
    listener: &'l Listener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<Stream>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }
}

impl AsFd for Listener {
    /// Readable when there is a connection to accept.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.backlog.notify.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.engine.forget(self.id.key());
        let queues = std::mem::take(&mut *self.backlog.lock());
        for key in queues.half_open.keys() {
            self.engine.abandon(key);
        }
    }
}

impl Options {
    /// Listens at an address. Port 0 takes a free port.
    ///
    /// At `::`, all addresses of this host, it takes clients of IPv4, too; but not over iWARP, where Linux
    /// turns them away.
    ///
    /// # Errors
    /// - `NotFound`, `ENODEV`: there is no RDMA device, or none with that address.
    /// - `AddrInUse`: somebody else listens there.
    pub fn bind(&self, addr: impl ToSocketAddrs) -> io::Result<Listener> {
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
        id.bind(addr)?;
        self.listen_with(engine, id)
    }

    /// Listens with an identifier that is bound.
    pub(crate) fn listen_with(&self, engine: &Arc<Engine>, id: CmId<Idle>) -> io::Result<Listener> {
        let bell = Bell::new()?;
        let backlog = Arc::new(Backlog {
            queues: Mutex::default(),
            notify: NotifyFd::of(bell.as_fd())?,
            bell,
            options: Mutex::new(self.clone()),
        });
        let key = id.key();
        engine.listen(key, &backlog);
        let id = id.listen(self.backlog).map_err(|refused| {
            engine.forget(key);
            refused.error
        })?;
        Ok(Listener {
            local_addr: id.local_addr().unwrap_or_else(unspecified),
            backlog,
            id,
            engine: Arc::clone(engine),
            nonblocking: AtomicBool::new(false),
        })
    }
}
