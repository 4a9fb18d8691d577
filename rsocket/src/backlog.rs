//! The backlog of a listener: requests held back, half-open connections, and connections ready to be accepted.

use std::{
    collections::VecDeque,
    io, mem,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use cm::{CmId, ConnectRequest, Key, phases::Connected};
use rustix::io::Errno;
use verbs::{Context, Init, Rts, fd::NotifyFd, waiting::EventFd};

use crate::{
    admission::{Admission, Decision, DeferredRequest, DeferredRequests, Limits, max_backlog},
    connection::{Connection, ConnectionAddrs},
    endpoint::{Endpoint, bring_up},
    engine::Engine,
    errno::errno,
    memory::HalfOpenShare,
    names::{mapped, scoped},
    options::Options,
    proto::ConnectData,
    trace::{StreamSpan, note},
};

/// Maximum number of half-open connections displaced for one request, or one established connection, that lacks
/// memory or an object of the device. One frees as much as a request with the same options takes.
const MAX_DISPLACED: usize = 2;

/// Maximum number of descriptors that a program of C needs for an accepted connection: two `epoll` instances, an eventfd, a mirror
/// of two, and the program's. The completion channel exists.
const ACCEPTED_DESCRIPTORS: u32 = 6;

pub(crate) fn unspecified() -> SocketAddr {
    SocketAddr::from(([0; 4], 0))
}

/// Address of a peer for the limits of each address.
pub(crate) fn limited_addr(peer: Option<SocketAddr>) -> IpAddr {
    peer.unwrap_or_else(unspecified).ip().to_canonical()
}

/// Whether memory, descriptors or objects of the device are used up, which the end of a connection frees.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    let errors = [
        Errno::NOMEM,
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOSPC,
        Errno::AGAIN,
        Errno::NOBUFS,
    ];
    let errno = errno(error);
    errors.iter().any(|error| error.raw_os_error() == errno)
}

/// An accepted connection whose peer has not completed the handshake.
///
/// Owns the resources named in the reply: the queue pair, and the memory exposed to the peer.
#[derive(Debug)]
pub(crate) struct HalfOpen {
    endpoint: Endpoint<Rts>,
    peer: ConnectData,
    addrs: ConnectionAddrs,
    /// The receive buffer grows when the handshake is complete.
    is_reduced: bool,
    _share: HalfOpenShare,
    /// When the connection is dropped unless the handshake has completed.
    pub(crate) deadline: Option<Instant>,
}

impl HalfOpen {
    pub(crate) fn context(&self) -> &Context {
        self.endpoint.qp.pd().context()
    }
}

/// Counts of connection requests that a [`Listener`](crate::Listener) has not turned into connections.
///
/// Peers are not authenticated: a count growing on a healthy network indicates a flood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusals {
    /// Requests rejected because too many waited for an entry of the [backlog](Options::backlog), or the
    /// listener was [shut down](crate::Listener::shutdown).
    pub rejected: u64,
    /// Half-open connections ended in favor of a request from another address, or a later one from the same: in a
    /// full backlog, or without memory, descriptors or objects of the device for another one.
    pub displaced: u64,
    /// Half-open connections ended after [`Options::handshake_timeout`], and requests held back for 90
    /// seconds.
    pub timed_out: u64,
    /// Requests rejected because of private data outside the protocol.
    pub invalid: u64,
    /// Connections ended during the handshake: by the peer, or for lack of memory or an object of the device that no
    /// half-open connection could be displaced for.
    pub failed: u64,
}

/// State of a listener filled by the engine.
#[derive(Debug)]
pub(crate) struct Backlog {
    queues: Mutex<Queues>,
    pub(crate) event_fd: Arc<EventFd>,
    /// Descriptor for the program, readable with the eventfd. Reading the eventfd itself would lose a wake-up.
    pub(crate) notify: NotifyFd,
    /// Options of future connections.
    options: Mutex<Options>,
    /// Local address. Connections have addresses of the same family.
    local_addr: Option<SocketAddr>,
}

#[derive(Debug, Default)]
struct Queues {
    half_open: Admission<Key>,
    /// Requests waiting for an entry of the backlog.
    deferred: DeferredRequests<Request>,
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
    /// The process has other credentials than when it opened the device.
    Refused,
}

/// The error of calls that the kernel refuses after a change of credentials.
pub(crate) fn refused() -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        "the process has other credentials than when it opened the device, as after `setuid`",
    )
}

impl Closed {
    pub(crate) fn error(self) -> io::Error {
        let (kind, reason) = match self {
            Self::ShutDown => (
                io::ErrorKind::InvalidInput,
                "the listener has been shut down",
            ),
            Self::DeviceRemoved => (
                io::ErrorKind::NetworkDown,
                "the device of the listener's address has been removed",
            ),
            Self::Refused => return refused(),
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
        limited_addr(self.request.id().peer_addr())
    }
}

/// Outcome of a request that was not rejected.
#[derive(Debug)]
pub(crate) enum RequestOutcome {
    /// Accepted; the handshake is in progress.
    HalfOpen(Box<HalfOpen>),
    /// Held back.
    Deferred,
}

impl Backlog {
    /// Creates the backlog of a listener with a local address, at most of the maximum length.
    pub(crate) fn new(options: Options, local_addr: Option<SocketAddr>) -> io::Result<Self> {
        let options = capped(options);
        let event_fd = Arc::new(EventFd::new()?);
        Ok(Self {
            queues: Mutex::default(),
            notify: NotifyFd::of(event_fd.as_fd())?,
            event_fd,
            options: Mutex::new(options),
            local_addr,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts a connection request, or holds the request back until the backlog has an entry.
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
        // Deferred requests come first; the engine serves them before sleeping.
        if self.can_serve(addr, &options, now) {
            return self.serve(engine, DeferredRequest::new(addr, now, request), &options);
        }
        let mut queues = self.lock();
        let refused = if queues.closed.is_some() {
            Some(request)
        } else {
            queues.deferred.defer(addr, now, request)
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
        Ok(RequestOutcome::Deferred)
    }

    /// Whether a request can be served at once, with a free entry and without deferred requests before.
    fn can_serve(&self, addr: IpAddr, options: &Options, now: Instant) -> bool {
        let queues = self.lock();
        let limits = Limits::new(options.backlog, options.half_open_per_address);
        let decide = || {
            let waiting = queues.waiting.len();
            queues.half_open.decide(addr, now, waiting, limits)
        };
        queues.closed.is_none() && queues.deferred.is_empty() && decide() == Decision::Serve
    }

    /// Accepts the next servable deferred request, which may displace a half-open connection. Returns its key and the
    /// outcome; `None` without a servable request.
    pub(crate) fn serve_deferred(
        &self,
        engine: &Engine,
    ) -> Option<(Key, io::Result<RequestOutcome>)> {
        let options = self.options();
        let now = Instant::now();
        let limits = Limits::new(options.backlog, options.half_open_per_address);
        let mut queues = self.lock();
        let Queues {
            half_open,
            deferred,
            waiting,
            ..
        } = &mut *queues;
        let decide = |addr| half_open.decide(addr, now, waiting.len(), limits);
        let request = deferred.take(
            |addr| half_open.count(addr),
            |addr| decide(addr) != Decision::Reject,
        )?;
        let decision = decide(request.addr);
        drop(queues);
        self.displace(engine, decision);
        Some((request.request.key(), self.serve(engine, request, &options)))
    }

    /// Ends the half-open connection named by a decision. Returns whether there was one.
    fn displace(&self, engine: &Engine, decision: Decision<Key>) -> bool {
        let Decision::ServeInsteadOf(displaced) = decision else {
            return false;
        };
        let mut queues = self.lock();
        queues.refusals.displaced += 1;
        queues.half_open.end(displaced);
        drop(queues);
        engine.abandon(displaced);
        true
    }

    /// Allocates for the peer at an address. Without memory, descriptors or objects of the device, repeats the
    /// attempt after the end of a half-open connection, chosen as in a full backlog, or else of one ended by `displace`.
    fn allocate<T>(
        &self,
        engine: &Engine,
        addr: IpAddr,
        displace: impl Fn() -> bool,
        allocate: impl Fn() -> io::Result<T>,
    ) -> io::Result<T> {
        for _ in 0..MAX_DISPLACED {
            match allocate() {
                Err(err) if is_exhausted(&err) => {
                    if !self.displace_exhausted(engine, addr) && !displace() {
                        return Err(err);
                    }
                }
                result => return result,
            }
        }
        allocate()
    }

    /// Ends a half-open connection in favor of the peer at an address, without memory, descriptors or objects of the device.
    /// Returns whether there was one.
    fn displace_exhausted(&self, engine: &Engine, addr: IpAddr) -> bool {
        let decision = self.lock().half_open.decide_exhausted(addr, Instant::now());
        self.displace(engine, decision)
    }

    /// Frees descriptors of half-open connections, or of dropped streams, for a connection that the program accepts. Returns
    /// whether there were any.
    pub(crate) fn free_descriptors(&self, engine: &Engine, addr: IpAddr) -> bool {
        let displace = || self.displace_exhausted(engine, addr) || engine.displace_dropped(addr);
        (0..ACCEPTED_DESCRIPTORS).filter(|_| displace()).count() > 0
    }

    /// Drops the expired deferred requests. Returns their keys, and whether others remain.
    pub(crate) fn expire_deferred(&self) -> (Vec<Key>, bool) {
        let mut queues = self.lock();
        let expired = queues.deferred.expired(Instant::now());
        queues.refusals.timed_out += expired.len() as u64;
        let more_remain = !queues.deferred.is_empty();
        drop(queues);
        // Dropping the requests notifies their peers.
        (expired.iter().map(Request::key).collect(), more_remain)
    }

    /// Drops a deferred request withdrawn by its peer.
    pub(crate) fn withdrawn(&self, key: Key) {
        let is_withdrawn = |entry: &DeferredRequest<Request>| entry.request.key() == key;
        let withdrawn = self.lock().deferred.remove(is_withdrawn);
        drop(withdrawn);
    }

    /// Accepts a request, or holds the request back without the memory or an object of the device for it.
    fn serve(
        &self,
        engine: &Engine,
        request: DeferredRequest<Request>,
        options: &Options,
    ) -> io::Result<RequestOutcome> {
        let id = request.request.request.id();
        let settings = options.settings.half_open();
        let addr = request.addr;
        // The share is that of half-open connections: the end of others frees nothing of it.
        let take_share = || HalfOpenShare::take(&settings);
        let share = self.allocate(engine, addr, || false, take_share);
        let allocated = share.and_then(|share| {
            let group = options.group.as_ref();
            let new = || Endpoint::new(id, engine.devices(), group, settings);
            let endpoint = self.allocate(engine, addr, || engine.displace_dropped(addr), new)?;
            Ok((endpoint, share))
        });
        let span = StreamSpan::new(id.peer_addr().unwrap_or_else(unspecified));
        let mut queues = self.lock();
        match allocated {
            Err(err) if queues.closed.is_none() && is_exhausted(&err) => {
                note!(warn, span, error = %err, "held back");
                queues.deferred.put_back(request);
                Ok(RequestOutcome::Deferred)
            }
            Err(err) => {
                note!(warn, span, error = %err, "not accepted");
                queues.refusals.failed += 1;
                Err(err)
            }
            Ok((endpoint, share)) => {
                let now = Instant::now();
                queues
                    .half_open
                    .begin(request.request.key(), request.addr, now);
                drop(queues);
                let mut begun = Begun(Some(self), request.request.key());
                let is_reduced = settings != options.settings;
                let deadline = now.checked_add(options.handshake_timeout);
                let (addrs, peer) = (self.addrs(&request.request, span), request.request.peer);
                note!(debug, addrs.span, "accepting");
                let accepted = accept(request.request.request, endpoint).inspect_err(|_error| {
                    note!(warn, addrs.span, error = %_error, "not accepted");
                });
                let endpoint = accepted?;
                begun.0 = None;
                Ok(RequestOutcome::HalfOpen(Box::new(HalfOpen {
                    endpoint,
                    peer,
                    addrs,
                    is_reduced,
                    _share: share,
                    deadline,
                })))
            }
        }
    }

    /// Returns the addresses of a request's connection.
    fn addrs(&self, request: &Request, span: StreamSpan) -> ConnectionAddrs {
        let id = request.request.id();
        let name = |addr: Option<SocketAddr>, near| {
            let addr = scoped(addr.unwrap_or_else(unspecified), near);
            match self.local_addr {
                Some(SocketAddr::V6(_)) => mapped(addr),
                _ => addr,
            }
        };
        let local_addr = name(id.local_addr(), self.local_addr);
        ConnectionAddrs {
            local_addr,
            peer_addr: name(id.peer_addr(), Some(local_addr)),
            key: id.key(),
            span,
        }
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
            is_reduced,
            _share,
            deadline: _,
        } = half_open;
        let key = addrs.key;
        // No longer half-open, so that the connection does not displace itself.
        self.lock().half_open.end(key);
        let addr = limited_addr(Some(addrs.peer_addr));
        let displace = || engine.displace_dropped(addr);
        let send_buffer = self.allocate(engine, addr, displace, || Ok(endpoint.send_buffer()?));
        let connection = send_buffer.and_then(|send_buffer| {
            let establish = |qp| Ok((qp, id));
            Connection::new(endpoint, send_buffer, establish, &peer, addrs, engine)
        });
        let connection = connection.inspect_err(|_| self.lock().refusals.failed += 1)?;
        if is_reduced {
            connection.grow_receive();
        }
        Ok(Arc::new(connection))
    }

    /// Queues an established connection for `accept`.
    pub(crate) fn offer(&self, connection: Arc<Connection>) {
        let mut queues = self.lock();
        queues.waiting.push_back(connection);
        // Notified under the lock: taking the connection drains the eventfd.
        self.event_fd.notify();
    }

    /// Returns a taken connection to the front of the queue.
    pub(crate) fn put_back(&self, connection: Arc<Connection>) {
        let mut queues = self.lock();
        queues.waiting.push_front(connection);
        self.event_fd.notify();
    }

    /// Stops listening. Queued connections can still be accepted; deferred requests are dropped.
    pub(crate) fn close(&self, engine: &Engine, cause: Closed) {
        let mut queues = self.lock();
        queues.closed = Some(cause);
        let deferred = mem::take(&mut queues.deferred);
        self.event_fd.notify();
        drop(queues);
        for request in deferred.iter() {
            engine.abandon(request.key());
        }
    }

    /// Ends all connections not accepted.
    pub(crate) fn end(&self, engine: &Engine) {
        let mut queues = self.lock();
        let ended = Queues {
            closed: queues.closed,
            refusals: queues.refusals,
            ..Queues::default()
        };
        let ended = mem::replace(&mut *queues, ended);
        drop(queues);
        let deferred_keys = ended.deferred.iter().map(Request::key);
        for key in ended.half_open.keys().into_iter().chain(deferred_keys) {
            engine.abandon(key);
        }
    }

    pub(crate) fn closed(&self) -> Option<Closed> {
        self.lock().closed
    }

    /// Whether a connection can be taken, or none will follow.
    pub(crate) fn is_ready(&self) -> bool {
        let queues = self.lock();
        !queues.waiting.is_empty() || queues.closed.is_some()
    }

    /// Returns the counts of refused requests.
    pub(crate) fn refusals(&self) -> Refusals {
        self.lock().refusals
    }

    /// Returns the options of future connections.
    pub(crate) fn options(&self) -> Options {
        let options = self.options.lock();
        options.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the options of future connections, except the backlog.
    pub(crate) fn set_options(&self, options: &Options) {
        let current = self.options.lock();
        let mut current = current.unwrap_or_else(PoisonError::into_inner);
        let backlog = current.backlog;
        *current = options.clone().backlog(backlog);
    }

    /// Changes the length, at most to the maximum. Connections above a smaller length stay; a larger one serves deferred
    /// requests.
    pub(crate) fn set_length(&self, length: u32, engine: &Engine) {
        let options = self.options.lock();
        let mut options = options.unwrap_or_else(PoisonError::into_inner);
        *options = capped(options.clone().backlog(length));
        drop(options);
        if !self.lock().deferred.is_empty() {
            engine.wake_for_deferred();
        }
    }

    /// Takes the next connection. The freed entry goes to a deferred request.
    pub(crate) fn take(&self, engine: &Engine) -> Option<Arc<Connection>> {
        let mut queues = self.lock();
        let connection = queues.waiting.pop_front();
        if queues.waiting.is_empty() && queues.closed.is_none() {
            self.event_fd.drain();
        }
        if connection.is_some() && !queues.deferred.is_empty() {
            engine.wake_for_deferred();
        }
        connection
    }
}

/// A half-open connection whose acceptance is in progress. Dropped after a failure or in a panic, it is counted as failed.
struct Begun<'b>(Option<&'b Backlog>, Key);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if let Some(backlog) = self.0 {
            backlog.failed(self.1);
        }
    }
}

/// Options with a backlog of at most the maximum length.
fn capped(options: Options) -> Options {
    let length = options.backlog.min(max_backlog());
    options.backlog(length)
}

/// Accepts a request with an endpoint.
fn accept(request: ConnectRequest, endpoint: Endpoint<Init>) -> io::Result<Endpoint<Rts>> {
    let param = endpoint.conn_param();
    endpoint.bring_up(|qp| {
        let qp = bring_up(request.id(), qp)?;
        Ok(request.accept_ready(qp, &param)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backlog_is_capped_as_for_tcp() {
        let length = |backlog| {
            let options = Options::new().backlog(backlog);
            Backlog::new(options, None).unwrap().options().backlog
        };
        let sysctl = std::fs::read_to_string("/proc/sys/net/core/somaxconn");
        let max: u32 = sysctl.unwrap().trim().parse().unwrap();
        assert_eq!(length(u32::MAX), max);
        assert_eq!((length(1), length(max)), (1, max));
    }

    #[test]
    fn lack_of_memory_descriptors_and_objects_is_exhaustion() {
        let of = |errno: Errno| is_exhausted(&errno.into());
        assert!(of(Errno::NOMEM) && of(Errno::MFILE) && of(Errno::AGAIN));
        assert!(!of(Errno::INVAL) && !of(Errno::NODEV) && !of(Errno::TIMEDOUT));
    }
}
