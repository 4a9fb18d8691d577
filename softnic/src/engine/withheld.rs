//! Completions that an adversary makes visible late.

use std::{collections::VecDeque, time::Duration};

use super::{completion::Completion, ids::SrqId};
use crate::adversary::{Adversary, Rule};

/// Maximum time in microseconds until a completion is visible.
const MAX_DELAY_US: u64 = 40;

/// A completion, and whether it is solicited.
type Entry = (Completion, bool);

/// Completions of one kind of queue, visible all at once: their order stays.
#[derive(Debug, Default)]
struct Burst {
    entries: VecDeque<Entry>,
    until: Duration,
}

/// Completions that are not visible yet. Those of send queues and of receive queues have no common order.
#[derive(Debug, Default)]
pub(super) struct Withheld {
    sends: Burst,
    receives: Burst,
}

impl Withheld {
    /// Adds a completion to a burst in progress, or starts one by a decision of the adversary. A burst ends `not_before` a time.
    /// Returns the end of the burst; `None` if the completion is visible at once.
    pub(super) fn add(
        &mut self,
        entry: Entry,
        (now, not_before): (Duration, Option<Duration>),
        adversary: &Adversary,
    ) -> Option<Duration> {
        let is_receive = entry.0.is_receive();
        let burst = match is_receive {
            true => &mut self.receives,
            false => &mut self.sends,
        };
        if burst.entries.is_empty() {
            let delay = adversary.delay(Rule::Coalesced, MAX_DELAY_US);
            let delay = delay.or_else(|| {
                let overtakes = || adversary.delay(Rule::RecvBeforeSend, MAX_DELAY_US);
                if is_receive { None } else { overtakes() }
            });
            burst.until = delay.map(|delay| now + delay).or(not_before)?;
        }
        burst.until = not_before.map_or(burst.until, |at| burst.until.max(at));
        burst.entries.push_back(entry);
        Some(burst.until)
    }

    /// Takes the completions of bursts that end now or have ended.
    pub(super) fn take(&mut self, now: Duration) -> Vec<Entry> {
        let mut ended = Vec::new();
        // Receives first: nothing orders the two kinds.
        for burst in [&mut self.receives, &mut self.sends] {
            if burst.until <= now {
                ended.extend(burst.entries.drain(..));
            }
        }
        ended
    }

    /// Number of completions.
    pub(super) fn len(&self) -> usize {
        self.sends.entries.len() + self.receives.entries.len()
    }

    /// Removes the completions of a queue pair, and adds the shared receive queues of its receives to `shared`.
    pub(super) fn remove(&mut self, qp: u32, shared: &mut Vec<SrqId>) {
        for burst in [&mut self.receives, &mut self.sends] {
            burst.entries.retain(|(completion, _)| {
                let is_removed = completion.qp == qp;
                shared.extend(completion.srq.filter(|_| is_removed));
                !is_removed
            });
        }
    }
}
