//! Connecting: the steps of the active side, driven by events.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Condvar, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use cm::{
    CmId, ConnectFailure, ConnectResponse, Key, PathRecord,
    phases::{AddrResolved, Idle, RouteResolved},
};
use verbs::Init;

use crate::{
    connection::{Connection, Ends},
    device::ProtectionGroup,
    endpoint::{Endpoint, bring_up},
    engine::Engine,
    names::scoped,
    options::Options,
    proto::{BadConnectData, ConnectData, stream::Settings},
    waiters::Bell,
};

/// How long the first attempt to resolve something may take. Each later one may take twice as long.
const FIRST_TIMEOUT: Duration = Duration::from_secs(1);

/// How long an attempt may take after so many have timed out.
fn timeout_after(timeouts: u32) -> Duration {
    FIRST_TIMEOUT * 2_u32.saturating_pow(timeouts)
}

/// The error of an attempt that has taken longer than its time-out.
pub(crate) fn timed_out(timeout: Duration) -> io::Error {
    let reason = format!("there was no connection within the time-out of {timeout:?}");
    io::Error::new(io::ErrorKind::TimedOut, reason)
}

/// A connection that is being made.
#[derive(Debug)]
pub(crate) struct Opening {
    state: Mutex<State>,
    changed: Condvar,
    /// Rung at the end, for those who wait for a descriptor.
    bell: Bell,
    plan: Plan,
    key: Key,
    engine: Weak<Engine>,
}

/// Where to connect to, and with what.
#[derive(Debug)]
struct Plan {
    settings: Settings,
    group: Option<ProtectionGroup>,
    /// Route that the program has set; it is resolved if this is empty.
    route: Vec<PathRecord>,
    source: Option<SocketAddr>,
    peer: SocketAddr,
    /// Maximum number of retries of a resolution that timed out.
    retries: u32,
}

#[derive(Debug)]
enum State {
    /// Under way: so many attempts have timed out; from when the device is known, with what it
    /// needs.
    Open {
        timeouts: u32,
        endpoint: Option<Box<Endpoint<Init>>>,
    },
    Done(io::Result<Arc<Connection>>),
    /// The result has been taken.
    Taken,
}

impl Opening {
    /// Begins to connect.
    pub(crate) fn start(
        engine: &Arc<Engine>,
        options: &Options,
        peer: SocketAddr,
    ) -> io::Result<Arc<Self>> {
        let id = engine.channel().create_id()?;
        let plan = Plan {
            settings: options.settings,
            group: options.group.clone(),
            route: Vec::new(),
            source: options.source,
            peer,
            retries: 0,
        };
        Self::begin(engine, id, plan)
    }

    /// Begins to connect with an identifier, which may be bound.
    pub(crate) fn start_with(
        engine: &Arc<Engine>,
        id: CmId<Idle>,
        source: Option<SocketAddr>,
        peer: SocketAddr,
        settings: Settings,
        retries: u32,
        route: Vec<PathRecord>,
    ) -> io::Result<Arc<Self>> {
        let plan = Plan {
            settings,
            group: None,
            route,
            source,
            peer,
            retries,
        };
        Self::begin(engine, id, plan)
    }

    fn begin(engine: &Arc<Engine>, id: CmId<Idle>, plan: Plan) -> io::Result<Arc<Self>> {
        let key = id.key();
        let this = Arc::new(Self {
            state: Mutex::new(State::Open {
                timeouts: 0,
                endpoint: None,
            }),
            changed: Condvar::new(),
            bell: Bell::new()?,
            plan,
            key,
            engine: Arc::downgrade(engine),
        });
        engine.open(key, &this);
        this.resolve_addr(id)?;
        Ok(this)
    }

    /// Nothing more is to be heard of it. If it is still under way, it ends.
    fn forget(&self) {
        if let Some(engine) = self.engine.upgrade() {
            engine.forget(self.key);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn timeout(&self) -> Duration {
        match &*self.lock() {
            State::Open { timeouts, .. } => timeout_after(*timeouts),
            State::Done(_) | State::Taken => FIRST_TIMEOUT,
        }
    }

    fn resolve_addr(&self, id: CmId<Idle>) -> io::Result<()> {
        let timeout = self.timeout();
        id.resolve_addr(self.plan.source, self.plan.peer, timeout)
            .map_err(|refused| refused.error.into())
    }

    /// Whether a step that has failed is worth another attempt.
    fn try_again(&self, error: &verbs::Error) -> bool {
        match &mut *self.lock() {
            State::Open { timeouts, .. }
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
        let State::Open { endpoint, .. } = &mut *state else {
            return Ok(());
        };
        let new = endpoint.insert(Box::new(new));
        id.connect(&new.qp, &new.conn_param())
            .map_err(|refused| refused.error.into())
    }

    /// The peer has accepted. Returns the connection, to be told of its end.
    pub(crate) fn responded(
        &self,
        engine: &Arc<Engine>,
        response: ConnectResponse,
    ) -> Option<Arc<Connection>> {
        let endpoint = match &mut *self.lock() {
            State::Open { endpoint, .. } => endpoint.take()?,
            State::Done(_) | State::Taken => return None,
        };
        let connection = self.establish(engine, *endpoint, response).map(Arc::new);
        let kept = connection.as_ref().ok().map(Arc::clone);
        self.finish(connection);
        kept
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
        let ends = Ends {
            local_addr: scoped(local_addr, Some(peer_addr)),
            peer_addr,
            key: id.key(),
        };
        let endpoint = endpoint.bring_up(|qp| Ok(bring_up(id, qp)?))?;
        let establish = |qp| Ok(response.establish_ready(qp)?.into_parts());
        Connection::new(endpoint, establish, &peer, ends, engine)
    }

    pub(crate) fn failed(&self, failure: ConnectFailure) {
        let kind = match failure {
            ConnectFailure::Rejected { .. } => io::ErrorKind::ConnectionRefused,
            ConnectFailure::Unreachable { .. } => io::ErrorKind::TimedOut,
            _ => io::ErrorKind::ConnectionReset,
        };
        self.finish(Err(io::Error::new(kind, failure)));
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn key(&self) -> Key {
        self.key
    }

    /// Becomes readable at the end, and stays so.
    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    fn finish(&self, result: io::Result<Arc<Connection>>) {
        if result.is_err() {
            self.forget();
        }
        let mut state = self.lock();
        if matches!(*state, State::Open { .. }) {
            *state = State::Done(result);
        }
        self.changed.notify_all();
        self.bell.ring();
    }

    /// The result, if there is one and it has not been taken.
    pub(crate) fn take(&self) -> Option<io::Result<Arc<Connection>>> {
        self.wait(Some(Duration::ZERO))
    }

    /// Ends the attempt, if it is still under way.
    pub(crate) fn cancel(&self) {
        self.finish(Err(io::ErrorKind::ConnectionAborted.into()));
    }

    /// Ends the attempt, if it is still under way, with the error of its time-out.
    pub(crate) fn time_out(&self, timeout: Duration) {
        self.finish(Err(timed_out(timeout)));
    }

    /// Waits for the end, and leaves the result to be taken.
    pub(crate) fn settle(&self) {
        let mut state = self.lock();
        while matches!(*state, State::Open { .. }) {
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the end, but not longer than `timeout`; `None` if it has not come, or if the
    /// result has been taken already.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Option<io::Result<Arc<Connection>>> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.lock();
        while matches!(*state, State::Open { .. }) {
            state = match deadline {
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        match std::mem::replace(&mut *state, State::Taken) {
            State::Done(result) => Some(result),
            State::Open { .. } | State::Taken => None,
        }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        if let State::Open { .. } = state.unwrap_or_else(PoisonError::into_inner) {
            self.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::BACKGROUND_RETRIES;

    /// T-CN3
    #[test]
    fn attempts_take_twice_as_long_each() {
        let seconds = (0..=BACKGROUND_RETRIES).map(|timeouts| timeout_after(timeouts).as_secs());
        assert_eq!(seconds.collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32, 64]);
    }
}
