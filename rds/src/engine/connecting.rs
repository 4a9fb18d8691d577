//! Connection establishment and teardown. Calls into the kernel are made [without the
//! lock](super::jobs).

use std::{io, mem, sync::Arc, time::Duration};

use cm::{
    CmId, ConnectFailure, ConnectRequest, ConnectResponse, Event, Key,
    phases::{AddrResolved, Connected, HasDevice, IdPhase, RouteResolved},
};
use rustix::io::Errno;
use verbs::{Init, qp::QpNum};

use super::{EngineState, listening::family};
use crate::{
    device::OpenDevices,
    ib_connection::{ConnectStage, IbConnection, Pair, Posted, QpResources, SendWork, conn_param},
    proto::{
        link::{Action, Attempt, Failure, RequestId},
        node::ConnectionId,
        wire::{HostPair, REJECTED},
    },
    trace::{ConnectionSpan, note},
};

/// Time-out of address resolution and of route resolution, each.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Result of calls into the kernel for a connection attempt.
type Outcome = Result<ConnectStage, (Failure, io::Error)>;

/// Whether memory, descriptors or objects are missing, which the end of another connection releases.
fn is_exhaustion(error: &verbs::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(
        errno,
        Some(
            Errno::NOMEM
                | Errno::MFILE
                | Errno::NFILE
                | Errno::NOSPC
                | Errno::NOBUFS
                | Errno::AGAIN
                | Errno::DQUOT
        )
    )
}

/// Creates a queue pair for an identifier, and opens the device on first use.
fn create<P: HasDevice>(
    devices: &OpenDevices,
    id: &CmId<P>,
) -> verbs::Result<QpResources<Pair<Init>>> {
    QpResources::new(id, &devices.open(&id.context()?)?)
}

impl EngineState {
    /// Performs an action requested by a link.
    #[cold]
    pub(super) fn act(&mut self, now: Duration, id: ConnectionId, action: Action) {
        match action {
            Action::Dial(attempt) => self.dial(id, attempt),
            Action::Accept(request, attempt) => self.accept(id, request, attempt),
            Action::Reject(request) => {
                if let Some(request) = self.requests.remove(&request) {
                    self.reject(request);
                }
            }
            Action::Close(attempt) => self.begin_close(now, id, attempt),
        }
    }

    fn reject(&mut self, request: ConnectRequest) {
        // The peer retransmits its REQ if the REJ is lost.
        self.unlocked(|_| drop(request.reject(&REJECTED)));
    }

    /// Reports the local failure of an attempt. The link answers with a close in any case.
    fn give_up(&mut self, id: ConnectionId, attempt: Attempt, _error: &verbs::Error) {
        if let Some(_conn) = self.transport.ib_connections.get(&id) {
            note!(warn, _conn.span, error = %_error, "connection attempt failed");
        }
        self.node.failed(id, attempt, Failure::Lost);
    }

    fn dial(&mut self, id: ConnectionId, attempt: Attempt) {
        let Some(route) = self.node.route(id) else {
            return;
        };
        let port = family(route.peer).port();
        let span = ConnectionSpan::new(route);
        note!(debug, span, ?attempt, "connecting");
        let from = self.on_link(route.local, route.local, 0);
        let to = self.on_link(route.local, route.peer, port);
        let conn = IbConnection::new(attempt, None, span.clone());
        self.transport.insert(id, conn);
        self.unlocked_for(id, move |shared| {
            let dial = || -> io::Result<Key> {
                let mut cm_id = span.run(|| shared.channel.create_id())?;
                if route.tos != 0 {
                    cm_id.set_tos(route.tos)?;
                }
                let key = cm_id.key();
                cm_id
                    .resolve_addr(Some(from), to, RESOLVE_TIMEOUT)
                    .map_err(|refused| refused.error)?;
                Ok(key)
            };
            let key = dial().map_err(|error| (Failure::Unreachable, error));
            shared.change(|state, now| {
                if let Ok(key) = key
                    && let Some(conn) = state.transport.ib_connections.get_mut(&id)
                {
                    conn.key = Some(key);
                    state.transport.keys.insert(key, id);
                }
                state.finish(now, id, key.map(|_| ConnectStage::Resolving));
            });
        });
    }

    fn accept(&mut self, id: ConnectionId, request: RequestId, attempt: Attempt) {
        let found = self.node.answer(id).zip(self.node.route(id));
        let Some((answer, route)) = found else {
            return;
        };
        let name = request;
        let Some(request) = self.requests.remove(&name) else {
            return;
        };
        let span = ConnectionSpan::new(route);
        note!(debug, span, ?attempt, "accepting");
        let key = request.id().key();
        let conn = IbConnection::new(attempt, Some(key), span);
        self.transport.insert(id, conn);
        let devices = self.transport.open.clone();
        let param = conn_param(answer.encode(), self.options.retries);
        self.unlocked_for(id, move |shared| {
            let ready = create(&devices, request.id());
            let ready = ready.and_then(|resources| resources.bring_up(request.id()));
            let ready = match ready {
                Err(error) if is_exhaustion(&error) => {
                    return shared.change(|state, now| {
                        state.defer(now, id, (name, request), &error);
                    });
                }
                ready => ready.map_err(|error| (Failure::Lost, error.into())),
            };
            let Some(qp_num) = shared.change(|state, now| state.finish(now, id, ready)) else {
                return shared.reaper.destroy(request);
            };
            if let Err(error) = request.accept_number(qp_num, &param) {
                shared.change(|state, _| state.give_up(id, attempt, &error));
            }
        });
    }

    /// Handles the lack of resources for the request of a peer: the request is held until another
    /// connection has ended, or rejected.
    fn defer(
        &mut self,
        now: Duration,
        id: ConnectionId,
        (name, request): (RequestId, ConnectRequest),
        error: &verbs::Error,
    ) {
        let Some(conn) = self.transport.ib_connections.get(&id) else {
            return self.reap(request);
        };
        note!(warn, conn.span, %error, "no resources for a connection");
        if conn.closing.is_none() && self.node.exhausted(now, id, conn.attempt, Some(name)) {
            self.transport.remove(id);
            self.requests.insert(name, request);
            return self.advance(now, id);
        }
        self.reap(request);
        let error = io::Error::other(error.to_string());
        self.finish(now, id, Err((Failure::Lost, error)));
    }

    /// Stores the outcome of calls into the kernel. Returns the queue pair of an attempt that
    /// continues and can carry data.
    fn finish(&mut self, now: Duration, id: ConnectionId, outcome: Outcome) -> Option<QpNum> {
        if let Some(device) = outcome.as_ref().ok().and_then(ConnectStage::device) {
            self.transport.add_device(device);
        }
        let conn = self.transport.ib_connections.get_mut(&id)?;
        let is_closing = conn.closing.is_some();
        let mut qp_num = None;
        match outcome {
            Ok(stage) => {
                conn.stage = stage;
                if let Some(resources) = conn.stage.resources() {
                    qp_num = Some(resources.qp.qp_num()).filter(|_| !is_closing);
                    self.transport.queue_pairs.insert(resources.qp.id(), id);
                    self.node.count_receives(id, resources.receives);
                    resources.device.cqs().extend(resources.own_cq.take());
                }
                if conn.has_failed_cq() {
                    self.node.failed(id, conn.attempt, Failure::Lost);
                }
            }
            Err((failure, _error)) => {
                note!(warn, conn.span, error = %_error, "connection attempt failed");
                conn.stage = ConnectStage::Gone;
                self.node.failed(id, conn.attempt, failure);
            }
        }
        if is_closing {
            self.disconnect(id);
        }
        self.advance(now, id);
        qp_num
    }

    fn begin_close(&mut self, now: Duration, id: ConnectionId, attempt: Attempt) {
        match self.transport.ib_connections.get_mut(&id) {
            Some(conn) if conn.attempt == attempt => {
                conn.closing = Some(now);
                note!(debug, conn.span, "closing");
                self.disconnect(id);
            }
            // The attempt failed before any resource was created.
            _ => self.node.closed(now, id, attempt),
        }
    }

    /// Continues the end of a closing connection.
    pub(super) fn disconnect_closing(&mut self, id: ConnectionId) {
        let conn = self.transport.ib_connections.get(&id);
        if conn.is_some_and(|conn| conn.closing.is_some()) {
            self.disconnect(id);
        }
    }

    /// Disconnects a closing connection once; while other calls are in progress, after these.
    fn disconnect(&mut self, id: ConnectionId) {
        let Some(conn) = self.transport.ib_connections.get_mut(&id) else {
            return;
        };
        if conn.is_busy() || mem::replace(&mut conn.is_disconnected, true) {
            return;
        }
        let (key, ending) = (conn.key, conn.stage.begin_end());
        self.unlocked_for(id, move |shared| {
            ending.run(&shared.reaper, &shared.channel, key);
            shared.change(|state, now| state.advance(now, id));
        });
    }

    /// Destroys a disconnected connection.
    #[cold]
    pub(super) fn destroy(&mut self, id: ConnectionId) {
        let Some(conn) = self.transport.ib_connections.get_mut(&id) else {
            return;
        };
        // From here, completions are lost.
        if let Some(qp) = conn.qp_id() {
            self.transport.queue_pairs.remove(qp);
        }
        let may_have_lost_rx = conn.may_have_lost_rx();
        let stage = self.transport.take_stage(id);
        self.unlocked_for(id, move |shared| {
            let destroyed = stage.destroy(&shared.reaper);
            shared.change(|state, now| state.destroyed(now, id, may_have_lost_rx, destroyed));
        });
    }

    /// Handles the end of a connection. The work of its queue pair returns to the messages; if the
    /// device has not destroyed the queue pair, its buffers are leaked.
    fn destroyed(
        &mut self,
        now: Duration,
        id: ConnectionId,
        may_have_lost_rx: bool,
        destroyed: verbs::Result<Vec<SendWork>>,
    ) {
        let Some(conn) = self.transport.remove(id) else {
            return;
        };
        if may_have_lost_rx {
            self.node.mark_rx_lost(id);
        }
        match destroyed {
            Ok(leftover) => {
                for work in leftover {
                    Posted::release(work);
                }
                self.node.closed(now, id, conn.attempt);
            }
            Err(_error) => {
                self.node.closed(now, id, conn.attempt);
                // Messages with leaked buffers cannot be sent again.
                self.node.give_up(id, |payload| payload.is_posted());
                note!(warn, conn.span, error = %_error, "queue pair not destroyed");
            }
        }
    }

    /// Handles a connection manager event. Unknown identifiers in the event are destroyed.
    pub(super) fn handle(&mut self, now: Duration, event: Event) {
        match event {
            Event::AddrResolved(id) => self.addr_resolved(id),
            Event::RouteResolved(id) => self.route_resolved(id),
            Event::AddrError { id, .. } => self.attempt_failed(id, Failure::Unreachable),
            Event::RouteError { id, .. } => self.attempt_failed(id, Failure::Unreachable),
            Event::ConnectResponse(response) => self.responded(response),
            Event::ConnectRequest(request) => self.requested(now, request),
            Event::Established(id) => self.established(now, id, None),
            Event::ConnectFailed { id, failure } => {
                let failure = match failure {
                    ConnectFailure::Rejected { reason: 28, .. } => Failure::Refused,
                    ConnectFailure::Disconnected | ConnectFailure::DeviceRemoved => Failure::Lost,
                    _ => Failure::Unreachable,
                };
                self.attempt_failed(id, failure);
            }
            Event::Disconnected { key, .. } | Event::AddrChange(key) | Event::TimewaitExit(key) => {
                self.failed(key, Failure::Lost);
            }
            Event::DeviceRemoval(key) => {
                let id = self.transport.keys.get(&key);
                let conn = id.and_then(|id| self.transport.ib_connections.get(id));
                if let Some(device) = conn.and_then(|conn| conn.stage.device()).cloned() {
                    self.device_lost(device);
                }
                self.listener_lost(now, key);
                self.failed(key, Failure::Lost);
            }
            _ => {}
        }
    }

    fn failed(&mut self, key: Key, failure: Failure) {
        if let Some((id, attempt)) = self.transport.current(key) {
            if let Some(_conn) = self.transport.ib_connections.get(&id) {
                note!(warn, _conn.span, ?failure, "connection failed");
            }
            self.node.failed(id, attempt, failure);
        }
    }

    fn attempt_failed<P: IdPhase + Send>(&mut self, cm_id: CmId<P>, failure: Failure) {
        self.failed(cm_id.key(), failure);
        self.reap(cm_id);
    }

    fn addr_resolved(&mut self, cm_id: CmId<AddrResolved>) {
        let Some((id, _)) = self.transport.current(cm_id.key()) else {
            return self.reap(cm_id);
        };
        self.transport.take_stage(id);
        self.unlocked_for(id, move |shared| {
            let resolving = match cm_id.resolve_route(RESOLVE_TIMEOUT) {
                Ok(_) => Ok(ConnectStage::Resolving),
                Err(refused) => Err((Failure::Unreachable, refused.error.into())),
            };
            shared.change(|state, now| state.finish(now, id, resolving));
        });
    }

    fn route_resolved(&mut self, cm_id: CmId<RouteResolved>) {
        let current = self.transport.current(cm_id.key());
        let current =
            current.and_then(|(id, attempt)| Some((id, attempt, self.node.proposal(id)?.encode())));
        let Some((id, attempt, data)) = current else {
            return self.reap(cm_id);
        };
        self.transport.take_stage(id);
        let devices = self.transport.open.clone();
        let param = conn_param(data, self.options.retries);
        self.unlocked_for(id, move |shared| {
            let requested = create(&devices, &cm_id).and_then(|resources| {
                cm_id
                    .connect(&resources.qp, &param)
                    .map_err(|refused| refused.error)?;
                Ok(ConnectStage::Requested(Box::new(resources)))
            });
            shared.change(|state, now| {
                if requested.as_ref().is_err_and(is_exhaustion) {
                    state.node.exhausted(now, id, attempt, None);
                }
                let requested = requested.map_err(|error| (Failure::Unreachable, error.into()));
                state.finish(now, id, requested)
            });
        });
    }

    /// The peer has accepted.
    fn responded(&mut self, response: ConnectResponse) {
        let Some((id, attempt)) = self.transport.current(response.id().key()) else {
            return self.reap(response);
        };
        let resources = match self.transport.take_stage(id) {
            ConnectStage::Requested(resources) => resources,
            stage => {
                self.transport.put_stage(id, stage);
                return self.reap(response);
            }
        };
        self.unlocked_for(id, move |shared| {
            let ready = resources.bring_up(response.id());
            let ready = ready.map_err(|error| (Failure::Lost, error.into()));
            let Some(qp_num) = shared.change(|state, now| state.finish(now, id, ready)) else {
                return shared.reaper.destroy(response);
            };
            let reply = response.param().private_data.clone();
            // Sends the RTU.
            let established = response.establish_number(qp_num);
            shared.change(|state, now| match established {
                Ok(cm_id) => state.established(now, cm_id, Some(&reply)),
                Err(error) => state.give_up(id, attempt, &error),
            });
        });
    }

    /// A peer requests a connection.
    fn requested(&mut self, now: Duration, request: ConnectRequest) {
        let hosts = request.id().local_addr().zip(request.id().peer_addr());
        let name = RequestId(self.next_request);
        self.next_request += 1;
        let admitted = hosts.and_then(|(local, peer)| {
            if self.reaper.is_overloaded() {
                self.node.refused();
                return None;
            }
            let hosts = (local.ip(), peer.ip());
            HostPair::new(hosts.1, hosts.0)?;
            // The socket may not be bound yet.
            if !self.listeners.is_open(hosts.0) {
                self.node.refused();
                return None;
            }
            let data = &request.param().private_data;
            self.node.request(now, hosts, data, name).ok()
        });
        match admitted {
            Some(_) => {
                self.requests.insert(name, request);
            }
            None => self.reject(request),
        }
    }

    /// Both sides are ready: the RTU of an accepted connection has arrived, or was sent after the
    /// peer's `reply`.
    fn established(&mut self, now: Duration, cm_id: CmId<Connected>, reply: Option<&[u8]>) {
        let Some((id, attempt)) = self.transport.current(cm_id.key()) else {
            return self.reap(cm_id);
        };
        match self.transport.take_stage(id) {
            ConnectStage::Ready(resources) => {
                if let Some(_conn) = self.transport.ib_connections.get(&id) {
                    note!(debug, _conn.span, qp = %resources.qp.qp_num(), "established");
                }
                self.transport
                    .put_stage(id, ConnectStage::Up(resources, Arc::new(cm_id)));
                // An invalid reply fails the attempt, and the connection closes.
                let _: Result<_, _> = self.node.established(now, id, attempt, reply);
                self.advance(now, id);
            }
            stage => {
                self.transport.put_stage(id, stage);
                self.reap(cm_id);
            }
        }
    }
}
