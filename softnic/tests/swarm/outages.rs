//! The outages of a running schedule.

use std::time::Duration;

use softnic::{Fabric, Host};

use crate::schedule::{Outage, Schedule};

/// Outages of a schedule, pending and active.
#[derive(Debug)]
pub(crate) struct Outages {
    /// Start in received messages, and duration.
    pending: Vec<(usize, Outage, Duration)>,
    /// Time of the end.
    active: Vec<(Duration, Outage)>,
    /// Number of outages so far.
    pub(crate) begun: u64,
}

/// Begin or end of an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Begin(Outage),
    End(Outage),
}

/// A host to be killed, or to be started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    Kill(usize),
    Start(usize),
}

impl Change {
    /// Changes links. Restarts are returned. `host` is a running host.
    pub(crate) fn apply<'a>(
        self,
        fabric: &Fabric,
        host: impl Fn(usize) -> Option<&'a Host>,
    ) -> Option<Restart> {
        match self {
            Self::Begin(Outage::Restart(at)) => return Some(Restart::Kill(at)),
            Self::End(Outage::Restart(at)) => return Some(Restart::Start(at)),
            Self::Begin(Outage::Cut(a, b)) => fabric.cut(host(a)?, host(b)?),
            Self::End(Outage::Cut(a, b)) => fabric.heal(host(a)?, host(b)?),
            Self::Begin(Outage::LinkDown(at)) => fabric.link_down(host(at)?),
            Self::End(Outage::LinkDown(at)) => fabric.link_up(host(at)?),
        }
        None
    }
}

impl Outages {
    pub(crate) fn new(schedule: &Schedule) -> Self {
        Self {
            pending: schedule.outages().collect(),
            active: Vec::new(),
            begun: 0,
        }
    }

    /// Changes due after a number of received messages at a time of the fabric.
    pub(crate) fn due_changes(&mut self, received: usize, now: Duration) -> Vec<Change> {
        let mut changes = Vec::new();
        self.active.retain(|&(end, outage)| {
            let is_over = end <= now;
            if is_over {
                changes.push(Change::End(outage));
            }
            !is_over
        });
        for (start, outage, duration) in std::mem::take(&mut self.pending) {
            if start > received {
                self.pending.push((start, outage, duration));
            } else {
                self.active.push((now + duration, outage));
                self.begun += 1;
                changes.push(Change::Begin(outage));
            }
        }
        changes
    }

    /// The earliest end of the active outages, taken at once.
    pub(crate) fn end_first(&mut self) -> Option<Change> {
        let first = (0..self.active.len()).min_by_key(|at| self.active[*at].0)?;
        Some(Change::End(self.active.remove(first).1))
    }
}
