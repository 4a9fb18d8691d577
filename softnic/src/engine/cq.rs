//! Completion queues: capacity, notification and moderation.

use std::{collections::VecDeque, time::Duration};

use super::{
    completion::{Completion, Status},
    ids::SrqId,
    withheld::Withheld,
};
use crate::adversary::Adversary;

/// Kind of requested notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// For the next completion.
    Next,
    /// For the next solicited or failed completion.
    Solicited,
}

/// Moderation of notifications by count and delay, whichever is reached first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Number of completions per notification; 0 and 1 disable moderation.
    pub count: u16,
    /// Maximum delay of a notification.
    pub period: Duration,
}

/// Effect of a new completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// No notification.
    Quiet,
    /// Notify the program now.
    Notify,
    /// Notify the program at this time, unless the count is reached earlier.
    NotifyAt(Duration),
    /// The queue was full: the completion is lost, and the queue takes no more.
    Overrun,
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    ready: VecDeque<Completion>,
    capacity: usize,
    armed: Option<Armed>,
    moderation: Moderation,
    /// Completions since the queue was armed, and the deadline of the notification.
    held_back: (u16, Option<Duration>),
    overrun: bool,
    withheld: Withheld,
    /// Number of queue pairs with this queue.
    pub(super) users: usize,
}

impl CompletionQueue {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            ready: VecDeque::new(),
            capacity,
            armed: None,
            moderation: Moderation::default(),
            held_back: (0, None),
            overrun: false,
            withheld: Withheld::default(),
            users: 0,
        }
    }

    pub(super) fn push(
        &mut self,
        completion: Completion,
        solicited: bool,
        now: Duration,
    ) -> Pushed {
        if self.overrun {
            return Pushed::Quiet;
        }
        if self.len() >= self.capacity {
            self.overrun = true;
            return Pushed::Overrun;
        }
        let failed = completion.status != Status::Success;
        self.ready.push_back(completion);
        match self.armed {
            None => Pushed::Quiet,
            Some(Armed::Solicited) if !(solicited || failed) => Pushed::Quiet,
            Some(_) => self.hold_back(now),
        }
    }

    fn hold_back(&mut self, now: Duration) -> Pushed {
        let (count, until) = &mut self.held_back;
        *count = count.saturating_add(1);
        if *count >= self.moderation.count {
            self.notify();
            return Pushed::Notify;
        }
        match until {
            Some(_) => Pushed::Quiet,
            None if self.moderation.period.is_zero() => Pushed::Quiet,
            None => {
                let at = now + self.moderation.period;
                *until = Some(at);
                Pushed::NotifyAt(at)
            }
        }
    }

    fn notify(&mut self) {
        self.armed = None;
        self.held_back = (0, None);
    }

    /// Whether a delayed notification is due. If so, the queue is disarmed.
    pub(super) fn is_due(&mut self, now: Duration) -> bool {
        let is_due = self.held_back.1.is_some_and(|at| at <= now);
        if is_due {
            self.notify();
        }
        is_due
    }

    /// Arms the queue. A later request for solicited completions does not weaken `Armed::Next`.
    pub(super) fn arm(&mut self, wish: Armed) {
        if self.armed != Some(Armed::Next) {
            self.armed = Some(wish);
        }
    }

    pub(super) fn moderate(&mut self, moderation: Moderation) {
        self.moderation = moderation;
    }

    pub(super) fn poll(&mut self) -> Option<Completion> {
        self.ready.pop_front()
    }

    /// Number of completions.
    pub(super) fn len(&self) -> usize {
        self.ready.len() + self.withheld.len()
    }

    /// Keeps a completion invisible for a time, by an adversary's decision, and `not_before` a time if its bytes are not in the
    /// memory yet. Returns the end of that time; `None` if the completion is visible at once.
    pub(super) fn withhold(
        &mut self,
        completion: Completion,
        solicited: bool,
        (now, not_before): (Duration, Option<Duration>),
        adversary: &Adversary,
    ) -> Option<Duration> {
        let entry = (completion, solicited);
        self.withheld.add(entry, (now, not_before), adversary)
    }

    /// Takes the withheld completions whose time is over, in order.
    pub(super) fn take_withheld(&mut self, now: Duration) -> Vec<(Completion, bool)> {
        self.withheld.take(now)
    }

    /// Ends the request for a notification.
    pub(super) fn disarm(&mut self) {
        self.notify();
    }

    /// Changes the capacity. Returns false if more completions are pending.
    pub(super) fn resize(&mut self, capacity: usize) -> bool {
        let fits = self.len() <= capacity;
        if fits {
            self.capacity = capacity;
        }
        fits
    }

    /// Removes the completions of a queue pair. Returns the shared receive queues of removed receives.
    pub(super) fn remove(&mut self, qp: u32) -> Vec<SrqId> {
        let mut shared = Vec::new();
        self.ready.retain(|completion| {
            let is_removed = completion.qp == qp;
            shared.extend(completion.srq.filter(|_| is_removed));
            !is_removed
        });
        self.withheld.remove(qp, &mut shared);
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::completion::CompletionOp;

    const NOW: Duration = Duration::from_secs(1);

    fn completion(status: Status) -> Completion {
        Completion {
            wr_id: 1,
            status,
            op: CompletionOp::Receive,
            byte_len: 0,
            imm: None,
            invalidated: None,
            qp: 7,
            src_qp: 0,
            src: None,
            header: None,
            time: NOW,
            ended: 1,
            late_bytes: None,
            srq: None,
        }
    }

    #[test]
    fn armed_cq_notifies_once() {
        let mut cq = CompletionQueue::new(8);
        let ok = completion(Status::Success);
        assert_eq!(cq.push(ok, false, NOW), Pushed::Quiet);
        cq.arm(Armed::Next);
        assert_eq!(cq.push(ok, false, NOW), Pushed::Notify);
        assert_eq!(cq.push(ok, false, NOW), Pushed::Quiet);
    }

    #[test]
    fn cq_armed_for_solicited_waits_for_solicited_or_failed_completions() {
        let mut cq = CompletionQueue::new(8);
        let ok = completion(Status::Success);
        cq.arm(Armed::Solicited);
        assert_eq!(cq.push(ok, false, NOW), Pushed::Quiet);
        assert_eq!(cq.push(ok, true, NOW), Pushed::Notify);
        cq.arm(Armed::Solicited);
        let failed = completion(Status::Flushed);
        assert_eq!(cq.push(failed, false, NOW), Pushed::Notify);
        cq.arm(Armed::Next);
        cq.arm(Armed::Solicited);
        assert_eq!(
            cq.push(ok, false, NOW),
            Pushed::Notify,
            "the stronger wish stays"
        );
    }

    #[test]
    fn moderation_holds_back_until_count_or_period() {
        let mut cq = CompletionQueue::new(8);
        let ok = completion(Status::Success);
        let period = Duration::from_micros(50);
        cq.moderate(Moderation { count: 3, period });
        cq.arm(Armed::Next);
        assert_eq!(cq.push(ok, false, NOW), Pushed::NotifyAt(NOW + period));
        assert_eq!(cq.push(ok, false, NOW), Pushed::Quiet);
        assert_eq!(cq.push(ok, false, NOW), Pushed::Notify);
        assert!(!cq.is_due(NOW + period), "notified already");
        cq.arm(Armed::Next);
        assert_eq!(cq.push(ok, false, NOW), Pushed::NotifyAt(NOW + period));
        assert!(!cq.is_due(NOW));
        assert!(cq.is_due(NOW + period));
        assert!(!cq.is_due(NOW + period), "once");
    }

    #[test]
    fn overrun_is_reported_once() {
        let mut cq = CompletionQueue::new(1);
        let ok = completion(Status::Success);
        assert_eq!(cq.push(ok, false, NOW), Pushed::Quiet);
        assert!(!cq.resize(0));
        assert_eq!(cq.push(ok, false, NOW), Pushed::Overrun);
        assert_eq!(cq.push(ok, false, NOW), Pushed::Quiet);
        assert!(cq.poll().is_some());
        assert!(cq.poll().is_none());
    }
}
