//! Executing a plan: guest states, start of the commands, time limits, end of the run.

use std::io;
use std::mem;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::clock::{Clock, Rate};
use crate::commands::report::{End, GuestReport, Outcome};
use crate::event::{Event, EventKind, Host, Stream};
use crate::guest::{Guest, GuestMsg};
use crate::run::Until;
use crate::stall::{Usage, Watch};

/// Boot limit of a guest that makes progress: an emulated boot takes 15 s on an idle machine, and 6 times as long beside
/// four busy threads for each processor. A stalled boot ends earlier, see [`Watch`].
const BOOT_LIMIT: Duration = Duration::from_secs(300);
/// Interval between checks of the processor time of booting guests.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Time for the other command to finish after one command has failed.
const GRACE: Duration = Duration::from_secs(5);
/// Time for a guest to power off before its process is killed.
const POWEROFF_LIMIT: Duration = Duration::from_secs(15);

/// The parts of a plan that control a run in progress.
#[derive(Debug)]
pub(crate) struct RunPolicy {
    /// Execution mode of the guests (emulated, KVM, User-Mode Linux), for messages.
    pub(crate) backend: &'static str,
    pub(crate) timeout: Option<Duration>,
    pub(crate) until: Until,
    pub(crate) keep_going: bool,
    pub(crate) by_line: bool,
}

/// State of one guest during a run.
#[derive(Debug)]
pub(crate) struct GuestRun {
    host: Host,
    guest: Guest,
    /// Shell script with the settings, sent on [`GuestMsg::Hello`].
    configuration: String,
    /// Shell script with the command, sent when all guests are ready.
    script: String,
    phase: Phase,
    started: Instant,
    up_after: Option<Duration>,
    clock: Clock,
    watch: Watch,
    /// Number of messages received from the guest; a boot without new messages counts as stalled.
    message_count: usize,
    end: Option<End>,
    end_at: Option<Instant>,
    off_by: Option<Instant>,
    /// Output after the last newline, for each stream.
    pending: [Vec<u8>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// From the start to [`GuestMsg::Ready`].
    Booting,
    /// Up; waiting for the other guest.
    Ready,
    /// The command is running.
    Running,
    /// The guest is powering off, or was killed.
    Ending,
    /// The emulator process has exited.
    Gone,
}

impl Phase {
    /// The end of a guest with a wrong clock in this phase. `BootFailed`, before the commands start, permits a new
    /// attempt.
    fn with_wrong_clock(self, rate: Rate) -> End {
        let reason = format!("its clock is wrong: {rate}");
        match self {
            Self::Booting | Self::Ready => End::BootFailed(reason),
            Self::Running | Self::Ending | Self::Gone => End::Unusable(reason),
        }
    }
}

impl GuestRun {
    pub(crate) fn new(host: Host, guest: Guest, configuration: String, script: String) -> Self {
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
            message_count: 0,
            end: None,
            end_at: None,
            off_by: None,
            pending: [Vec::new(), Vec::new()],
        }
    }

    /// Records the end of the guest's part. The first call wins.
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

    /// Kills the guest, unless it is already ending.
    fn stop(&mut self, end: End) {
        if !matches!(self.phase, Phase::Ending | Phase::Gone) {
            self.finish(end);
            self.guest.kill();
        }
    }

    /// Kills the guest if its boot has stalled.
    fn watch_boot(&mut self) {
        let Some(usage) = Usage::of(self.guest.process()) else {
            return;
        };
        let messages = self.message_count + self.guest.console_len();
        if let Some(stall) = self.watch.observe(Instant::now(), usage, messages) {
            self.stop(End::BootFailed(stall.to_string()));
        }
    }

    fn handle(
        &mut self,
        message: GuestMsg,
        by_line: bool,
        on_event: &mut dyn FnMut(&Event),
    ) -> Result<()> {
        let host = self.host;
        let mut notify = |at, kind| on_event(&Event { at, host, kind });
        self.message_count += 1;
        match message {
            GuestMsg::Hello => self.guest.send(&self.configuration),
            GuestMsg::Ready => {
                self.phase = Phase::Ready;
                self.up_after = Some(self.started.elapsed());
                notify(Instant::now(), EventKind::Up);
            }
            GuestMsg::Clock(at, uptime) => {
                if let Err(rate) = self.clock.report(at, uptime) {
                    self.stop(self.phase.with_wrong_clock(rate));
                }
            }
            GuestMsg::Output(stream, bytes) if by_line => {
                let pending = &mut self.pending[stream as usize];
                pending.extend_from_slice(&bytes);
                for line in complete_lines(pending) {
                    notify(Instant::now(), EventKind::Output(stream, line));
                }
            }
            GuestMsg::Output(stream, bytes) => {
                notify(Instant::now(), EventKind::Output(stream, bytes))
            }
            GuestMsg::TakesInput => self.guest.feed(io::stdin())?,
            // Output arrives on separate connections and may follow, so `Ended` is reported on `Gone`.
            GuestMsg::Exit(code) => self.finish(End::Exited(code)),
            GuestMsg::Fail(reason) => self.finish(End::Unusable(reason)),
            GuestMsg::Gone => {
                for stream in [Stream::Stdout, Stream::Stderr] {
                    let rest = mem::take(&mut self.pending[stream as usize]);
                    if !rest.is_empty() {
                        notify(Instant::now(), EventKind::Output(stream, rest));
                    }
                }
                self.finish(End::Crashed);
                if let (Some(End::Exited(code)), Some(at)) = (&self.end, self.end_at) {
                    notify(at, EventKind::Ended(*code));
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

/// A run in progress: the guests and the deadlines.
#[derive(Debug)]
pub(crate) struct Runner {
    policy: RunPolicy,
    guests: Vec<GuestRun>,
    /// Deadline for all guests to be ready.
    boot_limit: Option<Instant>,
    /// Time of the next stall check of booting guests.
    watch_at: Option<Instant>,
    /// Deadline for the commands.
    command_limit: Option<Instant>,
    /// Deadline for the remaining command after a failure.
    grace_limit: Option<Instant>,
    first_failure: Option<usize>,
}

impl Runner {
    pub(crate) fn new(policy: RunPolicy, guests: Vec<GuestRun>) -> Self {
        let boot_limit = Some(Instant::now() + BOOT_LIMIT);
        Self {
            policy,
            guests,
            boot_limit,
            watch_at: Some(Instant::now() + WATCH_INTERVAL),
            command_limit: None,
            grace_limit: None,
            first_failure: None,
        }
    }

    /// Handles messages and deadlines until every guest has exited.
    pub(crate) fn run(
        mut self,
        messages: &Receiver<(usize, GuestMsg)>,
        on_event: &mut dyn FnMut(&Event),
    ) -> Result<Outcome> {
        while self.guests.iter().any(|run| run.phase != Phase::Gone) {
            let message = match self.next_limit() {
                Some(limit) => {
                    messages.recv_timeout(limit.saturating_duration_since(Instant::now()))
                }
                None => messages.recv().map_err(RecvTimeoutError::from),
            };
            match message {
                Ok((index, message)) => {
                    self.guests[index].handle(message, self.policy.by_line, on_event)?
                }
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
            policy,
            guests,
            first_failure,
            ..
        } = self;
        let guests = guests
            .into_iter()
            .map(|run| run.report(policy.backend))
            .collect::<Result<_>>()?;
        Ok(Outcome::new(guests, first_failure, policy.timeout))
    }

    fn next_limit(&self) -> Option<Instant> {
        let off = self
            .guests
            .iter()
            .filter(|run| run.phase != Phase::Gone)
            .filter_map(|run| run.off_by);
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
            let booting = |run: &&mut GuestRun| run.phase == Phase::Booting;
            self.guests
                .iter_mut()
                .filter(booting)
                .for_each(GuestRun::watch_boot);
            self.watch_at = Some(Instant::now() + WATCH_INTERVAL);
        }
        if self.command_limit.take_if(passed).is_some() {
            self.stop_all(|_| End::TimedOut);
        }
        if self.grace_limit.take_if(passed).is_some() {
            self.stop_all(|_| End::Stopped);
        }
        for run in &mut self.guests {
            if run.off_by.take_if(passed).is_some() {
                run.guest.kill();
            }
        }
    }

    fn start_commands_when_ready(&mut self) {
        if self.boot_limit.is_some() && self.guests.iter().all(|run| run.phase == Phase::Ready) {
            self.boot_limit = None;
            self.command_limit = self
                .policy
                .timeout
                .and_then(|timeout| Instant::now().checked_add(timeout));
            for run in &mut self.guests {
                run.guest.send(&run.script);
                run.phase = Phase::Running;
            }
        }
    }

    fn note_failure(&mut self) {
        if self.first_failure.is_some() {
            return;
        }
        let failed = |run: &GuestRun| run.end.as_ref().is_some_and(End::is_failure);
        self.first_failure = self.guests.iter().position(failed);
        if self.first_failure.is_some() {
            // Before the commands start there is no output to wait for.
            if self.boot_limit.take().is_some() {
                self.stop_all(|_| End::Stopped);
            } else if !self.policy.keep_going {
                self.grace_limit = Some(Instant::now() + GRACE);
            }
        }
    }

    /// Whether the command named by `--until` has ended.
    fn decisive_has_ended(&self) -> bool {
        let decisive = match self.policy.until {
            Until::All => return false,
            Until::Host(host) => host,
        };
        self.guests
            .iter()
            .any(|run| run.host == decisive && run.end.is_some())
    }

    fn stop_all(&mut self, end: impl Fn(Phase) -> End) {
        for run in &mut self.guests {
            run.stop(end(run.phase));
        }
    }
}

/// Removes the complete lines from `pending` and returns them without newlines.
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
    fn clock_wrong_before_commands_run_is_a_boot_failure() {
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
    fn complete_lines_with_partial_last_line_keeps_it_pending() {
        let mut pending = b"one\n\ntwo\nthr".to_vec();
        assert_eq!(complete_lines(&mut pending), [&b"one"[..], b"", b"two"]);
        assert_eq!(pending, b"thr");
        assert!(complete_lines(&mut pending).is_empty());
        pending.push(b'\n');
        assert_eq!(complete_lines(&mut pending), [b"thr"]);
        assert!(pending.is_empty());
    }
}
