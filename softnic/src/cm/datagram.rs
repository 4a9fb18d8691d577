//! Services of datagrams: one exchange of SIDR messages resolves the peer's queue pair.

use std::{net::SocketAddr, time::Duration};

use super::{
    active::{PKEY, with_header},
    error::CmError,
    event::Occurrence,
    id::{Id, IdNum, IdState},
    ip_header::{self, IpCmHeader},
    mad::MAD_LEN,
    manager::Manager,
    message::Message,
    port_space::PortSpace,
    private_data::PrivateData,
    service::{REPLY_LEN, REQUEST_LEN, ServiceReply, ServiceRequest},
    timers::{Pending, RetryPolicy, time},
};
use crate::engine::{Path, QpKind};

/// `RDMA_UDP_QKEY`, the Q_Key of all queue pairs of services (`rdma_cm(7)`).
pub(super) const QKEY: u32 = 0x0123_4567;

/// One end of an exchange.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) is_passive: bool,
    /// Whether an answer has been sent or received.
    is_answered: bool,
    /// The encoded answer, for retransmitted requests.
    answer: Option<Box<[u8; MAD_LEN]>>,
    pub(super) request_id: u32,
    service_id: u64,
    tid: u64,
    pub(super) path: Path,
    pub(super) pending: Option<Box<Pending>>,
}

impl Service {
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.pending.as_ref().map(|pending| pending.at)
    }

    /// Whether the peer is waiting for an answer of this side.
    pub(super) fn is_unanswered(&self) -> bool {
        self.is_passive && !self.is_answered
    }
}

impl Manager {
    /// Sends a request for the queue pair of a service of datagrams.
    ///
    /// # Errors
    /// - [`CmError::Invalid`]: the route is not resolved, the identifier is for connections, or the private data exceed 180
    ///   bytes.
    pub fn resolve_service(
        &mut self,
        num: IdNum,
        private_data: &[u8],
        now: Duration,
    ) -> Result<(), CmError> {
        let timing = self.timing;
        let retry = RetryPolicy {
            interval: time(timing.response_timeout),
            max_retries: timing.max_retries,
        };
        let id = self.id(num)?;
        let (IdState::RouteResolved, Some(local), Some(peer)) = (&id.state, id.local, id.peer)
        else {
            return Err(CmError::Invalid("the route is not resolved"));
        };
        if id.space.kind() != QpKind::Ud {
            return Err(CmError::Invalid("the identifier is for connections"));
        }
        let header = IpCmHeader {
            src_port: local.port(),
            src: local.ip(),
            dst: peer.ip(),
        };
        let path = Path {
            traffic_class: id.options.tos,
            ..Path::new(local.ip(), peer.ip())
        };
        let service_id = id.space.service_id(peer.port());
        let request = ServiceRequest {
            request_id: num.0,
            pkey: PKEY,
            service_id,
            private_data: with_header(&header, private_data, REQUEST_LEN)?,
        };
        let tid = u64::from(num.0);
        let bytes = Message::ServiceRequest(Box::new(request)).encode(tid);
        id.state = IdState::Service(Box::new(Service {
            is_passive: false,
            is_answered: false,
            answer: None,
            request_id: num.0,
            service_id,
            tid,
            path,
            pending: Some(Pending::new(path, bytes, retry, now)),
        }));
        self.out.push_back((path, bytes));
        self.arm(num);
        Ok(())
    }

    pub(super) fn handle_service_request(
        &mut self,
        path: Path,
        tid: u64,
        request: &ServiceRequest,
    ) {
        let peer = (path.dst, request.request_id);
        if self.services.contains_key(&peer) {
            // Retransmitted: the program has not answered yet, or the answer is sent again.
            return self.repeat_answer(peer);
        }
        let header = IpCmHeader::decode(request.private_data.as_slice());
        let service = PortSpace::of_service(request.service_id);
        let found = header.zip(service).and_then(|(header, (space, port))| {
            let addr = SocketAddr::new(header.dst, port);
            let listener = self.listener(space, addr);
            let listener = listener.filter(|_| space.kind() == QpKind::Ud)?;
            Some((listener, space, addr, header))
        });
        let Some((listener, space, addr, header)) = found else {
            let is_served = service.is_some_and(|(space, port)| self.listens_at(space, port));
            let reply = ServiceReply {
                request_id: request.request_id,
                status: if is_served {
                    // The service exists, but not at this address.
                    ServiceReply::REJECTED
                } else {
                    ServiceReply::UNSUPPORTED
                },
                qp_num: 0,
                service_id: request.service_id,
                qkey: 0,
                private_data: PrivateData::EMPTY,
            };
            return self.send(path, tid, &Message::ServiceReply(Box::new(reply)));
        };
        let mut child = Id::new(space);
        child.local = Some(addr);
        child.peer = Some(SocketAddr::new(header.src, header.src_port));
        child.state = IdState::Service(Box::new(Service {
            is_passive: true,
            is_answered: false,
            answer: None,
            request_id: request.request_id,
            service_id: request.service_id,
            tid,
            path,
            pending: None,
        }));
        let Some(num) = self.add_request(listener, child) else {
            return;
        };
        self.services.insert(peer, num);
        let data = request.private_data.as_slice().get(ip_header::LEN..);
        let what = Occurrence::ServiceRequest {
            child: num,
            private_data: PrivateData::new(data.unwrap_or_default()),
        };
        self.push(listener, what);
    }

    /// Sends the answer to a request again, if already answered.
    fn repeat_answer(&mut self, peer: (std::net::IpAddr, u32)) {
        let service_id = self.services.get(&peer).and_then(|num| self.ids.get(num));
        if let Some(IdState::Service(service)) = service_id.map(|id| &id.state)
            && let Some(answer) = &service.answer
        {
            let again = (service.path, **answer);
            self.out.push_back(again);
        }
    }

    /// Answers a request with a queue pair.
    ///
    /// # Errors
    /// - [`CmError::Invalid`]: the identifier is not a request, or the private data exceed 136 bytes.
    pub fn accept_service(
        &mut self,
        num: IdNum,
        qp_num: u32,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        self.check_service(num, private_data)?;
        let data = PrivateData::padded(private_data, REPLY_LEN);
        self.answer_service(num, ServiceReply::SUCCESS, qp_num, data);
        Ok(())
    }

    /// Rejects a request for a queue pair.
    pub(super) fn reject_service(
        &mut self,
        num: IdNum,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        self.check_service(num, private_data)?;
        let data = PrivateData::padded(private_data, REPLY_LEN);
        self.answer_service(num, ServiceReply::REJECTED, 0, data);
        Ok(())
    }

    fn check_service(&mut self, num: IdNum, private_data: &[u8]) -> Result<(), CmError> {
        match &self.id(num)?.state {
            IdState::Service(service) if service.is_unanswered() => {}
            _ => return Err(CmError::Invalid("there is no question to answer")),
        }
        if private_data.len() > REPLY_LEN {
            return Err(CmError::Invalid("the private data are too long"));
        }
        Ok(())
    }

    /// Sends the answer to a request.
    pub(super) fn answer_service(
        &mut self,
        num: IdNum,
        status: u8,
        qp_num: u32,
        private_data: PrivateData,
    ) {
        let Some(IdState::Service(service)) = self.ids.get_mut(&num).map(|id| &mut id.state) else {
            return;
        };
        service.is_answered = true;
        let reply = ServiceReply {
            request_id: service.request_id,
            status,
            qp_num,
            service_id: service.service_id,
            qkey: if status == ServiceReply::SUCCESS {
                QKEY
            } else {
                0
            },
            private_data,
        };
        let bytes = Message::ServiceReply(Box::new(reply)).encode(service.tid);
        service.answer = Some(Box::new(bytes));
        let answer = (service.path, bytes);
        self.out.push_back(answer);
    }

    pub(super) fn handle_service_reply(&mut self, path: &Path, reply: &ServiceReply) {
        let num = IdNum(reply.request_id);
        let Some(IdState::Service(service)) = self.ids.get_mut(&num).map(|id| &mut id.state) else {
            return;
        };
        if service.is_passive || service.is_answered || service.path.dst != path.dst {
            return;
        }
        service.is_answered = true;
        service.pending = None;
        let what = if reply.status == ServiceReply::SUCCESS {
            Occurrence::ServiceResolved {
                path: service.path,
                qp_num: reply.qp_num,
                qkey: reply.qkey,
                private_data: reply.private_data,
            }
        } else {
            Occurrence::Unreachable {
                status: reply.status.into(),
                private_data: reply.private_data,
            }
        };
        self.push(num, what);
    }
}
