//! Test programs in guests with a device.

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use soft_roce::backend::Backend;
use soft_roce::report::{Printer, Style};
use soft_roce::{Device, Event, EventKind, Run, quote};

use super::{ALSO_OVER_IWARP, DIFFERENT_OVER_IWARP, Program, Suite};
use crate::differences::Device as Tested;
use crate::outcomes::{DEVICE_TESTS_OF, KERNEL, Outcomes};
use crate::stage::Counts;
use crate::{left_out, output, stack_table};

/// Number of guests that run at the same time, each with the tests of one package: one test at a time leaves a processor
/// idle while it waits. A guest under QEMU may use two processors and boots slowly, so one runs all tests.
const GUESTS_AT_ONCE: usize = 2;

/// The output of guests that run at the same time.
struct Outputs {
    printer: Mutex<Printer>,
    /// Output of guests that have ended while another one was printing.
    ended: Mutex<Vec<Event>>,
}

impl Outputs {
    fn new() -> Self {
        Self {
            printer: Mutex::new(Printer::new(Style::Lines, false)),
            ended: Mutex::default(),
        }
    }

    fn print_ended(&self, printer: &mut Printer) {
        let ended = mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner));
        ended.iter().for_each(|event| printer.print(event));
    }

    /// Prints the rest, after the last guest.
    fn end(&self) {
        let mut printer = self.printer.lock().unwrap_or_else(PoisonError::into_inner);
        self.print_ended(&mut printer);
    }
}

/// Prints the output of a guest: at once if no other guest is printing, else when that one has ended. Waits for no other guest.
struct Output<'p> {
    outputs: &'p Outputs,
    printing: Option<MutexGuard<'p, Printer>>,
    waiting: Vec<Event>,
}

impl<'p> Output<'p> {
    fn new(outputs: &'p Outputs) -> Self {
        Self {
            outputs,
            printing: None,
            waiting: Vec::new(),
        }
    }

    fn print(&mut self, event: &Event) {
        self.waiting.push(event.clone());
        if self.printing.is_none() {
            self.printing = self.outputs.printer.try_lock().ok();
        }
        if let Some(printer) = &mut self.printing {
            self.waiting
                .drain(..)
                .for_each(|event| printer.print(&event));
        }
    }

    fn end(self) {
        if let Some(mut printer) = self.printing {
            self.outputs.print_ended(&mut printer);
        } else {
            let ended = self.outputs.ended.lock();
            ended
                .unwrap_or_else(PoisonError::into_inner)
                .extend(self.waiting);
        }
    }
}

impl Suite<'_> {
    /// Runs the device tests of the `is_selected` packages on Soft-RoCE.
    pub(super) fn device(
        &self,
        is_selected: impl Fn(&str) -> bool,
        counts: &mut Counts,
        outcomes: &mut Outcomes,
    ) -> Result<()> {
        let mut arguments: Vec<&str> = self.options.filter.as_deref().into_iter().collect();
        if self.options.sanitize {
            arguments.extend(left_out::arguments(left_out::Run::AddressSanitizer, "*"));
        }
        let programs = self.build_device_tests(is_selected)?;
        let arguments = |program: &Program| {
            let mut all = arguments.clone();
            if self.options.without_repeats {
                let run = left_out::Run::RxeInCi;
                all.extend(left_out::arguments(run, &program.library));
            }
            all
        };
        let limit = match self.options.sanitize {
            true => self.limit(60, 120),
            false => self.limit(15, 120),
        };
        let capabilities = stack_table::capabilities(self.workspace, Tested::Rxe);
        let plan = |programs: &[Program]| {
            let plan = Run::single(device_script(programs, arguments, limit / 2)?)
                .memory_mib(2048)
                // Some tests leak objects on purpose.
                .env("ASAN_OPTIONS", "detect_leaks=0")
                .env(stack_table::VARIABLE, capabilities.to_string_lossy());
            Ok(plan.timeout(limit))
        };
        self.in_guests(&programs, plan, counts, outcomes)
    }

    /// A guest's time limit in minutes: `long` with `--long`, else `short`.
    pub(super) fn limit(&self, short: u64, long: u64) -> Duration {
        let minutes = if self.options.long { long } else { short };
        Duration::from_secs(60 * minutes)
    }

    /// Runs the iWARP tests on Soft-iWARP.
    pub(super) fn iwarp(&self, counts: &mut Counts) -> Result<()> {
        let programs = self.build_device_tests(|package| ALSO_OVER_IWARP.contains(&package))?;
        let limit = self.limit(6, 30);
        let plan = |programs: &[Program]| {
            let script = device_script(programs, |_| DIFFERENT_OVER_IWARP.to_vec(), limit / 2)?;
            Ok(Run::single(script).device(Device::Siw).timeout(limit))
        };
        self.in_guests(&programs, plan, counts, &mut Outcomes::default())?;
        ensure!(counts.total() > 0, "no test ran");
        Ok(())
    }

    /// Runs test programs in guests, several at a time. The first error if a program fails or prints no result.
    pub(super) fn in_guests(
        &self,
        programs: &[Program],
        plan: impl Fn(&[Program]) -> Result<Run> + Sync,
        counts: &mut Counts,
        outcomes: &mut Outcomes,
    ) -> Result<()> {
        let shares: Vec<&[Program]> = match self.options.backend {
            Backend::Auto | Backend::Uml => programs.chunks(1).collect(),
            Backend::Qemu => vec![programs],
        };
        let next = AtomicUsize::new(0);
        let outputs = Outputs::new();
        let total = Mutex::new((counts, outcomes, Ok(())));
        let run_shares = || {
            while let Some(share) = shares.get(next.fetch_add(1, Relaxed)) {
                let (mut counts, mut outcomes) = (Counts::default(), Outcomes::default());
                let output = Output::new(&outputs);
                let ended = plan(share).and_then(|plan| {
                    self.in_guest(plan, share.len(), output, &mut counts, &mut outcomes)
                });
                let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
                total.0.add(counts);
                total.1.add(outcomes);
                if total.2.is_ok() {
                    total.2 = ended;
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..GUESTS_AT_ONCE.min(shares.len()) {
                scope.spawn(run_shares);
            }
        });
        outputs.end();
        let (counts, _, result) = total.into_inner().unwrap_or_else(PoisonError::into_inner);
        result?;
        self.require_some(counts)
    }

    /// Runs a plan with `programs` test programs in a guest.
    fn in_guest(
        &self,
        plan: Run,
        programs: usize,
        mut output: Output<'_>,
        counts: &mut Counts,
        outcomes: &mut Outcomes,
    ) -> Result<()> {
        let plan = plan.by_line().backend(self.options.backend);
        let mut plan = self.stack.choose_for(plan);
        if self.options.long {
            plan = plan.env("LONG", "1");
        }
        let ended = plan.execute(self.workspace.for_guests(), &mut |event| {
            if let EventKind::Output(_, line) = &event.kind {
                let line = String::from_utf8_lossy(line);
                counts.read(&line);
                outcomes.read(&line);
                if self.options.brief && output::is_routine(&line) {
                    return;
                }
            }
            output.print(event);
        });
        output.end();
        let outcome = ended?;
        if let Some(complaint) = outcome.complaint() {
            eprintln!("{complaint}");
        }
        let silent = programs.saturating_sub(counts.programs as usize);
        ensure!(silent == 0, "{silent} test programs ended without a result");
        ensure!(
            outcome.is_success(),
            "the device tests failed (exit code {})",
            outcome.exit_code()
        );
        Ok(())
    }
}

/// The script: runs the programs in sequence, each in its package's folder (as cargo does) with one test
/// thread and its own arguments. A failure is reported at the end. A program that exceeds `limit` is killed and the next
/// one starts.
pub(super) fn device_script<'a>(
    programs: &[Program],
    arguments: impl Fn(&Program) -> Vec<&'a str>,
    limit: Duration,
) -> Result<String> {
    let limit = limit.as_secs();
    let mut script = format!(
        "code=0; echo \"{KERNEL}$(uname -r)\"\n\
         failed() {{ code=1; [ $1 != 124 ] || echo \"the tests of $2 have not ended after {limit} s\"; }}\n"
    );
    for program in programs {
        let library = &program.library;
        let arguments = shlex::try_join(arguments(program))?;
        let (folder, executable) = (quote(&program.folder)?, quote(&program.executable)?);
        script += &format!(
            "echo; echo '{DEVICE_TESTS_OF}{library}'\n\
             cd {folder} && CARGO_MANIFEST_DIR={folder} timeout --kill-after=5 {limit} \
             {executable} --test-threads=1 {arguments} || failed $? {library}\n"
        );
    }
    Ok(script + "exit $code\n")
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;
    use std::time::Instant;

    use soft_roce::Host;

    use super::*;

    #[test]
    fn guest_that_ends_while_another_prints_does_not_wait() {
        let outputs = Outputs::new();
        let event = Event {
            at: Instant::now(),
            host: Host::A,
            kind: EventKind::Up,
        };
        let (mut long, mut short) = (Output::new(&outputs), Output::new(&outputs));
        long.print(&event);
        short.print(&event);
        short.end();
        let waiting = || outputs.ended.lock().unwrap().len();
        assert_eq!(waiting(), 1);
        long.end();
        assert_eq!(waiting(), 0, "printed by the other");
    }

    #[test]
    fn device_script_with_hanging_program_runs_the_others() {
        let folder = tempfile::tempdir().unwrap();
        // The programs' first argument is `--test-threads=1`.
        let scripts = [
            ("stuck", "sleep 60"),
            ("wrong", "exit 3"),
            ("right", "echo done"),
        ];
        let programs = scripts.map(|(library, script)| {
            let executable = folder.path().join(library);
            fs::write(&executable, script).unwrap();
            fs::set_permissions(&executable, Permissions::from_mode(0o755)).unwrap();
            Program {
                package: format!("rdma-{library}"),
                library: library.to_owned(),
                folder: folder.path().to_owned(),
                executable,
            }
        });
        let run = |programs: &[Program]| {
            let script = device_script(programs, |_| Vec::new(), Duration::from_secs(1)).unwrap();
            let output = Command::new("sh").args(["-c", &script]).output().unwrap();
            let printed = String::from_utf8(output.stdout).unwrap();
            (output.status.code(), printed)
        };
        let (code, printed) = run(&programs);
        assert_eq!(code, Some(1));
        let mut lines = printed.lines().filter(|line| !line.is_empty());
        assert!(lines.next().unwrap().starts_with(KERNEL));
        let lines: Vec<&str> = lines.collect();
        assert_eq!(
            lines,
            [
                &format!("{DEVICE_TESTS_OF}stuck"),
                "the tests of stuck have not ended after 1 s",
                &format!("{DEVICE_TESTS_OF}wrong"),
                &format!("{DEVICE_TESTS_OF}right"),
                "done",
            ]
        );
        assert_eq!(run(&programs[2..]).0, Some(0));
    }
}
