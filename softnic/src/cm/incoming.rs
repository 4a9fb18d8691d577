//! Messages from peers.

use std::{cmp::Reverse, net::IpAddr, time::Duration};

use super::{
    connection::Phase,
    event::Occurrence,
    id::{IdNum, IdState},
    manager::Manager,
    message::{CommIds, Message},
    private_data::PrivateData,
    reply::Reply,
    responses::{Mra, Reject, RejectInfo, Rejected},
    timers::READY_TIMEOUT,
};
use crate::{adversary::Rule, engine::Path};

/// Maximum delay of an RTU by an adversary, in microseconds.
const MAX_DELAY_US: u64 = 500;

impl Manager {
    /// Processes a message from the wire. Malformed messages are dropped; messages without a connection are dropped or
    /// rejected.
    pub fn handle_message(&mut self, from: IpAddr, to: IpAddr, bytes: &[u8], now: Duration) {
        let Some((tid, message)) = Message::decode(bytes) else {
            return;
        };
        if self.is_removed {
            return;
        }
        let path = Path::new(to, from);
        // Messages of a peer stay in order.
        self.expire_ready(|_, late| *late == path);
        match message {
            Message::Request(request) => self.handle_request(path, tid, &request, now),
            Message::Mra(mra) => self.handle_mra(&path, mra, now),
            Message::Reject(reject) => self.handle_reject(&path, &reject, now),
            Message::Reply(reply) => self.handle_reply(&path, tid, &reply, now),
            Message::Ready(ids) => self.handle_ready(path, ids, now),
            Message::Disconnect(ids, qp_num) => {
                self.handle_disconnect(path, tid, (ids, qp_num), now);
            }
            Message::Disconnected(ids) => self.handle_disconnected(&path, ids, now),
            Message::ServiceRequest(request) => self.handle_service_request(path, tid, &request),
            Message::ServiceReply(reply) => self.handle_service_reply(&path, &reply),
        }
    }

    /// Processes an MRA: extends the timeout of the answer.
    fn handle_mra(&mut self, path: &Path, mra: Mra, now: Duration) {
        let num = IdNum(mra.ids.remote);
        let Some(connection) = self.connection(num) else {
            return;
        };
        let expected = match connection.phase {
            Phase::RequestSent => Rejected::Request,
            Phase::ReplySent => Rejected::Reply,
            _ => return,
        };
        if connection.path.dst != path.dst || mra.about != expected {
            return;
        }
        if let Some(pending) = &mut connection.pending {
            pending.postpone(mra.service_timeout, now);
        }
    }

    fn handle_reply(&mut self, path: &Path, tid: u64, reply: &Reply, now: Duration) {
        let num = IdNum(reply.ids.remote);
        let Some(connection) = self.connection(num) else {
            return;
        };
        if connection.is_passive || connection.path.dst != path.dst {
            return;
        }
        match connection.phase {
            Phase::RequestSent => {}
            Phase::Established | Phase::ReplyReceived
                if connection.ids.remote == reply.ids.local =>
            {
                let (path, ids) = (connection.path, connection.ids);
                let again = if connection.phase == Phase::Established {
                    Message::Ready(ids)
                } else {
                    Message::Mra(Mra {
                        ids,
                        about: Rejected::Reply,
                        service_timeout: READY_TIMEOUT,
                    })
                };
                return self.send(path, tid, &again);
            }
            _ => return,
        }
        if self.is_stale_reply(path, tid, reply, now) {
            return;
        }
        let numbers = (reply.ids.local, reply.param.qp_num);
        self.remotes.insert(reply.ca_guid, numbers, num);
        let Some(connection) = self.connection(num) else {
            return;
        };
        connection.phase = Phase::ReplyReceived;
        connection.pending = None;
        connection.tid = tid;
        connection.peer_guid = reply.ca_guid;
        connection.add_ack_delay(reply.ack_delay);
        connection.ids.remote = reply.ids.local;
        connection.dest_qp = reply.param.qp_num;
        connection.sq_psn = reply.starting_psn;
        connection.rnr_retry = reply.param.rnr_retry_count;
        connection.initiator_depth = reply.param.responder_resources;
        connection.responder_resources = reply.param.initiator_depth;
        let what = Occurrence::ConnectResponse {
            param: reply.param.reversed(),
            ece: reply.ece,
            private_data: reply.private_data,
        };
        self.report(num, what);
    }

    /// Drops a reply with the communication id of another connection, and rejects one with the queue pair of another
    /// connection, which has ended for the peer.
    fn is_stale_reply(&mut self, path: &Path, tid: u64, reply: &Reply, now: Duration) -> bool {
        let by_id = self.remotes.with_id((reply.ca_guid, reply.ids.local));
        if by_id.is_some_and(|num| self.live(num).is_some()) {
            return true;
        }
        let by_qp = self.remotes.with_qp((reply.ca_guid, reply.param.qp_num));
        let Some(old) = by_qp.filter(|num| self.live(*num).is_some()) else {
            return false;
        };
        let reject = Reject {
            ids: reply.ids.reversed(),
            about: Rejected::Reply,
            reason: Reject::STALE,
            info: RejectInfo::None,
            private_data: PrivateData::EMPTY,
        };
        self.send(*path, tid, &Message::Reject(Box::new(reject)));
        self.send_disconnect(old, now);
        true
    }

    /// Processes an RTU, or keeps it for a later time by an adversary's decision.
    fn handle_ready(&mut self, path: Path, ids: CommIds, now: Duration) {
        match self.adversary.delay(Rule::EarlyData, MAX_DELAY_US) {
            Some(delay) => {
                let at = now + delay;
                self.late_ready.push((at, path, ids));
                self.timers.push(Reverse((at, IdNum(ids.remote))));
            }
            None => self.finish_handshake(&path, ids),
        }
    }

    /// Processes late RTUs, those due by time and path.
    pub(super) fn expire_ready(&mut self, is_due: impl Fn(Duration, &Path) -> bool) {
        let late = std::mem::take(&mut self.late_ready);
        let (due, rest) = late
            .into_iter()
            .partition(|(at, path, _)| is_due(*at, path));
        let due: Vec<(Duration, Path, CommIds)> = due;
        self.late_ready = rest;
        for (_, path, ids) in due {
            self.finish_handshake(&path, ids);
        }
    }

    fn finish_handshake(&mut self, path: &Path, ids: CommIds) {
        let num = IdNum(ids.remote);
        if let Some(connection) = self.connection(num)
            && connection.is_of(ids, path)
            && connection.phase == Phase::ReplySent
        {
            connection.phase = Phase::Established;
            connection.pending = None;
            self.report(num, Occurrence::Established);
        }
    }

    fn handle_disconnect(
        &mut self,
        path: Path,
        tid: u64,
        (ids, qp_num): (CommIds, u32),
        now: Duration,
    ) {
        let num = IdNum(ids.remote);
        let connection = self.connection(num);
        let Some(connection) = connection.filter(|connection| connection.is_of(ids, &path)) else {
            // Without a connection here, the peer's end has to end, too.
            return self.send(path, tid, &Message::Disconnected(ids.reversed()));
        };
        if connection.local_qp != qp_num {
            return;
        }
        match connection.phase {
            Phase::Established | Phase::ReplySent | Phase::DisconnectSent => {
                connection.phase = Phase::DisconnectReceived;
                connection.pending = None;
                connection.tid = tid;
                self.report(num, Occurrence::Disconnected(0));
            }
            Phase::TimeWait(_) | Phase::Idle => {
                connection.enter_time_wait(now);
                let (path, ids) = (connection.path, connection.ids);
                self.send(path, tid, &Message::Disconnected(ids));
                self.arm(num);
            }
            _ => {}
        }
    }

    fn handle_disconnected(&mut self, path: &Path, ids: CommIds, now: Duration) {
        let num = IdNum(ids.remote);
        if let Some(connection) = self.connection(num)
            && connection.is_of(ids, path)
            && matches!(
                connection.phase,
                Phase::DisconnectSent | Phase::DisconnectReceived
            )
        {
            connection.enter_time_wait(now);
            self.report(num, Occurrence::Disconnected(0));
            self.arm(num);
        }
    }

    fn handle_reject(&mut self, path: &Path, reject: &Reject, now: Duration) {
        let Some(num) = self.rejected(path, reject) else {
            return;
        };
        let Some(connection) = self.connection(num) else {
            return;
        };
        match connection.phase {
            Phase::RequestSent | Phase::RequestReceived | Phase::ReplySent => {
                connection.pending = None;
                connection.phase = Phase::Idle;
            }
            Phase::DisconnectSent | Phase::ReplyReceived | Phase::Established => {
                connection.enter_time_wait(now);
            }
            _ => return,
        }
        let what = Occurrence::Rejected {
            reason: reject.reason,
            private_data: reject.private_data,
        };
        self.report(num, what);
        self.arm(num);
    }

    /// The connection of a rejection. A rejection after a timeout may lack the receiver's number, and names the sender's
    /// device.
    fn rejected(&self, path: &Path, reject: &Reject) -> Option<IdNum> {
        let num = match (reject.reason, reject.info) {
            (Reject::TIMEOUT, RejectInfo::Guid(guid)) => {
                self.remotes.with_id((guid, reject.ids.local))?
            }
            (Reject::TIMEOUT, _) => return None,
            _ => IdNum(reject.ids.remote),
        };
        let IdState::Connection(connection) = &self.ids.get(&num)?.state else {
            return None;
        };
        let matches_peer = connection.ids.remote == reject.ids.local;
        // A rejected request has no number of the passive side yet.
        let is_of = matches_peer || reject.about == Rejected::Request && !connection.is_passive;
        (is_of && connection.path.dst == path.dst).then_some(num)
    }
}
