//! Connection establishment and teardown.

use std::{io, net::IpAddr, time::Duration};

use cm::{
    CmId, ConnectFailure, ConnectRequest, ConnectResponse, Connection, Event, Key,
    phases::{AddrResolved, Connected, RouteResolved},
};

use super::State;
use crate::{
    ib_connection::{IbConnection, QpResources, Stage, bring_up, conn_param},
    proto::{
        link::{Action, Attempt, Failure, RequestId},
        node::ConnectionId,
        wire::{HostPair, REJECTED},
    },
    trace::{ConnectionSpan, note},
};

/// Time-out of address resolution and of route resolution, each.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

fn invalid() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

impl State {
    /// Performs an action requested by a link.
    #[cold]
    pub(super) fn act(&mut self, now: Duration, id: ConnectionId, action: Action) {
        match action {
            Action::Dial(attempt) => {
                if let Err(error) = self.dial(id, attempt) {
                    self.give_up(id, attempt, Failure::Unreachable, &error);
                }
            }
            Action::Accept(request, attempt) => {
                if let Err(error) = self.accept(id, request, attempt) {
                    self.give_up(id, attempt, Failure::Lost, &error);
                }
            }
            Action::Reject(request) => {
                if let Some(request) = self.requests.remove(&request) {
                    // The peer retransmits its REQ if the REJ is lost.
                    drop(request.reject(&REJECTED));
                }
            }
            Action::Close(attempt) => self.begin_close(now, id, attempt),
        }
    }

    /// Reports the local failure of an attempt. The link answers with a close in any case.
    fn give_up(
        &mut self,
        id: ConnectionId,
        attempt: Attempt,
        failure: Failure,
        _error: &io::Error,
    ) {
        if let Some(_route) = self.node.route(id) {
            note!(warn, ConnectionSpan::new(_route), error = %_error, "connection attempt failed");
        }
        self.node.failed(id, attempt, failure);
    }

    fn begin_close(&mut self, now: Duration, id: ConnectionId, attempt: Attempt) {
        match self.ib_connections.get_mut(&id) {
            Some(conn) if conn.attempt == attempt => {
                if conn.close(now) {
                    self.reaper.cancel(&self.channel, conn.key);
                }
                self.due.insert(id);
            }
            // The attempt failed before any resource was created.
            _ => self.node.closed(now, id, attempt),
        }
    }

    fn dial(&mut self, id: ConnectionId, attempt: Attempt) -> io::Result<()> {
        let route = self.node.route(id).ok_or_else(invalid)?;
        let port = match route.peer {
            IpAddr::V4(_) => crate::proto::wire::Family::V4.port(),
            IpAddr::V6(_) => crate::proto::wire::Family::V6.port(),
        };
        let span = ConnectionSpan::new(route);
        note!(debug, span, ?attempt, "connecting");
        let mut cm_id = span.run(|| self.channel.create_id())?;
        if route.tos != 0 {
            cm_id.set_tos(route.tos)?;
        }
        let key = cm_id.key();
        let from = self.on_link(route.local, route.local, 0);
        let to = self.on_link(route.local, route.peer, port);
        self.keys.insert(key, id);
        self.ib_connections
            .insert(id, IbConnection::new(attempt, key, span, Stage::Resolving));
        cm_id
            .resolve_addr(Some(from), to, RESOLVE_TIMEOUT)
            .map_err(|refused| refused.error)?;
        Ok(())
    }

    fn accept(&mut self, id: ConnectionId, request: RequestId, attempt: Attempt) -> io::Result<()> {
        let request = self.requests.remove(&request).ok_or_else(invalid)?;
        let answer = self.node.answer(id).ok_or_else(invalid)?.encode();
        let span = ConnectionSpan::new(self.node.route(id).ok_or_else(invalid)?);
        note!(debug, span, ?attempt, "accepting");
        let key = request.id().key();
        let name = self.next_queue;
        let resources = self.qp_resources(request.id())?;
        let param = conn_param(answer, self.options.retries);
        let resources = resources.map(|qp| {
            let qp = bring_up(request.id(), qp)?;
            request.accept_ready(qp, &param)
        })?;
        self.queues.insert(name, id);
        self.keys.insert(key, id);
        let mut conn = IbConnection::new(attempt, key, span, Stage::Accepted(resources));
        conn.queue = Some(name);
        self.ib_connections.insert(id, conn);
        self.due.insert(id);
        Ok(())
    }

    /// Creates a queue pair for an identifier.
    fn qp_resources<P: cm::phases::HasDevice>(
        &mut self,
        id: &CmId<P>,
    ) -> io::Result<
        QpResources<
            verbs::QueuePair<
                verbs::Rc,
                verbs::Init,
                crate::ib_connection::SendWork,
                crate::ib_connection::RecvWork,
            >,
        >,
    > {
        let device = self.device(&id.context()?)?;
        let resources = QpResources::new(id, &device, self.next_queue)?;
        self.next_queue += 1;
        Ok(resources)
    }

    /// The current attempt of an identifier; `None` for a superseded one.
    fn current(&self, key: Key) -> Option<(ConnectionId, Attempt)> {
        let id = *self.keys.get(&key)?;
        let conn = self.ib_connections.get(&id)?;
        let counts = conn.key == key && conn.closing.is_none();
        counts.then_some((id, conn.attempt))
    }

    /// Handles a connection manager event. Unknown identifiers in the event are dropped, and so
    /// destroyed.
    pub(super) fn handle(&mut self, now: Duration, event: Event) {
        match event {
            Event::AddrResolved(id) => self.addr_resolved(id),
            Event::RouteResolved(id) => self.route_resolved(id),
            Event::AddrError { id, .. } => self.failed(id.key(), Failure::Unreachable),
            Event::RouteError { id, .. } => self.failed(id.key(), Failure::Unreachable),
            Event::ConnectResponse(response) => self.responded(now, response),
            Event::ConnectRequest(request) => self.requested(now, request),
            Event::Established(id) => self.established(now, id),
            Event::ConnectFailed { id, failure } => {
                let failure = match failure {
                    ConnectFailure::Rejected { reason: 28, .. } => Failure::Refused,
                    ConnectFailure::Disconnected | ConnectFailure::DeviceRemoved => Failure::Lost,
                    _ => Failure::Unreachable,
                };
                self.failed(id.key(), failure);
                self.reaper.destroy(id);
            }
            Event::Disconnected { key, .. } | Event::AddrChange(key) | Event::TimewaitExit(key) => {
                self.failed(key, Failure::Lost);
            }
            Event::DeviceRemoval(key) => {
                let conn = self
                    .keys
                    .get(&key)
                    .and_then(|id| self.ib_connections.get(id));
                if let Some(device) = conn.and_then(IbConnection::device).cloned() {
                    self.device_lost(device);
                }
                self.failed(key, Failure::Lost);
                self.listener_lost(now, key);
            }
            _ => {}
        }
    }

    fn failed(&mut self, key: Key, failure: Failure) {
        if let Some((id, attempt)) = self.current(key) {
            if let Some(_conn) = self.ib_connections.get(&id) {
                note!(warn, _conn.span, ?failure, "connection failed");
            }
            self.node.failed(id, attempt, failure);
        }
    }

    fn addr_resolved(&mut self, id: CmId<AddrResolved>) {
        let key = id.key();
        if self.current(key).is_some() && id.resolve_route(RESOLVE_TIMEOUT).is_err() {
            self.failed(key, Failure::Unreachable);
        }
    }

    fn route_resolved(&mut self, id: CmId<RouteResolved>) {
        let key = id.key();
        if let Some((connection, _)) = self.current(key)
            && self.send_request(connection, id).is_err()
        {
            self.failed(key, Failure::Unreachable);
        }
    }

    fn send_request(&mut self, id: ConnectionId, cm_id: CmId<RouteResolved>) -> io::Result<()> {
        let data = self.node.proposal(id).ok_or_else(invalid)?.encode();
        let name = self.next_queue;
        let resources = self.qp_resources(&cm_id)?;
        let param = conn_param(data, self.options.retries);
        cm_id
            .connect(&resources.qp, &param)
            .map_err(|refused| refused.error)?;
        self.queues.insert(name, id);
        if let Some(conn) = self.ib_connections.get_mut(&id) {
            conn.stage = Stage::Asked(Box::new(resources));
            conn.queue = Some(name);
        }
        Ok(())
    }

    /// The peer has accepted.
    fn responded(&mut self, now: Duration, response: ConnectResponse) {
        let key = response.id().key();
        let Some((id, attempt)) = self.current(key) else {
            self.reaper.destroy(response);
            return;
        };
        let Some(conn) = self.ib_connections.get_mut(&id) else {
            return;
        };
        let stage = std::mem::replace(&mut conn.stage, Stage::Gone);
        let Stage::Asked(resources) = stage else {
            conn.stage = stage;
            return;
        };
        let reply = response.param().private_data.clone();
        let up = resources.map(|qp| {
            let qp = bring_up(response.id(), qp)?;
            response.establish_ready(qp)
        });
        match up {
            Ok(resources) => {
                note!(debug, conn.span, qp = %resources.qp.qp().qp_num(), "established");
                conn.stage = Stage::Up(resources);
                self.due.insert(id);
                // An invalid reply fails the attempt, and the connection closes.
                let _: Result<_, _> = self.node.established(now, id, attempt, Some(&reply));
            }
            Err(_error) => {
                note!(warn, conn.span, error = %_error, "connection not established");
                self.node.failed(id, attempt, Failure::Lost);
            }
        }
    }

    /// A peer requests a connection.
    fn requested(&mut self, now: Duration, request: ConnectRequest) {
        let hosts = request.id().local_addr().zip(request.id().peer_addr());
        let name = RequestId(self.next_request);
        self.next_request += 1;
        let known = hosts.and_then(|(local, peer)| {
            if self.reaper.is_overloaded() {
                self.node.refused();
                return None;
            }
            let hosts = (local.ip(), peer.ip());
            HostPair::new(hosts.1, hosts.0)?;
            let data = &request.param().private_data;
            self.node.request(now, hosts, data, name).ok()
        });
        match known {
            Some(_) => {
                self.requests.insert(name, request);
            }
            // The peer retransmits its REQ if the REJ is lost.
            None => drop(request.reject(&REJECTED)),
        }
    }

    /// The RTU of an accepted connection has arrived.
    fn established(&mut self, now: Duration, cm_id: CmId<Connected>) {
        let Some((id, attempt)) = self.current(cm_id.key()) else {
            self.reaper.destroy(cm_id);
            return;
        };
        let Some(conn) = self.ib_connections.get_mut(&id) else {
            return;
        };
        match std::mem::replace(&mut conn.stage, Stage::Gone) {
            Stage::Accepted(resources) => {
                match resources.map(|qp| Connection::new(cm_id, qp).map_err(verbs::Error::from)) {
                    Ok(resources) => {
                        note!(debug, conn.span, qp = %resources.qp.qp().qp_num(), "established");
                        conn.stage = Stage::Up(resources);
                        // Without a reply there is nothing to reject.
                        let _: Result<_, _> = self.node.established(now, id, attempt, None);
                    }
                    Err(_error) => {
                        note!(warn, conn.span, error = %_error, "connection not established");
                        self.node.failed(id, attempt, Failure::Lost);
                    }
                }
            }
            stage => conn.stage = stage,
        }
    }
}
