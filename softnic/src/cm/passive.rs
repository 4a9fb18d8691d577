//! The passive side of a connection.

use std::{net::SocketAddr, time::Duration};

use super::{
    active::PKEY,
    connection::{Connection, Phase},
    error::CmError,
    event::Occurrence,
    id::{Id, IdNum, IdState},
    ip_header::{self, IpCmHeader},
    manager::Manager,
    message::{CommIds, Message},
    param::ConnParam,
    port_space::PortSpace,
    private_data::PrivateData,
    reply::{PRIVATE_LEN, Reply},
    request::{Request, gid},
    responses::{Mra, PRIVATE_LEN as REJECT_LEN, Reject, RejectInfo, Rejected},
    timers::{Pending, RetryPolicy, SERVICE_TIMEOUT},
};
use crate::engine::{Path, QpKind};

/// Membership bit of a partition key.
const FULL_MEMBER: u16 = 0x8000;

/// Listener of a request, and addresses of the connection.
struct Addressee {
    listener: IdNum,
    space: PortSpace,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Manager {
    /// Processes a connection request (REQ).
    pub(super) fn handle_request(
        &mut self,
        path: Path,
        tid: u64,
        request: &Request,
        now: Duration,
    ) {
        let peer = (request.ca_guid, request.local_comm_id);
        let with_id = self.remotes.with_id(peer);
        if let Some(num) = with_id.filter(|num| self.live(*num).is_some()) {
            return self.handle_copy(num, tid);
        }
        let was_accepted = with_id
            .and_then(|num| self.connection(num))
            .is_some_and(|connection| connection.is_reported);
        if was_accepted {
            // A late copy: a rejection could reach the peer's end before the end of its time-wait.
            return;
        }
        if self.remotes.has_ended(peer, now) {
            return self.refuse_request(path, tid, peer.1, Reject::STALE);
        }
        // A connected queue pair asks again: the old connection has ended for the peer.
        let with_qp = self.remotes.with_qp((peer.0, request.param.qp_num));
        if let Some(old) = with_qp.filter(|num| self.live(*num).is_some()) {
            self.refuse_request(path, tid, peer.1, Reject::STALE);
            return self.send_disconnect(old, now);
        }
        match self.addressee(&path, request) {
            Ok(addressee) => self.add_connection(addressee, (path, tid), request),
            Err(reason) => self.refuse_request(path, tid, peer.1, reason),
        }
    }

    /// The listener of a request, with the addresses of the connection, or the reason of a rejection.
    fn addressee(&self, path: &Path, request: &Request) -> Result<Addressee, u16> {
        let service = PortSpace::of_service(request.service_id);
        let service = service.filter(|(space, port)| self.listens_at(*space, *port));
        let (space, port) = service.ok_or(Reject::INVALID_SERVICE)?;
        let is_family = request.local_addr.is_ipv4() == path.src.is_ipv4();
        if !is_family || request.pkey | FULL_MEMBER != PKEY {
            return Err(Reject::INVALID_GID);
        }
        // The service exists, but not for this peer, address or transport.
        let header = IpCmHeader::decode(request.private_data.as_slice());
        let header = header.ok_or(Reject::CONSUMER)?;
        let addr = SocketAddr::new(header.dst, port);
        let fits = request.kind == Some(QpKind::Rc) && space.kind() == QpKind::Rc;
        let listener = self.listener(space, addr).filter(|_| fits);
        Ok(Addressee {
            listener: listener.ok_or(Reject::CONSUMER)?,
            space,
            local: addr,
            peer: SocketAddr::new(header.src, header.src_port),
        })
    }

    /// Adds the connection of a request to the listener's backlog.
    fn add_connection(
        &mut self,
        addressee: Addressee,
        (path, tid): (Path, u64),
        request: &Request,
    ) {
        let mut connection = requested(path, tid, request);
        connection.rq_psn = self.random_psn();
        let mut child = Id::new(addressee.space);
        child.local = Some(addressee.local);
        child.peer = Some(addressee.peer);
        child.state = IdState::Connection(Box::new(connection));
        // With a full backlog, the request is dropped, and the peer retransmits.
        let Some(num) = self.add_request(addressee.listener, child) else {
            return;
        };
        if let Some(connection) = self.connection(num) {
            connection.ids.local = num.0;
        }
        let numbers = (request.local_comm_id, request.param.qp_num);
        self.remotes.insert(request.ca_guid, numbers, num);
        let data = request.private_data.as_slice().get(ip_header::LEN..);
        let what = Occurrence::ConnectRequest {
            child: num,
            param: request.param.reversed(),
            ece: request.ece,
            private_data: PrivateData::new(data.unwrap_or_default()),
        };
        self.push(addressee.listener, what);
    }

    /// Rejects a request without an identifier, by the peer's communication id.
    fn refuse_request(&mut self, path: Path, tid: u64, remote: u32, reason: u16) {
        let reject = Reject {
            ids: CommIds { local: 0, remote },
            about: Rejected::Request,
            reason,
            info: match reason {
                Reject::INVALID_GID => RejectInfo::Gid(gid(path.src)),
                _ => RejectInfo::None,
            },
            private_data: PrivateData::EMPTY,
        };
        self.send(path, tid, &Message::Reject(Box::new(reject)));
    }

    /// Processes a retransmitted request.
    fn handle_copy(&mut self, established: IdNum, tid: u64) {
        let Some(connection) = self.connection(established) else {
            return;
        };
        match (connection.phase, &connection.pending) {
            (Phase::RequestReceived, _) => {
                let mra = Mra {
                    ids: connection.ids,
                    about: Rejected::Request,
                    service_timeout: SERVICE_TIMEOUT,
                };
                let path = connection.path;
                self.send(path, tid, &Message::Mra(mra));
            }
            (Phase::ReplySent, Some(reply)) => {
                let again = (reply.path, reply.bytes);
                self.out.push_back(again);
            }
            _ => {}
        }
    }

    /// Accepts a connection request.
    ///
    /// # Errors
    /// - [`CmError::Invalid`]: the identifier is not a request, the peer has given up, the private data exceed 196
    ///   bytes, or the device has fewer reads and atomics in flight.
    pub fn accept(
        &mut self,
        num: IdNum,
        param: ConnParam,
        private_data: &[u8],
        now: Duration,
    ) -> Result<(), CmError> {
        if private_data.len() > PRIVATE_LEN {
            return Err(CmError::Invalid("the private data are too long"));
        }
        let max_depths = self.max_depths;
        param.check(max_depths)?;
        let (ca_guid, ece) = (self.ca_guid, self.id(num)?.ece);
        let connection = self.connection(num);
        let Some(connection) = connection.filter(|conn| conn.phase == Phase::RequestReceived)
        else {
            return Err(CmError::Invalid(
                "there is no request, or the peer has given up",
            ));
        };
        let peer = (connection.responder_resources, connection.initiator_depth);
        let param = param.limited(peer, max_depths);
        connection.is_reported = true;
        connection.phase = Phase::ReplySent;
        connection.local_qp = param.qp_num;
        connection.initiator_depth = param.initiator_depth;
        connection.responder_resources = param.responder_resources;
        let reply = Reply {
            ids: connection.ids,
            param,
            starting_psn: connection.rq_psn,
            ack_delay: 0,
            ca_guid,
            ece,
            private_data: PrivateData::padded(private_data, PRIVATE_LEN),
        };
        let bytes = Message::Reply(Box::new(reply)).encode(connection.tid);
        let path = connection.path;
        connection.pending = Some(Pending::new(path, bytes, connection.retry, now));
        self.out.push_back((path, bytes));
        self.arm(num);
        Ok(())
    }

    /// Rejects a connection request or a service request.
    ///
    /// # Errors
    /// - [`CmError::Invalid`]: the identifier is not a request, the peer has given up, or the private data exceed 148
    ///   bytes, or 136 bytes for a service.
    pub fn reject(
        &mut self,
        num: IdNum,
        reason: u16,
        private_data: &[u8],
        now: Duration,
    ) -> Result<(), CmError> {
        if matches!(self.id(num)?.state, IdState::Service(_)) {
            return self.reject_service(num, private_data);
        }
        if private_data.len() > REJECT_LEN {
            return Err(CmError::Invalid("the private data are too long"));
        }
        let phase = self.connection(num).map(|connection| connection.phase);
        let is_open = matches!(
            phase,
            Some(Phase::RequestReceived | Phase::ReplySent | Phase::ReplyReceived)
        );
        if !is_open {
            return Err(CmError::Invalid(
                "there is no request, or the peer has given up",
            ));
        }
        let data = PrivateData::padded(private_data, REJECT_LEN);
        self.refuse(num, reason, data, now);
        self.arm(num);
        Ok(())
    }
}

/// A new connection in phase `RequestReceived`.
fn requested(path: Path, tid: u64, request: &Request) -> Connection {
    Connection {
        phase: Phase::RequestReceived,
        is_passive: true,
        is_reported: false,
        has_ended: false,
        ids: CommIds {
            local: 0,
            remote: request.local_comm_id,
        },
        tid,
        peer_guid: request.ca_guid,
        retry: RetryPolicy::of_peer(request.local_response_timeout, request.max_cm_retries),
        path: Path {
            dst: request.local_addr,
            traffic_class: request.traffic_class,
            flow_label: request.flow_label,
            ..path
        },
        local_qp: 0,
        dest_qp: request.param.qp_num,
        sq_psn: request.starting_psn,
        rq_psn: 0,
        mtu: request.mtu,
        // A timer of 0 would be none.
        ack_timeout: request.ack_timeout.max(1),
        retry_count: request.param.retry_count,
        rnr_retry: request.param.rnr_retry_count,
        initiator_depth: request.param.responder_resources,
        responder_resources: request.param.initiator_depth,
        pending: None,
    }
}
