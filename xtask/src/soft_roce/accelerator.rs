//! Whether guests may run on the host's own processors.
//!
//! A `/dev/kvm` that can be opened says little: under some hypervisors it is there, and a guest never gets past its
//! first instructions. So a guest has to have answered under KVM once; the verdict is kept.

use std::fs::{self, OpenOptions};
use std::path::Path;

use anyhow::Result;

use super::qemu::Accelerator;

/// Whether there is a KVM that is worth a trial.
pub(crate) fn may_answer() -> bool {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_ok()
}

/// Chooses the accelerator; `answers` boots a guest under KVM and tells whether it answered.
pub(crate) fn choose(
    cache: &Path,
    qemu: &Path,
    answers: impl FnOnce() -> Result<bool>,
) -> Result<Accelerator> {
    if !may_answer() {
        return Ok(Accelerator::Tcg);
    }
    let uname = rustix::system::uname();
    let kernel = uname.release().to_string_lossy();
    let file = cache.join("kvm");
    if let Some(verdict) = fs::read_to_string(&file)
        .ok()
        .and_then(|text| recall(&text, qemu, &kernel))
    {
        return Ok(verdict);
    }
    eprintln!("Trying whether guests can use KVM here, once");
    let verdict = if answers()? {
        Accelerator::Kvm
    } else {
        Accelerator::Tcg
    };
    if verdict == Accelerator::Tcg {
        eprintln!(
            "They cannot: /dev/kvm is there, and a guest does not start. They are emulated instead."
        );
    }
    fs::write(&file, remember(verdict, qemu, &kernel))?;
    Ok(verdict)
}

fn remember(verdict: Accelerator, qemu: &Path, kernel: &str) -> String {
    let word = if verdict == Accelerator::Kvm {
        "kvm"
    } else {
        "tcg"
    };
    format!("{word} {kernel} {}\n", qemu.display())
}

/// The verdict in the file's `text`, if it was found with the same emulator on the same kernel.
fn recall(text: &str, qemu: &Path, kernel: &str) -> Option<Accelerator> {
    [Accelerator::Kvm, Accelerator::Tcg]
        .into_iter()
        .find(|verdict| text == remember(*verdict, qemu, kernel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_counts_for_the_same_machine_only() {
        let (qemu, other) = (Path::new("/usr/bin/qemu"), Path::new("/opt/qemu"));
        for verdict in [Accelerator::Kvm, Accelerator::Tcg] {
            let text = remember(verdict, qemu, "6.1.0");
            assert_eq!(recall(&text, qemu, "6.1.0"), Some(verdict));
            assert_eq!(recall(&text, qemu, "6.1.1"), None);
            assert_eq!(recall(&text, other, "6.1.0"), None);
        }
        assert_eq!(recall("", qemu, "6.1.0"), None);
    }
}
