//! Memory of this process.

use std::fs;

use crate::Result;

/// Resident memory, in bytes.
pub(crate) fn resident_bytes() -> Result<f64> {
    field("/proc/self/status", "VmRSS:").map(|kib| kib * 1024.0)
}

/// The number after `name` in a file of lines.
fn field(path: &str, name: &str) -> Result<f64> {
    let text = fs::read_to_string(path)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    Ok(number.ok_or("no such line")?.parse()?)
}
