//! Connection attempts: the event-driven steps of the active side.

use std::{
    fmt, io,
    net::SocketAddr,
    os::fd::AsFd,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use cm::{
    CmId, ConnectFailure, ConnectResponse, Key, PathRecord,
    phases::{AddrResolved, Idle, RouteResolved},
};
use verbs::{Context, Init, fd::wait_interruptible, waiting::EventFd};

use crate::{
    backlog::refused,
    connection::{Connection, ConnectionAddrs},
    device::ProtectionGroup,
    endpoint::{Endpoint, bring_up},
    engine::Engine,
    names::{scoped, unmapped},
    options::Options,
    proto::{BadConnectData, ConnectData, stream::Settings},
    trace::{StreamSpan, note},
};

/// Timeout of the first resolution attempt. Each later attempt doubles the timeout.
const INITIAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of retries of a timed-out resolution for nonblocking connects.
pub(crate) const BACKGROUND_RETRIES: u32 = 6;

/// Returns the timeout of a resolution attempt after `timeouts` timed-out ones.
fn timeout_after(timeouts: u32) -> Duration {
    INITIAL_TIMEOUT * 2_u32.saturating_pow(timeouts)
}

/// Returns the error of a connection attempt past its timeout.
pub(crate) fn timed_out(timeout: Duration) -> io::Error {
    let reason = format!("there was no connection within the timeout of {timeout:?}");
    io::Error::new(io::ErrorKind::TimedOut, reason)
}

/// Called once at the failure of an attempt, by a thread of this crate.
pub(crate) struct FailureHook(Box<dyn FnOnce() + Send>);

impl FailureHook {
    pub(crate) fn new(failed: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(failed))
    }
}

impl fmt::Debug for FailureHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FailureHook")
    }
}

/// A connection attempt.
#[derive(Debug)]
pub(crate) struct Connecting {
    state: Mutex<ConnectingState>,
    /// The failure is kept, and this function called.
    hook: Mutex<Option<FailureHook>>,
    /// Notified at the end of the attempt, for callers waiting on a descriptor.
    event_fd: Arc<EventFd>,
    plan: Plan,
    key: Key,
    span: StreamSpan,
    engine: Weak<Engine>,
}

/// Destination and parameters of a connection attempt.
#[derive(Debug)]
struct Plan {
    settings: Settings,
    group: Option<ProtectionGroup>,
    /// Route set by the program; resolved if empty.
    route: Vec<PathRecord>,
    source: Option<SocketAddr>,
    peer: SocketAddr,
    /// Maximum number of retries of a timed-out resolution.
    retries: u32,
}

#[derive(Debug)]
enum ConnectingState {
    /// In progress, after `timeouts` timed-out resolutions. The endpoint exists once the device is known.
    Open {
        timeouts: u32,
        endpoint: Option<Box<Endpoint<Init>>>,
    },
    /// Failed; in progress for callers until [`Connecting::release`].
    Kept(io::Error),
    Done(io::Result<Arc<Connection>>),
    /// The caller has taken the result.
    Taken,
}

impl Connecting {
    /// Starts a connection attempt.
    pub(crate) fn start(
        engine: &Arc<Engine>,
        options: &Options,
        peer: SocketAddr,
    ) -> io::Result<Arc<Self>> {
        let span = StreamSpan::new(peer);
        let id = span.run(|| engine.channel().create_id())?;
        let plan = Plan {
            settings: options.settings,
            group: options.group.clone(),
            route: Vec::new(),
            source: options.source,
            peer,
            retries: 0,
        };
        Self::begin(engine, id, plan, span, None)
    }

    /// Starts a connection attempt with an identifier, bound or unbound.
    pub(crate) fn start_with(
        engine: &Arc<Engine>,
        id: CmId<Idle>,
        peer: SocketAddr,
        settings: Settings,
        retries: u32,
        route: Vec<PathRecord>,
        hook: Option<FailureHook>,
    ) -> io::Result<Arc<Self>> {
        let plan = Plan {
            settings,
            group: None,
            route,
            source: None,
            peer,
            retries,
        };
        Self::begin(engine, id, plan, StreamSpan::new(peer), hook)
    }

    fn begin(
        engine: &Arc<Engine>,
        id: CmId<Idle>,
        mut plan: Plan,
        span: StreamSpan,
        hook: Option<FailureHook>,
    ) -> io::Result<Arc<Self>> {
        plan.peer = unmapped(plan.peer);
        plan.source = plan.source.map(unmapped);
        note!(debug, span, "connecting");
        let key = id.key();
        let this = Arc::new(Self {
            state: Mutex::new(ConnectingState::Open {
                timeouts: 0,
                endpoint: None,
            }),
            event_fd: Arc::new(EventFd::new()?),
            plan,
            key,
            span,
            engine: Arc::downgrade(engine),
            hook: Mutex::new(hook),
        });
        engine.register_attempt(key, &this);
        this.resolve_addr(id)?;
        Ok(this)
    }

    /// Deregisters the attempt from the engine. An attempt in progress ends.
    fn forget(&self) {
        if let Some(engine) = self.engine.upgrade() {
            engine.forget(self.key);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ConnectingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn timeout(&self) -> Duration {
        match &*self.lock() {
            ConnectingState::Open { timeouts, .. } => timeout_after(*timeouts),
            ConnectingState::Kept(_) | ConnectingState::Done(_) | ConnectingState::Taken => {
                INITIAL_TIMEOUT
            }
        }
    }

    fn resolve_addr(&self, id: CmId<Idle>) -> io::Result<()> {
        let timeout = self.timeout();
        id.resolve_addr(self.plan.source, self.plan.peer, timeout)
            .map_err(|refused| refused.error.into())
    }

    /// Whether to retry a failed step; counts the timeout.
    fn try_again(&self, error: &verbs::Error) -> bool {
        match &mut *self.lock() {
            ConnectingState::Open { timeouts, .. }
                if error.kind() == io::ErrorKind::TimedOut && *timeouts < self.plan.retries =>
            {
                *timeouts += 1;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn addr_error(&self, id: CmId<Idle>, error: verbs::Error) {
        if self.try_again(&error) {
            note!(debug, self.span, "resolving the address again");
            if let Err(error) = self.resolve_addr(id) {
                self.finish(Err(error));
            }
        } else {
            self.finish(Err(error.into()));
        }
    }

    pub(crate) fn addr_resolved(&self, id: CmId<AddrResolved>) {
        let begun = if self.plan.route.is_empty() {
            id.resolve_route(self.timeout())
        } else {
            id.set_ib_path(&self.plan.route)
        };
        if let Err(refused) = begun {
            self.finish(Err(refused.error.into()));
        }
    }

    pub(crate) fn route_error(&self, id: CmId<AddrResolved>, error: verbs::Error) {
        if self.try_again(&error) {
            note!(debug, self.span, "resolving the route again");
            self.addr_resolved(id);
        } else {
            self.finish(Err(error.into()));
        }
    }

    pub(crate) fn route_resolved(&self, engine: &Engine, id: CmId<RouteResolved>) {
        if let Err(error) = self.connect(engine, id) {
            self.finish(Err(error));
        }
    }

    fn connect(&self, engine: &Engine, id: CmId<RouteResolved>) -> io::Result<()> {
        let Plan {
            settings, group, ..
        } = &self.plan;
        let new = Endpoint::new(&id, engine.devices(), group.as_ref(), *settings)?;
        let mut state = self.lock();
        let ConnectingState::Open { endpoint, .. } = &mut *state else {
            return Ok(());
        };
        let new = endpoint.insert(Box::new(new));
        id.connect(&new.qp, &new.conn_param())
            .map_err(|refused| refused.error.into())
    }

    /// Completes the connection after the peer has accepted.
    pub(crate) fn responded(&self, engine: &Arc<Engine>, response: ConnectResponse) {
        let endpoint = match &mut *self.lock() {
            ConnectingState::Open { endpoint, .. } => endpoint.take(),
            ConnectingState::Kept(_) | ConnectingState::Done(_) | ConnectingState::Taken => None,
        };
        let Some(endpoint) = endpoint else {
            return;
        };
        let connection = self.establish(engine, *endpoint, response).map(Arc::new);
        if let Ok(connection) = &connection {
            // Before the program uses the connection: the peer may disconnect at once, and calls set timers.
            engine.connected(self.key, connection);
        }
        self.finish(connection);
    }

    fn establish(
        &self,
        engine: &Arc<Engine>,
        endpoint: Endpoint<Init>,
        response: ConnectResponse,
    ) -> io::Result<Connection> {
        let peer = ConnectData::decode(&response.param().private_data).map_err(|err| {
            let kind = match err {
                BadConnectData::Version(_) => io::ErrorKind::Unsupported,
                _ => io::ErrorKind::InvalidData,
            };
            io::Error::new(kind, err)
        })?;
        let id = response.id();
        let peer_addr = id.peer_addr().unwrap_or(self.plan.peer);
        let peer_addr = scoped(peer_addr, Some(self.plan.peer));
        let local_addr = id.local_addr().unwrap_or(peer_addr);
        let addrs = ConnectionAddrs {
            local_addr: scoped(local_addr, Some(peer_addr)),
            peer_addr,
            key: id.key(),
            span: self.span.clone(),
        };
        let endpoint = endpoint.bring_up(|qp| Ok(bring_up(id, qp)?))?;
        let send_buffer = endpoint.send_buffer()?;
        let establish = |qp| Ok(response.establish_ready(qp)?.into_parts());
        Connection::new(endpoint, send_buffer, establish, &peer, addrs, engine)
    }

    /// The device of an attempt in progress, once its queue pair exists.
    pub(crate) fn device(&self) -> Option<Context> {
        match &*self.lock() {
            ConnectingState::Open { endpoint, .. } => {
                let endpoint = endpoint.as_ref()?;
                Some(endpoint.qp.pd().context().clone())
            }
            ConnectingState::Kept(_) | ConnectingState::Done(_) | ConnectingState::Taken => None,
        }
    }

    pub(crate) fn failed(&self, failure: ConnectFailure) {
        self.finish(Err(io::Error::new(failure.kind(), failure)));
    }

    /// Fails as the kernel refuses calls of this process.
    pub(crate) fn refused(&self) {
        self.finish(Err(refused()));
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn key(&self) -> Key {
        self.key
    }

    /// Readable from the end of the attempt on.
    pub(crate) fn event_fd(&self) -> &Arc<EventFd> {
        &self.event_fd
    }

    fn finish(&self, result: io::Result<Arc<Connection>>) {
        if result.is_err() {
            self.forget();
        }
        let mut state = self.lock();
        if matches!(*state, ConnectingState::Open { .. }) {
            if let Err(_error) = &result {
                note!(warn, self.span, error = %_error, "not connected");
            }
            match (result, self.take_hook()) {
                (Err(error), Some(FailureHook(failed))) => {
                    *state = ConnectingState::Kept(error);
                    drop(state);
                    return failed();
                }
                (result, _) => *state = ConnectingState::Done(result),
            }
        }
        self.event_fd.notify();
    }

    fn take_hook(&self) -> Option<FailureHook> {
        let mut hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner);
        hook.take()
    }

    /// Ends an attempt whose failure is kept, with another error or with its own. Returns false for any other attempt.
    pub(crate) fn release(&self, error: Option<io::Error>) -> bool {
        let mut state = self.lock();
        let ConnectingState::Kept(own) = &mut *state else {
            return false;
        };
        let own = std::mem::replace(own, io::ErrorKind::Other.into());
        *state = ConnectingState::Done(Err(error.unwrap_or(own)));
        self.event_fd.notify();
        true
    }

    /// Takes the result, if available. Does not block.
    pub(crate) fn take(&self) -> Option<io::Result<Arc<Connection>>> {
        self.wait(Some(Duration::ZERO))
    }

    /// Cancels the attempt if still in progress.
    pub(crate) fn cancel(&self) {
        drop(self.take_hook());
        self.finish(Err(io::ErrorKind::ConnectionAborted.into()));
    }

    /// Fails an attempt still in progress with the timeout error.
    #[cfg(feature = "tokio")]
    pub(crate) fn time_out(&self, timeout: Duration) {
        self.finish(Err(timed_out(timeout)));
    }

    /// Blocks until the attempt ends and leaves the result in place.
    ///
    /// # Errors
    /// - `Interrupted`: a signal handler has run, or has to. The attempt goes on.
    pub(crate) fn wait_for_end(&self) -> io::Result<()> {
        self.sleep(None).map(drop)
    }

    /// Blocks until the attempt ends, at most until a deadline. Returns whether it has ended.
    fn sleep(&self, deadline: Option<Instant>) -> io::Result<bool> {
        while matches!(
            *self.lock(),
            ConnectingState::Open { .. } | ConnectingState::Kept(_)
        ) {
            let remaining =
                deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if remaining.is_some_and(|remaining| remaining.is_zero()) {
                return Ok(false);
            }
            wait_interruptible("poll", self.event_fd.as_fd(), remaining)?;
        }
        Ok(true)
    }

    /// Blocks until the attempt ends, at most for `timeout`; a signal does not end the wait. `None` if the timeout has elapsed
    /// or the result has been taken before.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Option<io::Result<Arc<Connection>>> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            match self.sleep(deadline) {
                Ok(true) => break,
                Ok(false) => return None,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Some(Err(err)),
            }
        }
        match std::mem::replace(&mut *self.lock(), ConnectingState::Taken) {
            ConnectingState::Done(result) => Some(result),
            ConnectingState::Open { .. } | ConnectingState::Kept(_) | ConnectingState::Taken => {
                None
            }
        }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        if let ConnectingState::Open { .. } = state.unwrap_or_else(PoisonError::into_inner) {
            self.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_timeout_doubles_with_each_retry() {
        let seconds = (0..=BACKGROUND_RETRIES).map(|timeouts| timeout_after(timeouts).as_secs());
        assert_eq!(seconds.collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32, 64]);
    }
}
