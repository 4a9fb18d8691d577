//! Detection of stalled boots, by the processor time of the guest's process.
//!
//! Processor time rather than elapsed time, because on a busy host a healthy boot takes many times as long.

use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

/// Time without demand for a processor after which a boot counts as stalled. A booting guest is never idle for 1 s.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// Processor demand below this share of [`IDLE_LIMIT`] counts as idle: timers fire in a stalled guest too.
const IDLE_SHARE: f64 = 0.02;

/// Processor time without a message or console output after which a boot counts as stalled. An emulated boot takes
/// about 10 s of processor time in total.
const BUSY_LIMIT: Duration = Duration::from_secs(45);

/// Processor time of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    ran: Duration,
    /// Time in which a thread was runnable without running.
    waited: Duration,
}

impl Usage {
    /// Usage of all threads of the process `pid`; `None` if the kernel has no `schedstat`.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let texts = threads
            .flatten()
            .filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok());
        let mut usages = texts.filter_map(|text| parse(&text)).peekable();
        usages.peek()?;
        Some(usages.fold(Self::default(), |sum, one| Self {
            ran: sum.ran + one.ran,
            waited: sum.waited + one.waited,
        }))
    }

    fn demand(self) -> Duration {
        self.ran + self.waited
    }
}

/// The first two numbers of a thread's `schedstat`, in nanoseconds.
fn parse(text: &str) -> Option<Usage> {
    let mut numbers = text.split_whitespace().map(str::parse);
    let mut next = || Some(Duration::from_nanos(numbers.next()?.ok()?));
    Some(Usage {
        ran: next()?,
        waited: next()?,
    })
}

/// Kind of a stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stall {
    Idle,
    Busy,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle => write!(f, "its boot stalled, idle for {} s", IDLE_LIMIT.as_secs()),
            Self::Busy => write!(
                f,
                "its boot stalled, with {} s of processor time since its last message",
                BUSY_LIMIT.as_secs()
            ),
        }
    }
}

/// Stall detector for one boot.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    signs: usize,
    at_sign: Usage,
    window: Option<(Instant, Usage)>,
}

impl Watch {
    /// Records the usage at `now`. `signs` must change whenever the guest sent a message or console output.
    pub(crate) fn observe(&mut self, now: Instant, usage: Usage, signs: usize) -> Option<Stall> {
        let (since, before) = *self.window.get_or_insert((now, usage));
        if signs != self.signs {
            self.signs = signs;
            self.at_sign = usage;
            self.window = Some((now, usage));
            return None;
        }
        if usage.ran.saturating_sub(self.at_sign.ran) > BUSY_LIMIT {
            return Some(Stall::Busy);
        }
        let time = now.saturating_duration_since(since);
        let demand = usage.demand().saturating_sub(before.demand());
        if demand > IDLE_LIMIT.mul_f64(IDLE_SHARE) {
            self.window = Some((now, usage));
        } else if time >= IDLE_LIMIT {
            return Some(Stall::Idle);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(ran: f64, waited: f64) -> Usage {
        Usage {
            ran: Duration::from_secs_f64(ran),
            waited: Duration::from_secs_f64(waited),
        }
    }

    /// The stall detected in a boot with usage `each` per second, for `seconds` seconds.
    fn watch(seconds: u32, each: (f64, f64), signs: impl Fn(u32) -> usize) -> Option<Stall> {
        let begin = Instant::now();
        let mut watch = Watch::default();
        (0..seconds).find_map(|second| {
            let times = f64::from(second);
            let usage = usage(each.0 * times, each.1 * times);
            watch.observe(
                begin + Duration::from_secs(second.into()),
                usage,
                signs(second),
            )
        })
    }

    #[test]
    fn boot_idle_for_ten_seconds_is_a_stall() {
        assert_eq!(watch(12, (0.0, 0.0), |_| 3), Some(Stall::Idle));
        assert_eq!(watch(10, (0.0, 0.0), |_| 3), None);
        assert_eq!(watch(12, (0.001, 0.001), |_| 3), Some(Stall::Idle));
    }

    #[test]
    fn boot_waiting_for_a_processor_is_no_stall() {
        assert_eq!(watch(600, (0.05, 1.9), |_| 3), None);
    }

    #[test]
    fn boot_busy_without_messages_is_a_stall() {
        assert_eq!(watch(30, (2.0, 0.0), |_| 3), Some(Stall::Busy));
        assert_eq!(watch(20, (2.0, 0.0), |_| 3), None);
        let signs = |second| usize::try_from(second / 20).unwrap();
        assert_eq!(watch(90, (2.0, 0.0), signs), None);
    }

    #[test]
    fn usage_of_own_process_is_nonzero() {
        assert_eq!(
            parse("5000000 7 3\n"),
            Some(Usage {
                ran: Duration::from_millis(5),
                waited: Duration::from_nanos(7),
            })
        );
        assert_eq!(parse(""), None);
        assert!(Usage::of(std::process::id()).unwrap().ran > Duration::ZERO);
        assert_eq!(Usage::of(0), None);
    }
}
