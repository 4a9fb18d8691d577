//! One end of a connection: the messages to send, and those expected.

use cm::{CmId, Connection, phases::HasDevice};
use verbs::{
    Buf, Completed, CompletionQueue, Init, ProtectionDomain, QueuePair, Rts, WcStatus,
    WorkCompletion, op,
};

use crate::{schedule::Schedule, swarm::Violation};

/// Length of the longest message.
const MAX_LEN: usize = 5000;

/// Maximum number of requests in each queue.
const DEPTH: usize = 4;

/// The way a side of a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All messages were received.
    Complete,
    Failed(String),
    /// The host was killed.
    Killed,
    /// The peer ended without a message that arrived.
    Orphan,
}

/// A connection, as known to the test. Arrays have the active side first.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) hosts: [usize; 2],
    /// Number of received messages of all connections at the start.
    pub(super) start: usize,
    pub(super) has_started: bool,
    /// Number of acknowledged messages sent by the side.
    pub(super) acknowledged: [usize; 2],
    pub(super) received: [usize; 2],
    pub(super) outcomes: [Option<Outcome>; 2],
}

impl Record {
    pub(super) fn new(hosts: [usize; 2], start: usize) -> Self {
        Self {
            hosts,
            start,
            has_started: false,
            acknowledged: [0; 2],
            received: [0; 2],
            outcomes: [None, None],
        }
    }

    /// Checks an ended connection.
    pub(super) fn check(&self, schedule: &Schedule) -> Result<(), Violation> {
        // A killed program counts the messages of its polls.
        let is_acknowledged = |side: usize| {
            let has_received = self.acknowledged[side] <= self.received[1 - side];
            has_received || self.outcomes[1 - side] == Some(Outcome::Killed)
        };
        if !is_acknowledged(0) || !is_acknowledged(1) {
            return Err(format!(
                "an acknowledged message was not received: {self:?}"
            ));
        }
        let is_complete = |outcome: &Option<Outcome>| *outcome == Some(Outcome::Complete);
        if schedule.is_gentle() && !self.outcomes.iter().all(is_complete) {
            return Err(format!("an error without an outage: {self:?}"));
        }
        Ok(())
    }
}

/// The bytes of a message.
fn message(connection: usize, side: usize, number: usize) -> Vec<u8> {
    let seed = (connection * 2 + side) * 64 + number;
    let len = 1 + seed.wrapping_mul(0x9e37_79b1) % MAX_LEN;
    let byte = |i: usize| ((i ^ seed << 8).wrapping_mul(0x9e37_79b1) >> 9).to_le_bytes()[0];
    (0..len).map(byte).collect()
}

/// Queues of one end.
pub(super) struct Queues {
    pub(super) connection: usize,
    /// 0 for the active side, 1 for the passive side.
    pub(super) side: usize,
    cq: CompletionQueue,
    pd: ProtectionDomain,
    receives: usize,
    pub(super) sent: usize,
    /// Whether this side has disconnected: flushed requests are expected.
    pub(super) is_closing: bool,
    /// Why the end waits for its requests to be flushed.
    pub(super) stopped: Option<String>,
}

/// Work of any state of a queue pair that posts receives and takes completions.
pub(super) trait Posting {
    fn post_receive(&mut self, buf: Buf);
    /// The status, the number of received bytes, and the buffer; whether of a receive.
    fn done(&mut self, wc: WorkCompletion<'_>) -> (bool, WcStatus, usize, Buf);
}

macro_rules! posting {
    ($($state:ty)*) => {$(
        impl Posting for QueuePair<verbs::Rc, $state> {
            fn post_receive(&mut self, buf: Buf) {
                self.post_recv(buf).unwrap();
            }

            fn done(&mut self, wc: WorkCompletion<'_>) -> (bool, WcStatus, usize, Buf) {
                match self.complete(wc).unwrap() {
                    Completed::Send(done) => {
                        let (status, buf) = done.into_parts();
                        (false, status, 0, buf)
                    }
                    Completed::Receive(done) => {
                        let len = done.byte_len();
                        let (status, buf) = done.into_parts();
                        (true, status, len, buf)
                    }
                }
            }
        }
    )*};
}

posting! { Init Rts }

impl Queues {
    /// Creates the queues of an identifier, and posts receives.
    pub(super) fn new<P: HasDevice>(
        id: &CmId<P>,
        (connection, side): (usize, usize),
        messages: usize,
    ) -> verbs::Result<(Self, QueuePair<verbs::Rc, Init>)> {
        let ctx = id.context()?;
        let pd = ctx.alloc_pd()?;
        let depth = u32::try_from(DEPTH).unwrap_or(0);
        let cq = ctx.cq_builder(2 * depth).create()?;
        let qp = pd
            .qp_builder(&cq, &cq)
            .max_send_wr(depth)
            .max_recv_wr(depth);
        let mut qp = id.init_qp(qp.create()?)?;
        let mut queues = Self {
            connection,
            side,
            cq,
            pd,
            receives: 0,
            sent: 0,
            is_closing: false,
            stopped: None,
        };
        for _ in 0..DEPTH.min(messages) {
            queues.post_receive(&mut qp)?;
        }
        Ok((queues, qp))
    }

    /// Expects flushed requests only from now on.
    pub(super) fn stop(&mut self, reason: &str) {
        self.is_closing = true;
        self.stopped.get_or_insert_with(|| reason.to_owned());
    }

    fn post_receive(&mut self, qp: &mut impl Posting) -> verbs::Result<()> {
        qp.post_receive(self.pd.alloc_buf(MAX_LEN)?);
        self.receives += 1;
        Ok(())
    }

    /// Posts messages while the queue has room.
    pub(super) fn send(
        &mut self,
        connection: &mut Connection,
        record: &Record,
        messages: usize,
    ) -> verbs::Result<()> {
        while self.sent < messages && self.sent < record.acknowledged[self.side] + DEPTH {
            let bytes = message(self.connection, self.side, self.sent);
            let buf = self.pd.register_buf(bytes)?;
            connection.qp_mut().post(op::Send::new(buf))?;
            self.sent += 1;
        }
        Ok(())
    }

    /// Takes completions. Returns the status of a failed request, if any.
    pub(super) fn poll(
        &mut self,
        qp: &mut impl Posting,
        record: &mut Record,
        messages: usize,
    ) -> Result<Option<WcStatus>, Violation> {
        let mut failed = None;
        let mut free = 0;
        for wc in self.cq.poll().map_err(|error| error.to_string())? {
            let (is_receive, status, len, buf) = qp.done(wc);
            if status != WcStatus::SUCCESS {
                if !self.is_closing {
                    failed = failed.or(Some(status));
                }
            } else if is_receive {
                let number = record.received[self.side];
                let expected = message(self.connection, 1 - self.side, number);
                if number >= messages || buf[..len] != expected {
                    return Err(format!(
                        "message {number} of {messages} from side {} of connection {} is another message: {len} bytes",
                        1 - self.side,
                        self.connection
                    ));
                }
                record.received[self.side] += 1;
                free += 1;
            } else {
                record.acknowledged[self.side] += 1;
            }
        }
        if failed.is_none() && !self.is_closing {
            for _ in 0..free.min(messages - self.receives) {
                self.post_receive(qp).map_err(|error| error.to_string())?;
            }
        }
        Ok(failed)
    }

    /// Whether all messages of this side are acknowledged, and all of the peer have arrived.
    pub(super) fn is_complete(&self, record: &Record, messages: usize) -> bool {
        record.acknowledged[self.side] == messages && record.received[self.side] == messages
    }
}
