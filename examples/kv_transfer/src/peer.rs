//! A peer: its lanes, and the messages to it.

use std::{collections::VecDeque, mem};

use anyhow::ensure;
use verbs::{WorkCompletion, qp::QpKey};

use super::{
    lane::{Lane, Outcome, Request},
    message::Message,
};

/// Maximum number of messages that wait for credits. A peer that returns no credits is ended at this number.
const MAX_OUTBOX: usize = 256;

/// A peer of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub(crate) u32);

impl PeerId {
    /// The key of a lane, which its completions return.
    pub(crate) fn key(self, lane: u8) -> QpKey {
        QpKey(u64::from(self.0) << 8 | u64::from(lane))
    }

    /// Peer and lane of a completion.
    pub(crate) fn of(wc: &WorkCompletion<'_>) -> Option<(Self, usize)> {
        let QpKey(key) = wc.qp_id().key()?;
        let peer = u32::try_from(key >> 8).ok()?;
        Some((Self(peer), (key & 0xff) as usize))
    }
}

#[derive(Debug)]
enum LaneState {
    /// Not yet connected.
    Pending,
    Connected(Box<Lane>),
    Closed,
}

#[derive(Debug)]
pub(crate) struct Peer {
    lanes: Vec<LaneState>,
    outbox: VecDeque<Message>,
    /// Messages whose sends failed: the first ones on the next lane.
    unsent: Vec<Message>,
    /// Why the last lane was closed.
    reason: String,
    ending: bool,
}

impl Peer {
    pub(crate) fn new(lanes: usize) -> Self {
        Self {
            lanes: (0..lanes).map(|_| LaneState::Pending).collect(),
            outbox: VecDeque::new(),
            unsent: Vec::new(),
            reason: "no lane has been connected".into(),
            ending: false,
        }
    }

    /// Adds a connected lane, once for each number.
    pub(crate) fn connect(&mut self, number: usize, lane: Lane) {
        self.lanes[number] = LaneState::Connected(Box::new(lane));
    }

    pub(crate) fn lane_count(&self) -> usize {
        self.lanes.len()
    }

    pub(crate) fn is_pending(&self, lane: usize) -> bool {
        matches!(self.lanes.get(lane), Some(LaneState::Pending))
    }

    pub(crate) fn is_complete(&self) -> bool {
        (0..self.lanes.len()).all(|lane| !self.is_pending(lane))
    }

    fn connected(&mut self) -> impl Iterator<Item = (usize, &mut Lane)> {
        let lanes = self.lanes.iter_mut().enumerate();
        lanes.filter_map(|(number, state)| match state {
            LaneState::Connected(lane) => Some((number, lane.as_mut())),
            _ => None,
        })
    }

    /// Numbers of the lanes in use.
    pub(crate) fn open(&mut self) -> Vec<usize> {
        let lanes = self.connected();
        let open = lanes.filter(|(_, lane)| lane.closing().is_none());
        open.map(|(number, _)| number).collect()
    }

    /// A lane in use.
    pub(crate) fn lane(&mut self, number: usize) -> Option<&mut Lane> {
        let mut open = self
            .connected()
            .filter(|(_, lane)| lane.closing().is_none());
        open.find_map(|(of, lane)| (of == number).then_some(lane))
    }

    pub(crate) fn is_closed(&self, lane: usize) -> bool {
        matches!(self.lanes.get(lane), Some(LaneState::Closed))
    }

    /// Closes a lane in use.
    pub(crate) fn close(&mut self, lane: usize, reason: &str) {
        if let Some(lane) = self.lane(lane) {
            lane.close(reason);
        }
    }

    /// Closes all lanes.
    pub(crate) fn end(&mut self, reason: &str) {
        if !self.ending {
            self.ending = true;
            self.reason = reason.to_owned();
        }
        self.connected().for_each(|(_, lane)| lane.close(reason));
        let pending = self.lanes.iter_mut();
        pending
            .filter(|lane| matches!(lane, LaneState::Pending))
            .for_each(|lane| *lane = LaneState::Closed);
    }

    /// The reason, if all lanes have ended: no request of the peer can access memory any more.
    pub(crate) fn lost(&self) -> Option<&str> {
        let mut lanes = self.lanes.iter();
        lanes
            .all(|lane| matches!(lane, LaneState::Closed))
            .then_some(&self.reason)
    }

    /// Queues a message.
    pub(crate) fn push(&mut self, message: Message) -> anyhow::Result<()> {
        ensure!(
            self.outbox.len() < MAX_OUTBOX,
            "the peer returns no credits for {MAX_OUTBOX} messages"
        );
        self.outbox.push_back(message);
        Ok(())
    }

    /// Handles a completion of a lane.
    pub(crate) fn complete(
        &mut self,
        lane: usize,
        wc: WorkCompletion<'_>,
    ) -> anyhow::Result<Outcome> {
        let Some(LaneState::Connected(lane)) = self.lanes.get_mut(lane) else {
            return Ok(Outcome::Nothing);
        };
        match lane.complete(wc)? {
            // The next lane has credits of its own.
            Outcome::Unsent(Request::Message(Message::Credit)) => Ok(Outcome::Nothing),
            Outcome::Unsent(Request::Message(message)) => {
                self.unsent.push(message);
                Ok(Outcome::Nothing)
            }
            outcome => Ok(outcome),
        }
    }

    /// Destroys the queue pairs of drained lanes, and returns their numbers.
    pub(crate) fn reap(&mut self) -> Vec<usize> {
        let mut closed = Vec::new();
        for (number, state) in self.lanes.iter_mut().enumerate() {
            let LaneState::Connected(lane) = state else {
                continue;
            };
            lane.check_connection();
            if lane.is_drained() {
                if !self.ending {
                    self.reason = lane.closing().unwrap_or_default().to_owned();
                }
                *state = LaneState::Closed; // drops the endpoint
                closed.push(number);
            }
        }
        closed
    }

    /// Sends queued messages and credits. All messages use the first lane in use, so that they arrive in order. While a lane is
    /// being closed, none is sent: its unsent messages come first.
    pub(crate) fn pump(&mut self) -> anyhow::Result<()> {
        let unsent = mem::take(&mut self.unsent);
        if self.connected().any(|(_, lane)| lane.closing().is_some()) {
            self.unsent = unsent;
            return Ok(());
        }
        unsent
            .into_iter()
            .rev()
            .for_each(|message| self.outbox.push_front(message));
        let mut outbox = mem::take(&mut self.outbox);
        if let Some((_, lane)) = self.connected().next() {
            while lane.can_send()
                && let Some(message) = outbox.pop_front()
            {
                lane.send(message)?;
            }
        }
        self.outbox = outbox;
        self.connected()
            .try_for_each(|(_, lane)| lane.return_credits())
    }
}
