//! The passive side of a connection.

use std::{net::SocketAddr, time::Duration};

use super::{
    connection::{Connection, Phase},
    error::CmError,
    event::Occurrence,
    id::{Id, IdNum, State},
    ip_header::{self, IpCmHeader},
    manager::Manager,
    message::{CommIds, Message},
    param::ConnParam,
    port_space::PortSpace,
    private_data::PrivateData,
    reply::{PRIVATE_LEN, Reply},
    request::Request,
    responses::{Mra, PRIVATE_LEN as REJECT_LEN, Reject, Rejected},
    timers::{Pending, SERVICE_TIMEOUT},
};
use crate::engine::{Path, QpKind};

impl Manager {
    /// Processes a connection request (REQ).
    pub(super) fn handle_request(&mut self, path: Path, tid: u64, request: &Request) {
        let peer = (path.dst, request.local_comm_id);
        if let Some(&known) = self.by_peer.get(&peer) {
            return self.handle_copy(known, tid);
        }
        if self.lingers(peer) {
            return self.refuse_request(path, tid, (request.local_comm_id, Reject::STALE));
        }
        let header = IpCmHeader::decode(request.private_data.as_slice());
        let service = PortSpace::of_service(request.service_id);
        let found = header.zip(service).and_then(|(header, (space, port))| {
            let addr = SocketAddr::new(header.dst, port);
            let fits = request.kind == QpKind::Rc && space.kind() == QpKind::Rc;
            let listener = self.listener(space, addr).filter(|_| fits)?;
            Some((listener, space, addr, header))
        });
        let Some((listener, space, addr, header)) = found else {
            let why = (request.local_comm_id, Reject::INVALID_SERVICE);
            return self.refuse_request(path, tid, why);
        };
        let mut child = Id::new(space);
        child.local = Some(addr);
        child.peer = Some(SocketAddr::new(header.src, header.src_port));
        child.state = State::Connection(Box::new(requested(path, tid, request)));
        // With a full backlog, the request is dropped, and the peer retransmits.
        let Some(num) = self.add_request(listener, child) else {
            return;
        };
        if let Some(connection) = self.connection(num) {
            connection.ids.local = num.0;
            connection.sq_psn = super::active::starting_psn(num);
        }
        self.by_peer.insert(peer, num);
        let data = request.private_data.as_slice().get(ip_header::LEN..);
        let what = Occurrence::ConnectRequest {
            child: num,
            param: request.param.reversed(),
            ece: request.ece,
            private_data: PrivateData::new(data.unwrap_or_default()),
        };
        self.push(listener, what);
    }

    /// Rejects a request without an identifier. The pair is the peer's communication id and the reason.
    fn refuse_request(&mut self, path: Path, tid: u64, (remote, reason): (u32, u16)) {
        let reject = Reject {
            ids: CommIds { local: 0, remote },
            about: Rejected::Request,
            reason,
            private_data: PrivateData::EMPTY,
        };
        self.send(path, tid, &Message::Reject(Box::new(reject)));
    }

    /// Processes a retransmitted request.
    fn handle_copy(&mut self, known: IdNum, tid: u64) {
        let Some(connection) = self.connection(known) else {
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
        param.check()?;
        let (ca_guid, ece) = (self.ca_guid, self.id(num)?.ece);
        let connection = self.connection(num);
        let Some(connection) = connection.filter(|conn| conn.phase == Phase::RequestReceived)
        else {
            return Err(CmError::Invalid(
                "there is no request, or the peer has given up",
            ));
        };
        let param = param.limited(connection.responder_resources, connection.initiator_depth);
        connection.is_reported = true;
        connection.phase = Phase::ReplySent;
        connection.local_qp = param.qp_num;
        connection.initiator_depth = param.initiator_depth;
        connection.responder_resources = param.responder_resources;
        let reply = Reply {
            ids: connection.ids,
            param,
            starting_psn: connection.sq_psn,
            ack_delay: 0,
            ca_guid,
            ece,
            private_data: PrivateData::padded(private_data, PRIVATE_LEN),
        };
        let bytes = Message::Reply(Box::new(reply)).encode(connection.tid);
        let path = connection.path;
        connection.pending = Some(Pending::new(path, bytes, now));
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
        if matches!(self.id(num)?.state, State::Service(_)) {
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
        path: Path {
            traffic_class: request.traffic_class,
            flow_label: request.flow_label,
            ..path
        },
        local_qp: 0,
        dest_qp: request.param.qp_num,
        sq_psn: 0,
        rq_psn: request.starting_psn,
        mtu: request.mtu,
        ack_timeout: request.ack_timeout,
        retry_count: request.param.retry_count,
        rnr_retry: request.param.rnr_retry_count,
        initiator_depth: request.param.responder_resources,
        responder_resources: request.param.initiator_depth,
        pending: None,
    }
}
