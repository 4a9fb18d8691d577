//! The completion queue of a program, optionally with timestamps of received messages.

use std::fmt;

use anyhow::ensure;
use verbs::{
    CompletionQueue, Context, WorkCompletion,
    cq::{CqHandle, ExtendedCq, WcFields},
};

/// A source of completions.
pub trait Source {
    /// Passes all pending completions to `take`; if `wait` is set, blocks until at least one is ready.
    ///
    /// # Errors
    /// The queue has failed, or `take` has failed.
    fn fetch(
        &mut self,
        wait: bool,
        take: impl FnMut(WorkCompletion<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()>;
}

impl Source for CompletionQueue {
    fn fetch(
        &mut self,
        wait: bool,
        mut take: impl FnMut(WorkCompletion<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut completions = match wait {
            true => self.wait(None)?,
            false => self.poll()?,
        };
        completions.try_for_each(&mut take)
    }
}

/// A completion queue with or without timestamps.
#[derive(Debug)]
pub enum AnyQueue {
    /// Completions without timestamps.
    Plain(CompletionQueue),
    /// Completions with timestamps; records the intervals between received messages.
    Timed(ExtendedCq, Intervals),
}

impl AnyQueue {
    /// Creates a queue of `entries` entries, with a completion channel if `events` is set.
    ///
    /// # Errors
    /// The device is at a limit.
    pub fn plain(context: &Context, entries: u32, events: bool) -> anyhow::Result<Self> {
        let mut cq = context.cq_builder(entries);
        if events {
            cq = cq.waitable();
        }
        Ok(Self::Plain(cq.create()?))
    }

    /// Creates a queue with completion timestamps.
    ///
    /// # Errors
    /// The device has no clock for completions, or is at a limit.
    pub fn timed(context: &Context, entries: u32, events: bool) -> anyhow::Result<Self> {
        let mask = context.query_device()?.completion_timestamp_mask();
        ensure!(mask != 0, "the device isn't completion timestamp capable");
        let mut cq = context
            .cq_ex_builder(entries)
            .with(WcFields::COMPLETION_TIMESTAMP);
        if events {
            cq = cq.waitable();
        }
        Ok(Self::Timed(cq.create()?, Intervals::new(mask)))
    }

    /// Handle for creating queue pairs.
    pub fn handle(&self) -> &CqHandle {
        match self {
            Self::Plain(cq) => cq.handle(),
            Self::Timed(cq, _) => cq.handle(),
        }
    }

    /// The recorded intervals, if completions have timestamps.
    pub fn intervals(&self) -> Option<&Intervals> {
        match self {
            Self::Plain(_) => None,
            Self::Timed(_, intervals) => Some(intervals),
        }
    }
}

impl Source for AnyQueue {
    fn fetch(
        &mut self,
        wait: bool,
        mut take: impl FnMut(WorkCompletion<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let (cq, intervals) = match self {
            Self::Plain(cq) => return cq.fetch(wait, take),
            Self::Timed(cq, intervals) => (cq, intervals),
        };
        let polled = match wait {
            true => cq.wait(None)?,
            false => cq.poll()?,
        };
        let Some(mut polled) = polled else {
            return Ok(());
        };
        while let Some(wc) = polled.next()? {
            if wc.is_receive() && wc.ok().is_ok() {
                intervals.note(wc.completion_ts()?);
            }
            take(wc.into_work_completion())?;
        }
        Ok(())
    }
}

/// Maximum, minimum and sum of the intervals between received messages, in ticks of the device's clock.
#[derive(Debug)]
pub struct Intervals {
    /// Bit mask of the clock's width.
    mask: u64,
    last: Option<u64>,
    max: u64,
    min: u64,
    total: u64,
    count: u32,
}

impl Intervals {
    /// Creates an empty record for a clock of this width.
    pub fn new(mask: u64) -> Self {
        Self {
            mask,
            last: None,
            max: 0,
            min: u64::MAX,
            total: 0,
            count: 0,
        }
    }

    /// Records the arrival time of a message. The clock may have wrapped since the last.
    pub fn note(&mut self, now: u64) {
        if let Some(last) = self.last.replace(now) {
            let interval = now.wrapping_sub(last) & self.mask;
            self.max = self.max.max(interval);
            self.min = self.min.min(interval);
            self.total = self.total.wrapping_add(interval);
            self.count += 1;
        }
    }
}

impl fmt::Display for Intervals {
    /// Formats the statistics as in C; empty without intervals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.count == 0 {
            return Ok(());
        }
        #[expect(clippy::cast_precision_loss, reason = "it is rounded anyway")]
        let average = self.total as f64 / f64::from(self.count);
        writeln!(f, "Max receive completion clock cycles = {}", self.max)?;
        writeln!(f, "Min receive completion clock cycles = {}", self.min)?;
        writeln!(f, "Average receive completion clock cycles = {average:.6}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_format_matches_c() {
        let mut intervals = Intervals::new(0xffff);
        assert_eq!(intervals.to_string(), "");
        intervals.note(0xfff0);
        assert_eq!(intervals.to_string(), "", "one message has no interval");
        // The clock wraps in between.
        intervals.note(0x0004);
        intervals.note(0x0009);
        intervals.note(0x0019);
        assert_eq!(
            intervals.to_string(),
            "Max receive completion clock cycles = 20\n\
             Min receive completion clock cycles = 5\n\
             Average receive completion clock cycles = 13.666667\n"
        );
    }
}
