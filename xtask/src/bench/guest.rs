//! Measurements in a guest, with our program and the reference alternating.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use super::noop::Side;
use super::statistics::{self, median};
use crate::workspace::Workspace;
use soft_roce::backend::Backend;
use soft_roce::{EventKind, Outcome, Run, Stream};

/// Minimum number of samples for a median.
pub(super) const LEAST_ROUNDS: usize = 3;

/// Outcome of a run, and the path of the log with its output.
pub(super) struct Recording {
    pub(super) outcome: Outcome,
    log: PathBuf,
}

impl Recording {
    /// The reason of a failed run.
    pub(super) fn failure(&self) -> Option<String> {
        let why = || {
            let complaint = self.outcome.complaint();
            complaint.unwrap_or_else(|| "the measurement failed".to_owned())
        };
        (!self.outcome.is_success()).then(why)
    }

    /// A sentence with the path of the log, for error messages.
    pub(super) fn look(&self) -> String {
        format!("the output is in {}", self.log.display())
    }
}

/// Runs a plan in QEMU and calls `read` for each line of standard output. User-Mode Linux has one processor, QEMU two.
pub(super) fn record(
    workspace: &Workspace,
    name: &str,
    plan: Run,
    mut read: impl FnMut(&str),
) -> Result<Recording> {
    let log = workspace.target().join(format!("bench/{name}.log"));
    let mut writer =
        File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut written = Ok(());
    let outcome = plan
        .backend(Backend::Qemu)
        .execute(workspace.for_guests(), &mut |event| {
            if let EventKind::Output(stream, line) = &event.kind {
                let line = String::from_utf8_lossy(line);
                if *stream == Stream::Stdout {
                    read(&line);
                }
                if written.is_ok() {
                    written = writeln!(writer, "{line}");
                }
            }
        })?;
    written?;
    Ok(Recording { outcome, log })
}

/// Runs a plan like [`record`], fails unless the run succeeds, and returns [`Recording::look`]. Prints kernel warnings.
pub(super) fn record_success(
    workspace: &Workspace,
    name: &str,
    plan: Run,
    read: impl FnMut(&str),
) -> Result<String> {
    let recording = record(workspace, name, plan, read)?;
    if let Some(failure) = recording.failure() {
        bail!("{failure}\n{}", recording.look());
    }
    if let Some(warning) = recording.outcome.complaint() {
        eprintln!("{warning}");
    }
    Ok(recording.look())
}

/// The order of the programs in a round: swapped from round to round.
pub(super) fn sides(round: usize) -> [Side; 2] {
    if round.is_multiple_of(2) {
        [Side::Ours, Side::Reference]
    } else {
        [Side::Reference, Side::Ours]
    }
}

/// Median of the samples of `case`; an error if there are fewer than [`LEAST_ROUNDS`].
pub(super) fn typical(case: &str, samples: Option<&Vec<f64>>) -> Result<f64> {
    median(enough(case, samples)?).context("there are no samples")
}

/// Interquartile mean of the samples of `case`; an error if there are fewer than [`LEAST_ROUNDS`].
pub(super) fn middle(case: &str, samples: Option<&Vec<f64>>) -> Result<f64> {
    statistics::middle(enough(case, samples)?).context("there are no samples")
}

fn enough<'s>(case: &str, samples: Option<&'s Vec<f64>>) -> Result<&'s [f64]> {
    let samples = samples.map_or(&[][..], Vec::as_slice);
    ensure!(
        samples.len() >= LEAST_ROUNDS,
        "{case} gave {} figures, and {LEAST_ROUNDS} are needed: if the machine is busy, try again",
        samples.len()
    );
    Ok(samples)
}
