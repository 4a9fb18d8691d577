//! The send queue of messages: unsent, unacknowledged, and acknowledged with requests in flight.

use std::collections::VecDeque;

use super::{
    message::{Direction, Draft, Finished, Message, MessageOutcome, Notification, Report, Status},
    pongs::Pongs,
};
use crate::wire::{FRAGMENT, Flags};

/// Progress of an operation.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    /// The device has completed the operation.
    done: bool,
    status: Option<Status>,
    notified: bool,
}

/// Part of a message performed by a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    Rdma,
    Atomic,
    Frame,
    LastFrame,
}

/// Status of a completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Completion {
    /// The request succeeded.
    Success,
    /// The peer's device has rejected the request.
    RemoteError,
    /// The request was flushed after a connection error.
    Flushed,
    /// Another error.
    OtherError,
}

#[derive(Debug)]
pub(super) struct Entry<P> {
    pub(super) sequence: u64,
    /// `None` for a pong.
    pub(super) message: Option<Message<P>>,
    pub(super) from: u16,
    pub(super) to: u16,
    pub(super) flags: Flags,
    /// Requests without a completion.
    in_flight: u32,
    /// How the message ends once its requests have completed.
    outcome: Option<MessageOutcome>,
    /// The end of the message triggers a notification other than free buffer space.
    matters: bool,
    rdma: Outcome,
    atomic: Outcome,
}

impl<P> Entry<P> {
    pub(super) fn new(sequence: u64, message: Message<P>, flags: Flags) -> Self {
        Self {
            from: message.from,
            to: message.to,
            matters: !message.draft.is_plain(),
            message: Some(message),
            ..Self::pong(sequence, 0, flags)
        }
    }

    pub(super) fn pong(sequence: u64, to: u16, flags: Flags) -> Self {
        Self {
            sequence,
            message: None,
            from: 0,
            to,
            flags,
            in_flight: 0,
            outcome: None,
            matters: false,
            rdma: Outcome::default(),
            atomic: Outcome::default(),
        }
    }

    /// The content, unless the entry is a pong.
    pub(super) fn draft(&self) -> Option<&Draft<P>> {
        self.message.as_ref().map(|message| &message.draft)
    }

    pub(super) fn len(&self) -> u32 {
        self.draft().map_or(0, |draft| draft.len)
    }

    pub(super) fn is_silent(&self) -> bool {
        self.draft().is_some_and(Draft::is_silent)
    }

    /// Whether no send completion is needed to finish the message. A cancelled message waits for
    /// its completions.
    pub(super) fn is_plain(&self) -> bool {
        self.outcome.is_none() && self.draft().is_none_or(Draft::is_plain)
    }

    fn has_operation(&self) -> bool {
        self.draft().is_some_and(Draft::has_operation)
    }

    /// The operations with their progress; `true` marks the RDMA operation.
    fn operations(&mut self) -> impl Iterator<Item = (Report, &mut Outcome, bool)> {
        let draft = self.draft();
        let rdma = draft.and_then(|draft| Some(draft.rdma.as_ref()?.report));
        let atomic = draft.and_then(|draft| Some(draft.atomic.as_ref()?.report));
        let rdma = rdma.map(|report| (report, &mut self.rdma, true));
        let atomic = atomic.map(|report| (report, &mut self.atomic, false));
        rdma.into_iter().chain(atomic)
    }

    /// Sets the status of unfinished operations selected by `which`, and queues requested
    /// notifications.
    fn set_status(
        &mut self,
        notifications: &mut VecDeque<Notification>,
        status: Status,
        which: impl Fn(Report, bool) -> bool,
    ) {
        let Some(owner) = self.message.as_ref().map(|message| message.owner) else {
            return;
        };
        for (report, outcome, is_rdma) in self.operations() {
            if outcome.status.is_some() || !which(report, is_rdma) {
                continue;
            }
            outcome.status = Some(status);
            if report.notify {
                outcome.notified = true;
                notifications.push_back(Notification {
                    owner,
                    token: report.token,
                    status,
                    requested: true,
                });
            }
        }
    }

    /// Whether an operation of a finished message was performed. An acknowledged message proves
    /// that earlier writes were performed, but not that the data of earlier reads has arrived.
    fn is_done(&self, is_rdma: bool) -> bool {
        let draft = self.draft();
        let rdma = draft.and_then(|draft| draft.rdma.as_ref());
        let writes = rdma.is_some_and(|rdma| rdma.direction == Direction::Write);
        let outcome = if is_rdma { self.rdma } else { self.atomic };
        outcome.done || is_rdma && writes && !self.is_silent()
    }

    /// Handles the completion of a request.
    fn completed(
        &mut self,
        notifications: &mut VecDeque<Notification>,
        part: Part,
        completion: Completion,
    ) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let status = match completion {
            Completion::Success => Status::Success,
            Completion::RemoteError => Status::RemoteError,
            Completion::OtherError => Status::OtherError,
            // The status is determined when all requests have completed.
            Completion::Flushed => return,
        };
        let success = status == Status::Success;
        match part {
            Part::Rdma => self.rdma.done = success,
            Part::Atomic => self.atomic.done = success,
            Part::Frame | Part::LastFrame => {}
        }
        match part {
            Part::Frame => {}
            Part::LastFrame => self.set_status(notifications, status, |report, _| {
                !success || !report.remote
            }),
            // Success is reported with the completion of the message, if one follows.
            Part::Rdma | Part::Atomic if success && !self.is_silent() => {}
            Part::Rdma => self.set_status(notifications, status, |_, is_rdma| is_rdma),
            Part::Atomic => self.set_status(notifications, status, |_, is_rdma| !is_rdma),
        }
    }
}

/// All messages of a connection in order of sequence number: first those sent and unacknowledged,
/// then unsent ones.
#[derive(Debug)]
pub(super) struct Queue<P> {
    entries: VecDeque<Entry<P>>,
    /// Number of entries picked for sending.
    picked: usize,
    /// Highest acknowledged sequence number, not retired yet; 0 for none.
    handled: u64,
    /// Finished entries with requests in flight.
    leaving: VecDeque<Entry<P>>,
    /// Number of pongs among the entries.
    pub(super) pongs: Pongs,
    /// Number of entries with [`Entry::matters`] set.
    observed_ends: usize,
    /// Incomplete requests of operations and of messages after them.
    operations: usize,
    pub(super) finished: VecDeque<Finished<P>>,
    pub(super) notifications: VecDeque<Notification>,
}

impl<P> Queue<P> {
    pub(super) fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            picked: 0,
            handled: 0,
            leaving: VecDeque::new(),
            pongs: Pongs::default(),
            observed_ends: 0,
            operations: 0,
            finished: VecDeque::new(),
            notifications: VecDeque::new(),
        }
    }

    pub(super) fn push(&mut self, entry: Entry<P>) {
        if entry.message.is_none() {
            self.pongs.add();
        }
        self.observed_ends += usize::from(entry.matters);
        self.entries.push_back(entry);
    }

    /// Calls `each` for every unfinished message in order.
    pub(super) fn waiting(&self, mut each: impl FnMut(bool, u64, (u16, u16), u32, Flags)) {
        let all = self.entries.iter().enumerate();
        for (at, entry) in all.skip_while(|(_, entry)| self.is_over(entry)) {
            let (sent, ports) = (at < self.picked, (entry.from, entry.to));
            each(sent, entry.sequence, ports, entry.len(), entry.flags);
        }
    }

    /// Whether a message is being sent or is unacknowledged.
    fn has_picked(&self) -> bool {
        self.last_picked()
            .is_some_and(|entry| entry.sequence > self.handled)
    }

    /// Whether a message is unsent.
    pub(super) fn has_unpicked(&self) -> bool {
        self.picked < self.entries.len()
    }

    /// Whether an unsent message will be visible to the peer.
    pub(super) fn has_unpicked_frames(&self) -> bool {
        let mut unpicked = self.entries.range(self.picked..);
        unpicked.any(|entry| !entry.is_silent())
    }

    /// Whether a message is unsent or unacknowledged.
    pub(super) fn has_unacknowledged(&self) -> bool {
        if !self.has_messages() {
            return false;
        }
        let mut messages = self.entries.iter().rev();
        let last = messages.find(|entry| entry.message.is_some());
        last.is_some_and(|last| !self.is_over(last))
    }

    /// Whether an entry is a message. Pongs are none: a peer has them queued as it likes.
    pub(super) fn has_messages(&self) -> bool {
        self.entries.len() > self.pongs.count() || !self.leaving.is_empty()
    }

    /// Picks the next unsent message.
    pub(super) fn pick(&mut self) -> Option<&mut Entry<P>> {
        let entry = self.entries.get_mut(self.picked)?;
        self.picked += 1;
        Some(entry)
    }

    /// Whether the next unsent message is a single frame without operations.
    pub(super) fn next_is_short(&self) -> bool {
        let next = self.entries.get(self.picked);
        next.is_some_and(|entry| !entry.has_operation() && entry.len() <= FRAGMENT)
    }

    /// Picks and posts the next unsent message, a single frame.
    pub(super) fn post_short(&mut self) -> Option<&Entry<P>> {
        let entry = self.pick()?;
        entry.in_flight += 1;
        Some(entry)
    }

    /// The message picked last.
    pub(super) fn last_picked(&self) -> Option<&Entry<P>> {
        self.entries.get(self.picked.checked_sub(1)?)
    }

    pub(super) fn find(&mut self, sequence: u64) -> Option<&mut Entry<P>> {
        let at = self.position(sequence);
        self.entries
            .get_mut(at)
            .filter(|entry| entry.sequence == sequence)
    }

    /// A message with requests in flight, finished or not.
    pub(super) fn get(&self, sequence: u64) -> Option<&Entry<P>> {
        let at = self.position(sequence);
        let listed = self.entries.get(at);
        let mut all = listed.into_iter().chain(self.leaving.iter().rev());
        all.find(|entry| entry.sequence == sequence)
    }

    /// Index of the message, or of its insertion point.
    fn position(&self, sequence: u64) -> usize {
        // Sequence numbers are consecutive, except where messages were cancelled.
        let first = self.entries.front().map_or(0, |entry| entry.sequence);
        let at = usize::try_from(sequence.wrapping_sub(first)).unwrap_or(usize::MAX);
        match self.entries.get(at) {
            Some(entry) if entry.sequence == sequence => at,
            _ => self
                .entries
                .partition_point(|entry| entry.sequence < sequence),
        }
    }

    /// Counts a posted request of a message.
    pub(super) fn posted(&mut self, sequence: u64) {
        if let Some(entry) = self.find(sequence) {
            entry.in_flight += 1;
            self.operations += usize::from(entry.has_operation());
        }
    }

    /// Whether a send completion will finish a message or an operation.
    pub(super) fn awaits_device(&self) -> bool {
        self.operations > 0 || !self.leaving.is_empty()
    }

    /// Handles the posting of the last request of a message.
    pub(super) fn all_posted(&mut self, sequence: u64) {
        let at = self.position(sequence);
        let Some(entry) = self.entries.get(at) else {
            return;
        };
        // A silent message is not acknowledged; it ends with its operations.
        let ended = entry
            .outcome
            .or(entry.is_silent().then_some(MessageOutcome::Done));
        if let Some(outcome) = ended {
            self.finish_at(at, outcome);
        }
    }

    /// Records an acknowledgement, to be processed [later](Self::retire_acked). Returns whether
    /// everything sent is now acknowledged.
    pub(super) fn acknowledged(&mut self, sequence: u64) -> bool {
        let waited = self.has_picked();
        self.handled = self.handled.max(sequence);
        waited && !self.has_picked()
    }

    /// Whether a listed entry is acknowledged.
    fn is_over(&self, entry: &Entry<P>) -> bool {
        let sent = self.picked > 0 || entry.flags.contains(Flags::RETRANSMITTED);
        sent && entry.sequence <= self.handled
    }

    /// Whether acknowledged messages are not retired yet.
    pub(super) fn has_acked(&self) -> bool {
        self.handled != 0
    }

    /// Number of acknowledged messages not retired yet.
    pub(super) fn acked_len(&self) -> u64 {
        let first = self
            .entries
            .front()
            .map_or(u64::MAX, |entry| entry.sequence);
        self.handled.saturating_add(1).saturating_sub(first)
    }

    /// Whether nothing but buffer space depends on retiring.
    pub(super) fn can_retire_later(&self) -> bool {
        self.observed_ends == 0
    }

    /// Retires acknowledged messages.
    pub(super) fn retire_acked(&mut self) {
        if !self.has_acked() {
            return;
        }
        while let Some(front) = self.entries.front() {
            if !self.is_over(front) {
                break;
            }
            self.finish_at(0, MessageOutcome::Done);
        }
        self.handled = 0;
    }

    /// Removes an entry. The message finishes now, or after its completions if the caller needs
    /// them.
    fn finish_at(&mut self, at: usize, outcome: MessageOutcome) {
        let Some(mut entry) = self.entries.remove(at) else {
            return;
        };
        if at < self.picked {
            self.picked -= 1;
        }
        if entry.message.is_none() {
            self.pongs.remove();
        }
        self.observed_ends -= usize::from(entry.matters);
        let is_plain = entry.is_plain();
        entry.outcome.get_or_insert(outcome);
        if entry.in_flight == 0 || is_plain {
            self.finish(entry);
        } else {
            self.leaving.push_back(entry);
        }
    }

    /// Finishes a removed message.
    fn finish(&mut self, mut entry: Entry<P>) {
        let mut outcome = entry.outcome.unwrap_or(MessageOutcome::Done);
        let mut failed = None;
        if entry.has_operation() {
            (outcome, failed) = self.finish_operations(&mut entry, outcome);
        }
        if let Some(message) = entry.message {
            self.finished.push_back(Finished {
                sequence: entry.sequence,
                message,
                outcome,
                failed,
            });
        }
    }

    /// Finishes the operations of a finished message. Returns the outcome of the message, and the
    /// first failure of an operation.
    fn finish_operations(
        &mut self,
        entry: &mut Entry<P>,
        mut outcome: MessageOutcome,
    ) -> (MessageOutcome, Option<Status>) {
        if outcome == MessageOutcome::Cancelled {
            entry.set_status(&mut self.notifications, Status::Cancelled, |_, _| true);
        } else if outcome == MessageOutcome::Done {
            let (rdma, atomic) = (entry.is_done(true), entry.is_done(false));
            let done = |_, is_rdma| if is_rdma { rdma } else { atomic };
            entry.set_status(&mut self.notifications, Status::Success, done);
        }
        entry.set_status(&mut self.notifications, Status::Dropped, |_, _| true);
        let dropped = |outcome: &Outcome| outcome.status == Some(Status::Dropped);
        if entry.is_silent() && [entry.rdma, entry.atomic].iter().any(dropped) {
            outcome = MessageOutcome::Dropped;
        }
        let mut failed = None;
        let Some(owner) = entry.message.as_ref().map(|message| message.owner) else {
            return (outcome, failed);
        };
        for (report, outcome, _) in entry.operations() {
            let failure = outcome.status.filter(|&status| status != Status::Success);
            failed = failed.or(failure);
            match failure {
                Some(status) if !outcome.notified => {
                    self.notifications.push_back(Notification {
                        owner,
                        token: report.token,
                        status,
                        requested: false,
                    });
                }
                _ => {}
            }
        }
        (outcome, failed)
    }

    /// Handles the completion of a request.
    pub(super) fn completed(&mut self, sequence: u64, part: Part, completion: Completion) {
        self.retire_acked();
        let at = self
            .leaving
            .iter()
            .position(|entry| entry.sequence == sequence);
        if let Some(mut entry) = at.and_then(|at| self.leaving.remove(at)) {
            self.operations = self.operations.saturating_sub(entry.has_operation().into());
            entry.completed(&mut self.notifications, part, completion);
            if entry.in_flight == 0 {
                self.finish(entry);
            } else {
                self.leaving.push_back(entry);
            }
            return;
        }
        let at = self.position(sequence);
        if let Some(entry) = self
            .entries
            .get_mut(at)
            .filter(|entry| entry.sequence == sequence)
        {
            self.operations = self.operations.saturating_sub(entry.has_operation().into());
            entry.completed(&mut self.notifications, part, completion);
        }
    }

    /// Removes the messages selected by `which`. A partially posted message, `current`, is sent
    /// completely first.
    pub(super) fn withdraw(
        &mut self,
        current: Option<u64>,
        outcome: MessageOutcome,
        which: impl Fn(&Message<P>) -> bool,
    ) {
        self.retire_acked();
        let mut at = 0;
        while let Some(entry) = self.entries.get_mut(at) {
            if !entry.message.as_ref().is_some_and(&which) {
                at += 1;
            } else if Some(entry.sequence) == current {
                entry.outcome = Some(outcome);
                self.observed_ends += usize::from(!entry.matters);
                entry.matters = true;
                at += 1;
            } else {
                self.finish_at(at, outcome);
            }
        }
    }

    /// Calls `each` with the payload of every listed message.
    pub(super) fn payloads(&self, each: impl FnMut(&P)) {
        let entries = self.entries.iter().chain(&self.leaving);
        entries
            .filter_map(|entry| Some(&entry.draft()?.payload))
            .for_each(each);
    }

    /// Resets after the loss of the connection, when every request has completed. Returns the number of
    /// messages to be sent again.
    pub(super) fn reset(&mut self) -> u64 {
        self.retire_acked();
        self.operations = 0;
        for mut entry in std::mem::take(&mut self.leaving) {
            entry.in_flight = 0;
            self.finish(entry);
        }
        let mut at = 0;
        for _ in 0..self.picked {
            let Some(entry) = self.entries.get_mut(at) else {
                break;
            };
            entry.in_flight = 0;
            if entry.outcome.is_some() {
                self.finish_at(at, MessageOutcome::Cancelled);
            } else if entry.has_operation() {
                // Repeating an operation may be harmful.
                self.finish_at(at, MessageOutcome::Dropped);
            } else {
                entry.flags |= Flags::RETRANSMITTED | Flags::ACK_REQUIRED;
                at += 1;
            }
        }
        self.picked = 0;
        at as u64
    }
}
