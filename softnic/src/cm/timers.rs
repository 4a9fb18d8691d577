//! Retransmission of unanswered messages, and timers.

use std::{cmp::Reverse, time::Duration};

use super::{
    connection::Phase,
    event::Occurrence,
    id::{IdNum, IdState},
    mad::MAD_LEN,
    manager::Manager,
    private_data::PrivateData,
    responses::Reject,
};
use crate::engine::Path;

/// Maximum code of a response timeout requested by a peer, 69 s, as granted to programs: 16 copies take 18 min.
const MAX_RESPONSE_TIMEOUT: u8 = 24;

/// Code of the time granted to a program for its answer to a request, 69 s as on Linux.
pub(super) const SERVICE_TIMEOUT: u8 = 24;

/// Code of the time granted to a program for its answer to a reply, 4.3 s: a reply is sent again after this time if the
/// RTU is lost.
pub(super) const READY_TIMEOUT: u8 = 20;

/// Duration of a code: 4.096 µs · 2^code.
pub(super) fn time(code: u8) -> Duration {
    Duration::from_nanos(4096 << (code & 0x1f))
}

/// Interval and number of the retries of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RetryPolicy {
    pub(super) interval: Duration,
    pub(super) max_retries: u8,
}

impl RetryPolicy {
    /// The policy requested by a peer: its response timeout, as a code, and a number of retries.
    pub(super) fn of_peer(response_timeout: u8, max_retries: u8) -> Self {
        Self {
            interval: time(response_timeout.min(MAX_RESPONSE_TIMEOUT)),
            max_retries,
        }
    }

    /// Time of all copies of a message.
    pub(super) fn total(self) -> Duration {
        self.interval * (u32::from(self.max_retries) + 1)
    }
}

/// A message with an expected answer.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) path: Path,
    pub(super) bytes: [u8; MAD_LEN],
    /// Deadline of the next retry.
    pub(super) at: Duration,
    interval: Duration,
    /// Number of retries left.
    retries_left: u8,
    /// Whether the receiver has extended the timeout since the latest copy.
    is_postponed: bool,
}

impl Pending {
    /// Wraps a message just sent.
    pub(super) fn new(
        path: Path,
        bytes: [u8; MAD_LEN],
        retry: RetryPolicy,
        now: Duration,
    ) -> Box<Self> {
        Box::new(Self {
            path,
            bytes,
            at: now + retry.interval,
            interval: retry.interval,
            retries_left: retry.max_retries,
            is_postponed: false,
        })
    }

    /// Extends the timeout, as requested by the receiver (MRA), once for each copy of the message.
    pub(super) fn postpone(&mut self, service_timeout: u8, now: Duration) {
        if !self.is_postponed {
            self.is_postponed = true;
            self.at = now + time(service_timeout) + self.interval;
        }
    }

    /// Counts a retry, and returns the message; `None` if no retry is left.
    fn retry(&mut self, now: Duration) -> Option<(Path, [u8; MAD_LEN])> {
        self.retries_left = self.retries_left.checked_sub(1)?;
        self.at = now + self.interval;
        self.is_postponed = false;
        Some((self.path, self.bytes))
    }
}

impl Manager {
    /// Adds the deadline of an identifier to the timers, unless an earlier entry exists.
    pub(super) fn arm(&mut self, num: IdNum) {
        let Some(id) = self.ids.get_mut(&num) else {
            return;
        };
        if let Some(deadline) = id.deadline()
            && id.timer.is_none_or(|timer| deadline < timer)
        {
            id.timer = Some(deadline);
            self.timers.push(Reverse((deadline, num)));
        }
    }

    /// Deadline of the next call to [`handle_timeout`](Self::handle_timeout); may be earlier than any action.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// Processes all timers up to `now`.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.expire_ready(|at, _| at <= now);
        while let Some(&Reverse((at, num))) = self.timers.peek()
            && at <= now
        {
            self.timers.pop();
            let Some(id) = self.ids.get_mut(&num) else {
                continue;
            };
            id.timer = id.timer.filter(|timer| *timer != at);
            if id.deadline().is_some_and(|deadline| deadline <= now) {
                self.expire(num, now);
            }
            self.arm(num);
        }
    }

    /// Processes an expired identifier: retransmits, or ends the phase.
    fn expire(&mut self, num: IdNum, now: Duration) {
        let Some(id) = self.ids.get_mut(&num) else {
            return;
        };
        let pending = match &mut id.state {
            IdState::ResolvingAddr { errno, .. } => {
                let status = -*errno;
                id.state = IdState::Bound;
                self.push(num, Occurrence::AddrError(status));
                return;
            }
            IdState::Connection(connection) => {
                if let Phase::TimeWait(_) = connection.phase {
                    connection.phase = Phase::Idle;
                    self.report(num, Occurrence::TimewaitExit);
                    return;
                }
                &mut connection.pending
            }
            IdState::Service(service) => &mut service.pending,
            _ => return,
        };
        let again = pending.as_mut().and_then(|message| message.retry(now));
        if let Some(again) = again {
            self.out.push_back(again);
        } else {
            *pending = None;
            self.give_up(num, now);
        }
    }

    /// Ends an unanswered exchange.
    fn give_up(&mut self, num: IdNum, now: Duration) {
        let Some(id) = self.ids.get_mut(&num) else {
            return;
        };
        match &mut id.state {
            IdState::Connection(connection) if connection.phase == Phase::DisconnectSent => {
                connection.enter_time_wait(now);
                self.report(num, Occurrence::Disconnected(-super::connection::ETIMEDOUT));
            }
            // The peer may have sent an RTU that was lost, and counts as connected.
            IdState::Connection(connection) if connection.phase == Phase::ReplySent => {
                self.refuse(num, Reject::TIMEOUT, PrivateData::EMPTY, now);
                self.report(num, unanswered());
            }
            IdState::Connection(connection) => {
                connection.phase = Phase::Idle;
                self.report(num, unanswered());
            }
            IdState::Service(_) => self.push(num, unanswered()),
            _ => {}
        }
    }
}

fn unanswered() -> Occurrence {
    Occurrence::Unreachable {
        status: -super::connection::ETIMEDOUT,
        private_data: PrivateData::EMPTY,
    }
}
