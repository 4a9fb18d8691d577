//! Running what is measured in a guest, where ours and the reference take turns.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use super::noop::Side;
use super::statistics::{self, median};
use crate::soft_roce::backend::Backend;
use crate::soft_roce::{EventKind, Outcome, Run, Stream};
use crate::workspace::Workspace;

/// How many figures a median is made of, at least.
pub(super) const LEAST_ROUNDS: usize = 3;

/// How a run went, and where all that it printed is, for when something goes wrong.
pub(super) struct Recording {
    pub(super) outcome: Outcome,
    log: PathBuf,
}

impl Recording {
    /// Why it has failed, if it has.
    pub(super) fn failure(&self) -> Option<String> {
        let why = || {
            let complaint = self.outcome.complaint();
            complaint.unwrap_or_else(|| "the measurement failed".to_owned())
        };
        (!self.outcome.is_success()).then(why)
    }

    /// Where to look.
    pub(super) fn look(&self) -> String {
        format!("what was printed is in {}", self.log.display())
    }
}

/// Runs a plan in QEMU, whose guests have two processors, and gives each line of its standard output to `read`.
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
        .execute(workspace, &mut |event| {
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

/// The same for a run that has to succeed; returns where to look. What a kernel has only warned of is told.
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

/// Who begins changes from round to round.
pub(super) fn sides(round: usize) -> [Side; 2] {
    if round.is_multiple_of(2) {
        [Side::Ours, Side::Reference]
    } else {
        [Side::Reference, Side::Ours]
    }
}

/// The median of what `case` gave, which has to be something.
pub(super) fn typical(case: &str, samples: Option<&Vec<f64>>) -> Result<f64> {
    median(enough(case, samples)?).context("there are no samples")
}

/// The mean of the middle half of what `case` gave, which has to be something.
pub(super) fn middle(case: &str, samples: Option<&Vec<f64>>) -> Result<f64> {
    statistics::middle(enough(case, samples)?).context("there are no samples")
}

fn enough<'s>(case: &str, samples: Option<&'s Vec<f64>>) -> Result<&'s [f64]> {
    let samples = samples.map_or(&[][..], Vec::as_slice);
    ensure!(
        samples.len() >= LEAST_ROUNDS,
        "{case} gave {} figures, and {LEAST_ROUNDS} are wanted: is the machine busy?",
        samples.len()
    );
    Ok(samples)
}
