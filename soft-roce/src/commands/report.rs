//! The outcome of a run as an exit code and a message, and the printer of `soft-roce run`.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use crate::clock::Rate;
use crate::event::{Event, EventKind, Host, Stream};

/// Exit code of a run past its timeout, as for timeout(1).
const TIMED_OUT: u8 = 124;
/// Exit code of a run with a broken guest: kernel fault, crash or failed boot.
const BROKEN: u8 = 125;

/// The kernel's last message of an orderly end, at every log level.
const POWERED_DOWN: &str = "reboot: Power down";

/// Maximum number of lines in each excerpt of a guest's console.
const SHOWN: usize = 30;

/// The way a guest's part of a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The command exited, and the guest reported the code.
    Exited(i32),
    /// The command exceeded the timeout.
    TimedOut,
    /// The guest was stopped because the run was over.
    Stopped,
    /// The guest did not become ready before the boot limit.
    Silent,
    /// The boot stalled, or the guest's clock was wrong before any command ran: the reason.
    BootFailed(String),
    /// The guest reported a reason for which it cannot continue.
    Unusable(String),
    /// The emulator exited without an exit code of the command.
    Crashed,
}

impl End {
    /// Whether this end makes the run fail.
    pub(crate) fn is_failure(&self) -> bool {
        !matches!(self, Self::Exited(0) | Self::Stopped)
    }
}

/// The state of a guest after a run.
#[derive(Debug)]
pub(crate) struct GuestReport {
    pub(crate) host: Host,
    pub(crate) end: End,
    pub(crate) status: ExitStatus,
    pub(crate) console: String,
    pub(crate) complaints: String,
    pub(crate) up_after: Option<Duration>,
    pub(crate) clock: Option<Rate>,
    /// Execution mode of the guest (emulated, KVM, User-Mode Linux), for messages.
    pub(crate) backend: &'static str,
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    guests: Vec<GuestReport>,
    first_failure: Option<usize>,
    timeout: Option<Duration>,
}

impl Outcome {
    /// `first_failure` is the index of the guest that failed first.
    pub(crate) fn new(
        guests: Vec<GuestReport>,
        first_failure: Option<usize>,
        timeout: Option<Duration>,
    ) -> Self {
        Self {
            guests,
            first_failure,
            timeout,
        }
    }

    /// Exit code of the first command that failed; 124 after a timeout; 125 for a broken guest.
    pub fn exit_code(&self) -> u8 {
        let code = self
            .first_failure
            .map_or(0, |index| match &self.guests[index].end {
                End::Exited(code) => u8::try_from(*code).unwrap_or(1),
                End::TimedOut => TIMED_OUT,
                End::Stopped
                | End::Silent
                | End::BootFailed(_)
                | End::Unusable(_)
                | End::Crashed => BROKEN,
            });
        if code == 0 && self.guests.iter().any(|guest| guest.broken().is_some()) {
            BROKEN
        } else {
            code
        }
    }

    /// Whether every command exited with 0 and no guest broke.
    pub fn is_success(&self) -> bool {
        self.exit_code() == 0
    }

    /// Whether the timeout is the only failure.
    pub fn timed_out(&self) -> bool {
        self.exit_code() == TIMED_OUT && self.guests.iter().all(|guest| guest.broken().is_none())
    }

    /// Boot time, execution mode and clock rate of each guest, one guest a line.
    pub fn boot_times(&self) -> String {
        let line = |guest: &GuestReport| {
            let clock = guest.clock.map(|rate| format!("{}: {rate}\n", guest.host));
            Some(format!(
                "{}: guest up in {:.1} s, {}\n{}",
                guest.host,
                guest.up_after?.as_secs_f64(),
                guest.backend,
                clock.unwrap_or_default()
            ))
        };
        self.guests.iter().filter_map(line).collect()
    }

    /// The guest with a failed boot and its kernel's last line. No command has run in that case.
    pub(crate) fn boot_failure(&self) -> Option<String> {
        self.guests.iter().find_map(|guest| {
            let End::BootFailed(reason) = &guest.end else {
                return None;
            };
            let last = lines(&guest.console).last().copied();
            let last = last.unwrap_or("none");
            Some(format!(
                "guest {}: {reason}; last line of the kernel: {last}",
                guest.host
            ))
        })
    }

    /// The failures other than exit codes, each with advice.
    pub fn complaint(&self) -> Option<String> {
        let mut text = String::new();
        for guest in &self.guests {
            if let Some(complaint) = guest.complaint(self.timeout) {
                let separator = if text.is_empty() { "" } else { "\n" };
                // Writing to a string cannot fail.
                let _infallible = write!(text, "{separator}{complaint}");
            }
        }
        (!text.is_empty()).then_some(text)
    }
}

impl GuestReport {
    /// A fault of the guest itself, reported even when the command succeeded.
    ///
    /// The process's exit status is ignored once the kernel has powered down: nothing of the run is left to fail, and
    /// one of several thousand User-Mode Linux guests failed there, in `machine_power_off` of `arch/um`.
    fn broken(&self) -> Option<String> {
        if let Some(sign) = fault(&self.console) {
            return Some(sign.to_owned());
        }
        let exited = matches!(self.end, End::Exited(_));
        let failed = exited && !self.status.success() && !self.console.contains(POWERED_DOWN);
        failed.then(|| {
            format!(
                "the guest's process failed while the guest was powering off ({})",
                self.status
            )
        })
    }

    fn complaint(&self, timeout: Option<Duration>) -> Option<String> {
        let host = self.host;
        let mut text = match &self.end {
            End::Exited(_) | End::Stopped => match self.broken() {
                Some(sign) => format!(
                    "guest {host}: the kernel is at fault: {sign}{}",
                    self.evidence()
                ),
                None => {
                    let warning = warning(&self.console)?;
                    return Some(format!("guest {host}: the kernel warned: {warning}"));
                }
            },
            End::TimedOut => {
                let limit = timeout.unwrap_or_default().as_secs_f64();
                return Some(format!(
                    "guest {host}: timeout: the command was stopped after {limit} s; --timeout gives it longer"
                ));
            }
            End::Silent => format!(
                "guest {host}: no answer within the boot limit. If the machine is busy, try again; otherwise try another \
                 kernel with --kernel and --modules{}",
                self.evidence()
            ),
            End::BootFailed(reason) | End::Unusable(reason) => {
                format!("guest {host}: {reason}{}", self.evidence())
            }
            End::Crashed => match fault(&self.console) {
                Some(sign) => format!(
                    "guest {host}: the kernel crashed: {sign}{}",
                    self.evidence()
                ),
                None => format!(
                    "guest {host}: the process ended without reporting an exit code ({}){}",
                    self.status,
                    self.evidence()
                ),
            },
        };
        if self.complaints.contains("Cannot allocate memory")
            || self.complaints.contains("cannot set up guest memory")
        {
            text.push_str(
                "\nNot enough memory for the guest: close other programs, or lower --memory",
            );
        }
        Some(text)
    }

    /// Console excerpts: the kernel's first fault, the kernel's last lines, and the emulator's last lines.
    fn evidence(&self) -> String {
        let mut text = String::new();
        let mut part = |title: &str, lines: &[&str]| {
            if !lines.is_empty() {
                // Writing to a string cannot fail.
                let _infallible = write!(text, "\n--- {title} ---\n{}", lines.join("\n"));
            }
        };
        let kernel = lines(&self.console);
        let first = kernel.iter().position(|line| fault(line).is_some());
        let (earlier, last) = kernel.split_at(kernel.len().saturating_sub(SHOWN));
        // Lines in the last excerpt are not repeated.
        if let Some(before) = first.and_then(|first| earlier.get(first..)) {
            part("first fault", &before[..before.len().min(SHOWN)]);
        }
        part("last lines of the kernel", last);
        let complaints = lines(&self.complaints);
        part(
            "last lines of the guest's process",
            &complaints[complaints.len().saturating_sub(SHOWN)..],
        );
        text
    }
}

/// The non-blank lines.
fn lines(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .collect()
}

/// The marker of a fatal kernel fault, if the console has one.
fn fault(console: &str) -> Option<&'static str> {
    [
        "Kernel panic",
        "BUG:",
        "Oops",
        "KASAN",
        "general protection fault",
    ]
    .into_iter()
    .find(|sign| console.contains(sign))
}

/// The first line of a kernel warning with a trace.
fn warning(console: &str) -> Option<&str> {
    console.lines().find(|line| line.contains("WARNING: CPU"))
}

/// Prints the events of a run as they arrive.
#[derive(Debug)]
pub struct Printer {
    style: Style,
    verbose: bool,
    started: Option<Instant>,
}

/// Format of an output event, and of its printed form.
#[derive(Clone, Copy, Debug)]
pub enum Style {
    /// A chunk, printed unchanged.
    Raw,
    /// A line of the only guest.
    Lines,
    /// A line of one of several guests, printed with the guest's name.
    Prefixed,
}

impl Printer {
    /// A verbose printer also prints the end of each command.
    pub fn new(style: Style, verbose: bool) -> Self {
        Self {
            style,
            verbose,
            started: None,
        }
    }

    /// Prints an event. A closed standard output is ignored.
    pub fn print(&mut self, event: &Event) {
        let host = event.host;
        match &event.kind {
            EventKind::Output(stream, bytes) => {
                let text = self.style.apply(host, bytes);
                let _reader_gone = match stream {
                    Stream::Stdout => write_all(&mut io::stdout().lock(), &text),
                    Stream::Stderr => write_all(&mut io::stderr().lock(), &text),
                };
            }
            EventKind::Up => self.started = Some(event.at),
            EventKind::Ended(code) if self.verbose => {
                let time = self
                    .started
                    .map_or(Duration::ZERO, |started| event.at - started);
                eprintln!("{host}: exit code {code} after {:.1} s", time.as_secs_f64());
            }
            EventKind::Ended(_) => {}
        }
    }
}

fn write_all(to: &mut dyn Write, text: &[u8]) -> io::Result<()> {
    to.write_all(text)?;
    to.flush()
}

impl Style {
    fn apply(self, host: Host, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Raw => bytes.to_vec(),
            Self::Lines => [bytes, b"\n"].concat(),
            Self::Prefixed => [format!("{host}| ").as_bytes(), bytes, b"\n"].concat(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn guest(end: End, console: &str) -> GuestReport {
        GuestReport {
            host: Host::A,
            end,
            status: ExitStatus::from_raw(0),
            console: console.to_owned(),
            complaints: String::new(),
            up_after: None,
            clock: None,
            backend: "emulated",
        }
    }

    fn outcome(guests: Vec<GuestReport>) -> Outcome {
        let first_failure = guests.iter().position(|guest| guest.end.is_failure());
        Outcome::new(guests, first_failure, Some(Duration::from_secs(5)))
    }

    #[test]
    fn exit_code_after_failed_command_is_the_commands() {
        assert_eq!(outcome(vec![guest(End::Exited(0), "")]).exit_code(), 0);
        assert_eq!(
            outcome(vec![guest(End::Exited(0), ""), guest(End::Exited(7), "")]).exit_code(),
            7
        );
    }

    #[test]
    fn guest_without_exit_report_is_broken() {
        let outcome = outcome(vec![guest(
            End::Crashed,
            "Kernel panic - not syncing: sysrq",
        )]);
        assert_eq!(outcome.exit_code(), BROKEN);
        assert!(outcome.complaint().unwrap().contains("Kernel panic"));
    }

    #[test]
    fn exit_status_of_the_process_counts_until_the_kernel_has_powered_down() {
        let killed = |console| GuestReport {
            status: ExitStatus::from_raw(11),
            ..guest(End::Exited(0), console)
        };
        let early = outcome(vec![killed("[ 3.1] eth0: up\n")]);
        assert_eq!(early.exit_code(), BROKEN);
        assert!(early.complaint().unwrap().contains("(signal: 11"));

        let late = outcome(vec![killed("[ 3.1] reboot: Power down\n")]);
        assert_eq!((late.exit_code(), late.complaint()), (0, None));

        let faulty = outcome(vec![killed("[ 3.0] BUG: x\n[ 3.1] reboot: Power down\n")]);
        assert_eq!(faulty.exit_code(), BROKEN);
    }

    #[test]
    fn boot_failure_after_stall_quotes_the_last_line() {
        let stalled = End::BootFailed("its boot stalled".to_owned());
        let outcome = outcome(vec![
            guest(End::Stopped, ""),
            guest(stalled, "[ 1.0] smp\n[ 1.1] mtrr: odd\n"),
        ]);
        assert_eq!(outcome.exit_code(), BROKEN);
        let failure = outcome.boot_failure().unwrap();
        assert!(failure.ends_with("kernel: [ 1.1] mtrr: odd"), "{failure}");
    }

    #[test]
    fn kernel_bug_after_successful_command_fails_the_run() {
        assert_eq!(
            outcome(vec![guest(
                End::Exited(0),
                "[ 3.1] BUG: unable to handle page fault"
            )])
            .exit_code(),
            BROKEN
        );
    }

    #[test]
    fn complaint_about_early_fault_shows_fault_and_last_lines() {
        let mut console = "[ 3.1] BUG: soft lockup\n[ 3.2] its trace\n".to_owned();
        (0..100).for_each(|line| console += &format!("[ 4.0] line {line}\n"));
        let complaint = outcome(vec![guest(End::Exited(0), &console)]).complaint();
        let complaint = complaint.unwrap();
        for part in [
            "at fault: BUG:",
            "BUG: soft lockup\n[ 3.2] its trace",
            "line 99",
        ] {
            assert!(complaint.contains(part), "{part}: {complaint}");
        }
        assert!(!complaint.contains("line 50"), "{complaint}");
    }

    #[test]
    fn complaint_about_late_fault_shows_it_once() {
        let console = "[ 3.0] line\n[ 3.1] BUG: soft lockup\n[ 3.2] its trace\n";
        let complaint = outcome(vec![guest(End::Exited(0), console)]).complaint();
        let complaint = complaint.unwrap();
        assert_eq!(complaint.matches("its trace").count(), 1, "{complaint}");
    }

    #[test]
    fn kernel_warning_is_reported_and_run_succeeds() {
        let outcome = outcome(vec![guest(
            End::Exited(0),
            "[ 3.1] WARNING: CPU: 0 PID: 1 at x.c:1\n",
        )]);
        assert!(outcome.is_success() && !outcome.timed_out());
        assert!(outcome.complaint().unwrap().contains("x.c:1"));
    }

    #[test]
    fn timeout_is_reported_with_exit_code_124() {
        let outcome = outcome(vec![guest(End::TimedOut, "")]);
        assert!(outcome.timed_out() && !outcome.is_success());
        assert_eq!(outcome.exit_code(), TIMED_OUT);
        assert!(outcome.complaint().unwrap().contains("timeout"));
    }

    #[test]
    fn lines_of_two_guests_are_prefixed_with_the_host() {
        assert_eq!(Style::Prefixed.apply(Host::B, b"hi"), b"b| hi\n");
        assert_eq!(Style::Lines.apply(Host::A, b"hi"), b"hi\n");
        assert_eq!(Style::Raw.apply(Host::A, b"hi"), b"hi");
    }
}
