//! Carrying a plan out: who is up, what comes next, and when it is over.

use std::io;
use std::mem;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::clock::{Clock, Rate};
use super::event::{Event, EventKind, Host, Stream};
use super::guest::{Guest, Sign};
use super::report::{End, GuestReport, Outcome};
use super::run::Until;
use super::stall::{Usage, Watch};

/// How long a guest may take to come up; a loaded machine without KVM needs a good part of it.
const BOOT_LIMIT: Duration = Duration::from_secs(90);
/// Interval between looks at the processor time of guests that boot.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// How long the other command may go on after one has failed.
const GRACE: Duration = Duration::from_secs(5);
/// How long a guest may take to switch itself off.
const POWEROFF_LIMIT: Duration = Duration::from_secs(15);

/// What a run needs to know of its plan.
#[derive(Debug)]
pub(super) struct Terms {
    /// How guests' instructions are carried out, in words.
    pub(super) backend: &'static str,
    pub(super) timeout: Option<Duration>,
    pub(super) until: Until,
    pub(super) keep_going: bool,
    pub(super) by_line: bool,
}

/// A guest during a run.
#[derive(Debug)]
pub(super) struct Side {
    host: Host,
    guest: Guest,
    /// Sent when the guest says hello.
    configuration: String,
    /// Sent when all guests are ready.
    script: String,
    phase: Phase,
    started: Instant,
    up_after: Option<Duration>,
    clock: Clock,
    watch: Watch,
    /// Number of messages from a guest that boots.
    messages: usize,
    end: Option<End>,
    end_at: Option<Instant>,
    off_by: Option<Instant>,
    /// What came after the last newline, for each stream.
    pending: [Vec<u8>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Until [`Sign::Ready`].
    Booting,
    /// Waiting for the other guest.
    Ready,
    /// The command runs.
    Running,
    /// The guest switches itself off, or was killed.
    Ending,
    /// The emulator is gone.
    Gone,
}

impl Phase {
    /// The end of a guest whose clock is wrong in this phase: before the commands run, it can be started again.
    fn with_wrong_clock(self, rate: Rate) -> End {
        let reason = format!("its clock is wrong: {rate}");
        match self {
            Self::Booting | Self::Ready => End::BootFailed(reason),
            Self::Running | Self::Ending | Self::Gone => End::Unusable(reason),
        }
    }
}

impl Side {
    pub(super) fn new(host: Host, guest: Guest, configuration: String, script: String) -> Self {
        Self {
            host,
            guest,
            configuration,
            script,
            phase: Phase::Booting,
            started: Instant::now(),
            up_after: None,
            clock: Clock::default(),
            watch: Watch::default(),
            messages: 0,
            end: None,
            end_at: None,
            off_by: None,
            pending: [Vec::new(), Vec::new()],
        }
    }

    /// Notes how the guest's part ended; the first reason stands.
    fn finish(&mut self, end: End) {
        if self.end.is_none() {
            self.end = Some(end);
            self.end_at = Some(Instant::now());
        }
        if self.phase != Phase::Gone {
            self.phase = Phase::Ending;
            self.off_by.get_or_insert(Instant::now() + POWEROFF_LIMIT);
        }
    }

    /// Ends the guest, unless its part is over.
    fn stop(&mut self, end: End) {
        if !matches!(self.phase, Phase::Ending | Phase::Gone) {
            self.finish(end);
            self.guest.kill();
        }
    }

    /// Ends the guest if its boot stands still.
    fn watch_boot(&mut self) {
        let Some(usage) = Usage::of(self.guest.process()) else {
            return;
        };
        let signs = self.messages + self.guest.console_len();
        if let Some(stall) = self.watch.observe(Instant::now(), usage, signs) {
            self.stop(End::BootFailed(stall.to_string()));
        }
    }

    fn take(&mut self, sign: Sign, by_line: bool, on_event: &mut dyn FnMut(&Event)) -> Result<()> {
        let host = self.host;
        let mut tell = |at, kind| on_event(&Event { at, host, kind });
        self.messages += 1;
        match sign {
            Sign::Hello => self.guest.send(&self.configuration),
            Sign::Ready => {
                self.phase = Phase::Ready;
                self.up_after = Some(self.started.elapsed());
                tell(Instant::now(), EventKind::Up);
            }
            Sign::Clock(at, uptime) => {
                if let Err(rate) = self.clock.report(at, uptime) {
                    self.stop(self.phase.with_wrong_clock(rate));
                }
            }
            Sign::Output(stream, bytes) if by_line => {
                let pending = &mut self.pending[stream as usize];
                pending.extend_from_slice(&bytes);
                for line in complete_lines(pending) {
                    tell(Instant::now(), EventKind::Output(stream, line));
                }
            }
            Sign::Output(stream, bytes) => tell(Instant::now(), EventKind::Output(stream, bytes)),
            Sign::TakesInput => self.guest.feed(io::stdin())?,
            // Output travels on connections of its own and may still come: this is told at `Gone`.
            Sign::Exit(code) => self.finish(End::Exited(code)),
            Sign::Fail(reason) => self.finish(End::Unusable(reason)),
            Sign::Gone => {
                for stream in [Stream::Stdout, Stream::Stderr] {
                    let rest = mem::take(&mut self.pending[stream as usize]);
                    if !rest.is_empty() {
                        tell(Instant::now(), EventKind::Output(stream, rest));
                    }
                }
                self.finish(End::Crashed);
                if let (Some(End::Exited(code)), Some(at)) = (&self.end, self.end_at) {
                    tell(at, EventKind::Ended(*code));
                }
                self.phase = Phase::Gone;
            }
        }
        Ok(())
    }

    fn report(mut self, backend: &'static str) -> Result<GuestReport> {
        let status = self.guest.wait()?;
        Ok(GuestReport {
            host: self.host,
            end: self.end.unwrap_or(End::Crashed),
            status,
            console: self.guest.console(),
            complaints: self.guest.complaints(),
            up_after: self.up_after,
            clock: self.clock.rate(),
            backend,
        })
    }
}

/// A run in progress.
#[derive(Debug)]
pub(super) struct Conduct {
    terms: Terms,
    sides: Vec<Side>,
    /// When all guests have to be up.
    boot_limit: Option<Instant>,
    /// When to look at the guests that boot.
    watch_at: Option<Instant>,
    /// When the commands have to be done.
    command_limit: Option<Instant>,
    /// When a command that goes on after another failed is stopped.
    grace_limit: Option<Instant>,
    first_failure: Option<usize>,
}

impl Conduct {
    pub(super) fn new(terms: Terms, sides: Vec<Side>) -> Self {
        let boot_limit = Some(Instant::now() + BOOT_LIMIT);
        Self {
            terms,
            sides,
            boot_limit,
            watch_at: Some(Instant::now() + WATCH_INTERVAL),
            command_limit: None,
            grace_limit: None,
            first_failure: None,
        }
    }

    /// Waits for the end of all guests.
    pub(super) fn run(
        mut self,
        signs: &Receiver<(usize, Sign)>,
        on_event: &mut dyn FnMut(&Event),
    ) -> Result<Outcome> {
        while self.sides.iter().any(|side| side.phase != Phase::Gone) {
            let sign = match self.next_limit() {
                Some(limit) => signs.recv_timeout(limit.saturating_duration_since(Instant::now())),
                None => signs.recv().map_err(RecvTimeoutError::from),
            };
            match sign {
                Ok((index, sign)) => self.sides[index].take(sign, self.terms.by_line, on_event)?,
                Err(RecvTimeoutError::Timeout) => self.enforce_limits(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.start_commands_when_ready();
            self.note_failure();
            if self.decisive_has_ended() {
                self.stop_all(|_| End::Stopped);
            }
        }
        let Self {
            terms,
            sides,
            first_failure,
            ..
        } = self;
        let guests = sides
            .into_iter()
            .map(|side| side.report(terms.backend))
            .collect::<Result<_>>()?;
        Ok(Outcome::new(guests, first_failure, terms.timeout))
    }

    fn next_limit(&self) -> Option<Instant> {
        let off = self
            .sides
            .iter()
            .filter(|side| side.phase != Phase::Gone)
            .filter_map(|side| side.off_by);
        off.chain(self.boot_limit)
            .chain(self.watch_at)
            .chain(self.command_limit)
            .chain(self.grace_limit)
            .min()
    }

    fn enforce_limits(&mut self) {
        let passed = |limit: &mut Instant| *limit <= Instant::now();
        if self.boot_limit.take_if(passed).is_some() {
            self.stop_all(|phase| {
                if phase == Phase::Booting {
                    End::Silent
                } else {
                    End::Stopped
                }
            });
        }
        if self.watch_at.take_if(passed).is_some() && self.boot_limit.is_some() {
            let booting = |side: &&mut Side| side.phase == Phase::Booting;
            self.sides
                .iter_mut()
                .filter(booting)
                .for_each(Side::watch_boot);
            self.watch_at = Some(Instant::now() + WATCH_INTERVAL);
        }
        if self.command_limit.take_if(passed).is_some() {
            self.stop_all(|_| End::TimedOut);
        }
        if self.grace_limit.take_if(passed).is_some() {
            self.stop_all(|_| End::Stopped);
        }
        for side in &mut self.sides {
            if side.off_by.take_if(passed).is_some() {
                side.guest.kill();
            }
        }
    }

    fn start_commands_when_ready(&mut self) {
        if self.boot_limit.is_some() && self.sides.iter().all(|side| side.phase == Phase::Ready) {
            self.boot_limit = None;
            self.command_limit = self.terms.timeout.map(|timeout| Instant::now() + timeout);
            for side in &mut self.sides {
                side.guest.send(&side.script);
                side.phase = Phase::Running;
            }
        }
    }

    fn note_failure(&mut self) {
        if self.first_failure.is_some() {
            return;
        }
        let failed = |side: &Side| side.end.as_ref().is_some_and(End::is_failure);
        self.first_failure = self.sides.iter().position(failed);
        if self.first_failure.is_some() {
            // Before the commands run there is nothing to wait for.
            if self.boot_limit.take().is_some() {
                self.stop_all(|_| End::Stopped);
            } else if !self.terms.keep_going {
                self.grace_limit = Some(Instant::now() + GRACE);
            }
        }
    }

    /// Whether the command that decides when the run is over has ended.
    fn decisive_has_ended(&self) -> bool {
        let decisive = match self.terms.until {
            Until::Both => return false,
            Until::A => Host::A,
            Until::B => Host::B,
        };
        self.sides
            .iter()
            .any(|side| side.host == decisive && side.end.is_some())
    }

    fn stop_all(&mut self, end: impl Fn(Phase) -> End) {
        for side in &mut self.sides {
            side.stop(end(side.phase));
        }
    }
}

/// Takes the complete lines out of `pending`, without their newlines.
fn complete_lines(pending: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let Some(end) = pending.iter().rposition(|byte| *byte == b'\n') else {
        return Vec::new();
    };
    let rest = pending.split_off(end + 1);
    let complete = mem::replace(pending, rest);
    complete[..end]
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::to_vec)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_with_a_wrong_clock_is_started_again_before_commands_run() {
        let start = Instant::now();
        let mut clock = Clock::default();
        clock.report(start, Duration::ZERO).unwrap();
        let later = start + Duration::from_millis(500);
        let rate = clock.report(later, Duration::from_secs(7)).unwrap_err();
        for phase in [Phase::Booting, Phase::Ready] {
            let End::BootFailed(reason) = phase.with_wrong_clock(rate) else {
                panic!("{phase:?}");
            };
            assert!(reason.contains("14.000 times as fast"), "{reason}");
        }
        assert!(matches!(
            Phase::Running.with_wrong_clock(rate),
            End::Unusable(_)
        ));
    }

    #[test]
    fn complete_lines_keep_the_unfinished_one() {
        let mut pending = b"one\n\ntwo\nthr".to_vec();
        assert_eq!(complete_lines(&mut pending), [&b"one"[..], b"", b"two"]);
        assert_eq!(pending, b"thr");
        assert!(complete_lines(&mut pending).is_empty());
        pending.push(b'\n');
        assert_eq!(complete_lines(&mut pending), [b"thr"]);
        assert!(pending.is_empty());
    }
}
