//! How a run went, in words and as an exit code, and the printer behind `soft-roce run`.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use super::clock::Rate;
use super::event::{Event, EventKind, Host, Stream};

/// The exit code of a run that took too long, as timeout(1) has it.
const TIMED_OUT: u8 = 124;
/// The exit code when the guest itself is at fault.
const BROKEN: u8 = 125;

/// How many lines of a guest's are shown of a place.
const SHOWN: usize = 30;

/// How a guest's part of a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The command ended, and the guest said so.
    Exited(i32),
    /// The command took too long.
    TimedOut,
    /// The guest was stopped because the run was over.
    Stopped,
    /// The guest did not come up in time.
    Silent,
    /// The boot stood still or the guest's clock was wrong before any command ran, in words.
    BootFailed(String),
    /// The guest could not go on, and said why.
    Unusable(String),
    /// The guest went away without a word.
    Crashed,
}

impl End {
    /// Whether the run fails by it.
    pub(crate) fn is_failure(&self) -> bool {
        !matches!(self, Self::Exited(0) | Self::Stopped)
    }
}

/// What is known of a guest after a run.
#[derive(Debug)]
pub(crate) struct GuestReport {
    pub(crate) host: Host,
    pub(crate) end: End,
    pub(crate) status: ExitStatus,
    pub(crate) console: String,
    pub(crate) complaints: String,
    pub(crate) up_after: Option<Duration>,
    pub(crate) clock: Option<Rate>,
    /// How the guest's instructions were carried out, in words.
    pub(crate) backend: &'static str,
}

/// How a run went.
#[derive(Debug)]
pub(crate) struct Outcome {
    guests: Vec<GuestReport>,
    first_failure: Option<usize>,
    timeout: Option<Duration>,
}

impl Outcome {
    /// Takes the reports and the index of the guest that failed first.
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

    /// The exit code: that of the first command that failed; 124 after a timeout; 125 when a guest broke.
    pub(crate) fn exit_code(&self) -> u8 {
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

    /// Whether everything went well.
    pub(crate) fn is_success(&self) -> bool {
        self.exit_code() == 0
    }

    /// Whether nothing is wrong but that time was up.
    pub(crate) fn timed_out(&self) -> bool {
        self.exit_code() == TIMED_OUT && self.guests.iter().all(|guest| guest.broken().is_none())
    }

    /// How long each guest took to come up, and how fast its clock ran, in words.
    pub(crate) fn boot_times(&self) -> String {
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

    /// The guest whose boot failed, and its kernel's last line; no command has run then.
    pub(crate) fn boot_failure(&self) -> Option<String> {
        self.guests.iter().find_map(|guest| {
            let End::BootFailed(reason) = &guest.end else {
                return None;
            };
            let last = lines(&guest.console).last().copied();
            let last = last.unwrap_or("none");
            Some(format!(
                "guest {}: {reason}; last words of the kernel: {last}",
                guest.host
            ))
        })
    }

    /// What is wrong beside a command's exit code, and what to do about it.
    pub(crate) fn complaint(&self) -> Option<String> {
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
    /// A complaint about the guest itself, although its command may have ended well.
    fn broken(&self) -> Option<&'static str> {
        let exited = matches!(self.end, End::Exited(_));
        if let Some(sign) = fault(&self.console) {
            return Some(sign);
        }
        (exited && !self.status.success())
            .then_some("the guest's process failed while the guest switched itself off")
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
                "guest {host}: it did not answer in time. Is the machine very busy? Otherwise try another kernel \
                 with --kernel and --modules{}",
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
                    "guest {host}: it ended without a word ({}){}",
                    self.status,
                    self.evidence()
                ),
            },
        };
        if self.complaints.contains("Cannot allocate memory")
            || self.complaints.contains("cannot set up guest memory")
        {
            text.push_str(
                "\nThere is not enough memory for the guest: close something, or lower --memory",
            );
        }
        Some(text)
    }

    /// What the kernel said when it was first at fault, and the last words of the kernel and of the guest's process.
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
        // What is among the last words is not said twice.
        if let Some(before) = first.and_then(|first| earlier.get(first..)) {
            part("where it was", &before[..before.len().min(SHOWN)]);
        }
        part("last words of the kernel", last);
        let complaints = lines(&self.complaints);
        part(
            "last words of the guest's process",
            &complaints[complaints.len().saturating_sub(SHOWN)..],
        );
        text
    }
}

/// The lines that say something.
fn lines(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .collect()
}

/// The sign of a kernel that can no longer be believed.
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

/// Prints a run as it goes.
#[derive(Debug)]
pub(crate) struct Printer {
    style: Style,
    verbose: bool,
    started: Option<Instant>,
}

/// What an output event holds, and what becomes of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Style {
    /// Whatever came, as it is.
    Raw,
    /// A line of the only guest.
    Lines,
    /// A line of one of two guests, which gets the guest's name.
    Prefixed,
}

impl Printer {
    /// A printer; a verbose one tells when commands end, too.
    pub(crate) fn new(style: Style, verbose: bool) -> Self {
        Self {
            style,
            verbose,
            started: None,
        }
    }

    /// Prints an event; a reader that went away is no reason to fail.
    pub(crate) fn print(&mut self, event: &Event) {
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
    fn exit_code_is_that_of_the_command() {
        assert_eq!(outcome(vec![guest(End::Exited(0), "")]).exit_code(), 0);
        assert_eq!(
            outcome(vec![guest(End::Exited(0), ""), guest(End::Exited(7), "")]).exit_code(),
            7
        );
    }

    #[test]
    fn guest_without_its_token_is_no_success() {
        let outcome = outcome(vec![guest(
            End::Crashed,
            "Kernel panic - not syncing: sysrq",
        )]);
        assert_eq!(outcome.exit_code(), BROKEN);
        assert!(outcome.complaint().unwrap().contains("Kernel panic"));
    }

    #[test]
    fn stalled_boot_is_told_with_its_last_words() {
        let stalled = End::BootFailed("its boot stood still".to_owned());
        let outcome = outcome(vec![
            guest(End::Stopped, ""),
            guest(stalled, "[ 1.0] smp\n[ 1.1] mtrr: odd\n"),
        ]);
        assert_eq!(outcome.exit_code(), BROKEN);
        let failure = outcome.boot_failure().unwrap();
        assert!(failure.ends_with("kernel: [ 1.1] mtrr: odd"), "{failure}");
    }

    #[test]
    fn kernel_bug_fails_a_run_whose_command_succeeded() {
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
    fn a_fault_is_shown_where_it_was() {
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
    fn a_fault_among_the_last_words_is_said_once() {
        let console = "[ 3.0] line\n[ 3.1] BUG: soft lockup\n[ 3.2] its trace\n";
        let complaint = outcome(vec![guest(End::Exited(0), console)]).complaint();
        let complaint = complaint.unwrap();
        assert_eq!(complaint.matches("its trace").count(), 1, "{complaint}");
    }

    #[test]
    fn kernel_warning_is_reported_and_passes() {
        let outcome = outcome(vec![guest(
            End::Exited(0),
            "[ 3.1] WARNING: CPU: 0 PID: 1 at x.c:1\n",
        )]);
        assert!(outcome.is_success() && !outcome.timed_out());
        assert!(outcome.complaint().unwrap().contains("x.c:1"));
    }

    #[test]
    fn timeout_says_so() {
        let outcome = outcome(vec![guest(End::TimedOut, "")]);
        assert!(outcome.timed_out() && !outcome.is_success());
        assert_eq!(outcome.exit_code(), TIMED_OUT);
        assert!(outcome.complaint().unwrap().contains("timeout"));
    }

    #[test]
    fn lines_of_two_guests_are_told_apart() {
        assert_eq!(Style::Prefixed.apply(Host::B, b"hi"), b"b| hi\n");
        assert_eq!(Style::Lines.apply(Host::A, b"hi"), b"hi\n");
        assert_eq!(Style::Raw.apply(Host::A, b"hi"), b"hi");
    }
}
