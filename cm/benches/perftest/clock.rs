//! The clock of perftest: the processor's cycle counter.

use std::arch::x86_64::_rdtsc;

use crate::Result;

pub(crate) fn cycles() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, which has no side effects.
    unsafe { _rdtsc() }
}

/// Converts cycles to seconds, with the processor frequency reported by the kernel.
pub(crate) fn seconds(cycles: u64) -> Result<f64> {
    let text = std::fs::read_to_string("/proc/cpuinfo")?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"));
    let (_, mhz) = line
        .and_then(|line| line.split_once(':'))
        .ok_or("the kernel reports no processor frequency")?;
    let mhz: f64 = mhz.trim().parse()?;
    Ok(cycles as f64 / (mhz * 1e6))
}

/// Times of posted requests.
pub(crate) struct Samples(Vec<u64>);

impl Samples {
    /// Allocates room for `count` times.
    pub(crate) fn new(count: usize) -> Self {
        Self(Vec::with_capacity(count))
    }

    pub(crate) fn take(&mut self) {
        self.0.push(cycles());
    }

    /// Median interval between two times.
    pub(crate) fn median(&self) -> Result<f64> {
        let mut deltas: Vec<u64> = self.0.windows(2).map(|pair| pair[1] - pair[0]).collect();
        deltas.sort_unstable();
        let middle = deltas.get(deltas.len() / 2);
        Ok(*middle.ok_or("more iterations are needed")? as f64)
    }
}
