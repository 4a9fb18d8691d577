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
};

use cm::{
    CmId, ConnectRequest,
    phases::{Idle, Listening},
};
use verbs::fd::NotifyFd;

use crate::{
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

/// The part of a listener that the engine fills.
#[derive(Debug)]
pub(crate) struct Backlog {
    waiting: Mutex<VecDeque<(Arc<Connection>, Place)>>,
    /// As many handles of it as there are connections that have not been accepted.
    places: Place,
    bell: Bell,
    /// Handed out in place of the bell, which a program could read or make blocking.
    notify: NotifyFd,
    /// What connections get that come from now on.
    options: Mutex<Options>,
}

/// The place of one connection among those that have not been accepted.
pub(crate) type Place = Arc<()>;

impl Backlog {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(Arc<Connection>, Place)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A peer wants to connect. Returns the connection to be, which is offered when it is
    /// established, and its place; or rejects it.
    pub(crate) fn requested(
        &self,
        engine: &Arc<Engine>,
        request: ConnectRequest,
    ) -> io::Result<(Arc<Connection>, Place)> {
        let place = Arc::clone(&self.places);
        let taken = Arc::strong_count(&self.places) - 1;
        let options = self.options();
        if u32::try_from(taken).unwrap_or(u32::MAX) > options.backlog.max(1) {
            request.reject(&[])?;
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let peer = match ConnectData::decode(&request.param().private_data) {
            Ok(peer) => peer,
            Err(err) => {
                request.reject(&[])?;
                return Err(io::Error::new(io::ErrorKind::InvalidData, err));
            }
        };
        let domain = engine.domains().of(&request.id().context()?)?;
        let endpoint = Endpoint::new(request.id(), &domain, options.settings)?;
        let param = endpoint.conn_param();
        let id = request.id();
        let ends = Ends {
            local_addr: id.local_addr().unwrap_or_else(unspecified),
            peer_addr: id.peer_addr().unwrap_or_else(unspecified),
            key: id.key(),
        };
        let up = |qp| {
            let qp = bring_up(request.id(), qp)?;
            Ok((request.accept_ready(qp, &param)?, None))
        };
        let connection = Connection::new(endpoint, up, &peer, ends, engine)?;
        Ok((Arc::new(connection), place))
    }

    /// A connection is established.
    pub(crate) fn offer(&self, connection: Arc<Connection>, place: Place) {
        let mut waiting = self.lock();
        waiting.push_back((connection, place));
        // Before anybody can take it: that clears the bell.
        self.bell.ring();
    }

    fn options(&self) -> Options {
        let options = self.options.lock();
        options.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn take(&self) -> Option<Arc<Connection>> {
        let mut waiting = self.lock();
        let taken = waiting.pop_front();
        if waiting.is_empty() {
            self.bell.clear();
        }
        taken.map(|(connection, _)| connection)
    }
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
        !self.backlog.lock().is_empty()
    }

    /// Says what connections get that come from now on.
    pub(crate) fn set_options(&self, options: &Options) {
        let own = self.backlog.options.lock();
        let mut own = own.unwrap_or_else(PoisonError::into_inner);
        let backlog = own.backlog;
        *own = options.clone().backlog(backlog);
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
        self.backlog.lock().clear();
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
            waiting: Mutex::default(),
            places: Place::default(),
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
