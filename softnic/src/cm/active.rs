//! The active side of a connection, and the calls of both sides.

use std::time::Duration;

use super::{
    connection::{Connection, Phase},
    error::CmError,
    event::Occurrence,
    id::{Id, IdNum, IdState},
    ip_header::IpCmHeader,
    manager::Manager,
    message::{CommIds, Message},
    param::ConnParam,
    private_data::PrivateData,
    request::{PRIVATE_LEN, Request},
    timers::{Pending, RetryPolicy},
    timing::Timing,
};
use crate::engine::{Path, QpKind};

/// Default partition key of all ports.
pub(super) const PKEY: u16 = 0xffff;

/// Prepends the IP header of a request to the program's private data.
pub(super) fn with_header(
    header: &IpCmHeader,
    data: &[u8],
    len: usize,
) -> Result<PrivateData, CmError> {
    let mut message = header.encode().to_vec();
    message.extend(data);
    if message.len() > len {
        return Err(CmError::Invalid("the private data are too long"));
    }
    Ok(PrivateData::padded(&message, len))
}

impl Manager {
    /// Sends a connection request (REQ) to the peer.
    ///
    /// # Errors
    /// - [`CmError::Invalid`]: the route is not resolved, the identifier is for datagrams, the private data exceed 56
    ///   bytes, or the device has fewer reads and atomics in flight.
    pub fn connect(
        &mut self,
        num: IdNum,
        param: ConnParam,
        private_data: &[u8],
        now: Duration,
    ) -> Result<(), CmError> {
        let (ca_guid, mtu, timing) = (self.ca_guid, self.mtu, self.timing);
        let starting_psn = self.random_psn();
        param.check(self.max_depths)?;
        let param = param.limited(
            (ConnParam::DEVICE_MAX, ConnParam::DEVICE_MAX),
            self.max_depths,
        );
        let id = self.id(num)?;
        let (IdState::RouteResolved, Some(local), Some(peer)) = (&id.state, id.local, id.peer)
        else {
            return Err(CmError::Invalid("the route is not resolved"));
        };
        if id.space.kind() != QpKind::Rc {
            return Err(CmError::Invalid("the identifier is for datagrams"));
        }
        let path = Path {
            traffic_class: id.options.tos,
            ..Path::new(local.ip(), peer.ip())
        };
        let mut request = request(num, id, &path, param, timing);
        (request.ca_guid, request.mtu) = (ca_guid, mtu);
        request.starting_psn = starting_psn;
        request.service_id = id.space.service_id(peer.port());
        let header = IpCmHeader {
            src_port: local.port(),
            src: local.ip(),
            dst: peer.ip(),
        };
        request.private_data = with_header(&header, private_data, PRIVATE_LEN)?;
        let mut connection = asking(num, path, &request, timing);
        let bytes = Message::Request(Box::new(request)).encode(connection.tid);
        connection.pending = Some(Pending::new(path, bytes, connection.retry, now));
        id.state = IdState::Connection(Box::new(connection));
        self.out.push_back((path, bytes));
        self.arm(num);
        Ok(())
    }

    /// Sends the RTU to a peer that has accepted.
    ///
    /// # Errors
    /// - [`CmError::Invalid`]: the peer has not accepted, or has ended the connection.
    pub fn establish(&mut self, num: IdNum) -> Result<(), CmError> {
        let connection = self.connection(num);
        let Some(connection) = connection.filter(|conn| conn.phase == Phase::ReplyReceived) else {
            return Err(CmError::Invalid("the peer has not accepted"));
        };
        connection.phase = Phase::Established;
        let (path, tid, ids) = (connection.path, connection.tid, connection.ids);
        self.send(path, tid, &Message::Ready(ids));
        Ok(())
    }

    /// Disconnects, or acknowledges the peer's disconnect. An `Occurrence::Disconnected` event reports the
    /// acknowledgement or the timeout.
    ///
    /// # Errors
    /// - [`CmError::Invalid`]: the identifier has no connection.
    pub fn disconnect(&mut self, num: IdNum, now: Duration) -> Result<(), CmError> {
        if self.connection(num).is_none() {
            return Err(CmError::Invalid("the identifier has no connection"));
        }
        self.send_disconnect(num, now);
        Ok(())
    }

    /// Sends the DREQ or DREP for the phase of a connection, if any.
    pub(super) fn send_disconnect(&mut self, num: IdNum, now: Duration) {
        let Some(connection) = self.connection(num) else {
            return;
        };
        let (path, tid, ids) = (connection.path, connection.tid, connection.ids);
        match connection.phase {
            Phase::Established => {
                let message = Message::Disconnect(ids, connection.dest_qp);
                let bytes = message.encode(u64::from(num.0));
                connection.phase = Phase::DisconnectSent;
                connection.pending = Some(Pending::new(path, bytes, connection.retry, now));
                self.out.push_back((path, bytes));
            }
            Phase::DisconnectReceived => {
                connection.enter_time_wait(now);
                self.send(path, tid, &Message::Disconnected(ids));
            }
            _ => {}
        }
        self.arm(num);
    }

    /// Notes the arrival of the peer's first packet: evidence of the peer's readiness, although the RTU was lost.
    ///
    /// # Errors
    /// - [`CmError::IsConnected`]: the connection is already established.
    /// - [`CmError::Invalid`]: the identifier has not accepted.
    pub fn note_established(&mut self, num: IdNum) -> Result<(), CmError> {
        let connection = self.connection(num);
        let connection = connection.ok_or(CmError::Invalid("the identifier has no connection"))?;
        match connection.phase {
            Phase::ReplySent => {
                connection.phase = Phase::Established;
                connection.pending = None;
                self.report(num, Occurrence::Established);
                Ok(())
            }
            Phase::Established => Err(CmError::IsConnected),
            _ => Err(CmError::Invalid("the identifier has not accepted")),
        }
    }
}

/// The REQ of an identifier, except the fields filled by the caller.
fn request(num: IdNum, id: &Id, path: &Path, param: ConnParam, timing: Timing) -> Request {
    // A timeout of 0 turns this side's timer off; the peer's is not to be that of 0.
    let option = id.options.ack_timeout.filter(|timeout| *timeout != 0);
    Request {
        local_comm_id: num.0,
        service_id: 0,
        ca_guid: 0,
        kind: Some(QpKind::Rc),
        param,
        starting_psn: 0,
        remote_response_timeout: timing.response_timeout,
        local_response_timeout: timing.response_timeout,
        max_cm_retries: timing.max_retries,
        pkey: PKEY,
        mtu: 0,
        local_addr: path.src,
        remote_addr: path.dst,
        flow_label: path.flow_label,
        traffic_class: path.traffic_class,
        hop_limit: 64,
        ack_timeout: option.unwrap_or(timing.ack_timeout),
        ece: id.ece,
        private_data: PrivateData::EMPTY,
    }
}

/// A new connection in phase `RequestSent`.
fn asking(num: IdNum, path: Path, request: &Request, timing: Timing) -> Connection {
    Connection {
        phase: Phase::RequestSent,
        is_passive: false,
        is_reported: true,
        has_ended: false,
        ids: CommIds {
            local: num.0,
            remote: 0,
        },
        peer_guid: 0,
        retry: RetryPolicy {
            interval: timing.request_interval(),
            max_retries: timing.max_retries,
        },
        tid: u64::from(num.0),
        path,
        local_qp: request.param.qp_num,
        dest_qp: 0,
        sq_psn: 0,
        rq_psn: request.starting_psn,
        mtu: request.mtu,
        ack_timeout: request.ack_timeout,
        retry_count: request.param.retry_count,
        rnr_retry: request.param.rnr_retry_count,
        initiator_depth: request.param.initiator_depth,
        responder_resources: request.param.responder_resources,
        pending: None,
    }
}
