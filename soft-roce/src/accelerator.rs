//! Selection of the accelerator: KVM or emulation.
//!
//! An accessible `/dev/kvm` is not sufficient: under some hypervisors the device exists and a guest hangs at its first
//! instructions. So a trial guest is booted under KVM, and the result is cached. `kvm_pvm` needs no trial: PVM
//! interprets the kernel of an ordinary guest, slower than emulation.

use std::fs::{self, OpenOptions};
use std::path::Path;

use anyhow::Result;

use crate::qemu::Accelerator;

/// Sysfs folder of `kvm_pvm`, the module behind `/dev/kvm` in a virtual machine without nested virtualization.
const PVM: &str = "/sys/module/kvm_pvm";

/// Whether `/dev/kvm` is accessible and not PVM's.
pub(crate) fn may_answer() -> bool {
    is_open_to_us() && !is_pvm()
}

fn is_open_to_us() -> bool {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_ok()
}

fn is_pvm() -> bool {
    Path::new(PVM).is_dir()
}

/// State of KVM on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KvmState {
    /// A trial guest has started.
    Works,
    /// Accessible, without a trial.
    Untested,
    /// No `/dev/kvm`.
    Absent,
    /// No permission.
    Forbidden,
    /// `/dev/kvm` is PVM's.
    Pvm,
    /// A trial guest has not started.
    Hangs,
}

/// The state of KVM, without a trial.
pub(crate) fn state(cache: &Path, qemu: Option<&Path>) -> KvmState {
    if !Path::new("/dev/kvm").exists() {
        return KvmState::Absent;
    }
    if is_pvm() {
        return KvmState::Pvm;
    }
    if !is_open_to_us() {
        return KvmState::Forbidden;
    }
    let uname = rustix::system::uname();
    let recorded = fs::read_to_string(cache.join("kvm")).ok();
    let verdict = qemu.zip(recorded).and_then(|(qemu, recorded)| {
        let kernel = &uname.release().to_string_lossy();
        let host = Host {
            qemu,
            kernel,
            interprets: false,
        };
        host.recall(&recorded)
    });
    match verdict {
        Some(Accelerator::Kvm) => KvmState::Works,
        Some(Accelerator::Tcg) => KvmState::Hangs,
        None => KvmState::Untested,
    }
}

/// Chooses the accelerator. `answers` boots a guest under KVM and returns whether its init started.
pub(crate) fn choose(
    cache: &Path,
    qemu: &Path,
    answers: impl FnOnce() -> Result<bool>,
) -> Result<Accelerator> {
    if !is_open_to_us() {
        return Ok(Accelerator::Tcg);
    }
    let uname = rustix::system::uname();
    let file = cache.join("kvm");
    let recorded = fs::read_to_string(&file).ok();
    let machine = Host {
        qemu,
        kernel: &uname.release().to_string_lossy(),
        interprets: is_pvm(),
    };
    let (verdict, reason) = machine.judge(recorded.as_deref(), answers)?;
    if let Some(reason) = reason {
        eprintln!("{reason}");
        fs::write(&file, machine.remember(verdict))?;
    }
    Ok(verdict)
}

/// The properties of the host that a verdict is valid for.
#[derive(Debug)]
struct Host<'a> {
    qemu: &'a Path,
    kernel: &'a str,
    /// Whether `/dev/kvm` belongs to PVM.
    interprets: bool,
}

impl Host<'_> {
    /// Returns the verdict, and a message unless `recorded` already has the verdict.
    fn judge(
        &self,
        recorded: Option<&str>,
        answers: impl FnOnce() -> Result<bool>,
    ) -> Result<(Accelerator, Option<&'static str>)> {
        let recorded = recorded.and_then(|text| self.recall(text));
        if self.interprets {
            let reason = "Guests are emulated: /dev/kvm belongs to kvm_pvm, which interprets a guest's kernel, \
                more slowly than emulation.";
            let news = (recorded != Some(Accelerator::Tcg)).then_some(reason);
            return Ok((Accelerator::Tcg, news));
        }
        if let Some(verdict) = recorded {
            return Ok((verdict, None));
        }
        eprintln!("Testing once whether guests can use KVM");
        Ok(if answers()? {
            (Accelerator::Kvm, Some("Guests use KVM."))
        } else {
            let reason =
                "Guests are emulated: /dev/kvm exists, and a guest that uses it does not start.";
            (Accelerator::Tcg, Some(reason))
        })
    }

    fn remember(&self, verdict: Accelerator) -> String {
        let word = if verdict == Accelerator::Kvm {
            "kvm"
        } else {
            "tcg"
        };
        format!("{word} {} {}\n", self.kernel, self.qemu.display())
    }

    /// The verdict in the cache file's `text`, if valid for this emulator and kernel.
    fn recall(&self, text: &str) -> Option<Accelerator> {
        [Accelerator::Kvm, Accelerator::Tcg]
            .into_iter()
            .find(|verdict| text == self.remember(*verdict))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host<'a>(qemu: &'a str, kernel: &'a str, interprets: bool) -> Host<'a> {
        Host {
            qemu: Path::new(qemu),
            kernel,
            interprets,
        }
    }

    #[test]
    fn recall_on_another_machine_is_none() {
        let this = host("/usr/bin/qemu", "6.1.0", false);
        for verdict in [Accelerator::Kvm, Accelerator::Tcg] {
            let text = this.remember(verdict);
            assert_eq!(this.recall(&text), Some(verdict));
            assert_eq!(host("/usr/bin/qemu", "6.1.1", false).recall(&text), None);
            assert_eq!(host("/opt/qemu", "6.1.0", false).recall(&text), None);
        }
        assert_eq!(this.recall(""), None);
    }

    #[test]
    fn judge_without_known_verdict_runs_one_trial() {
        let this = host("/usr/bin/qemu", "6.1.0", false);
        for (answers, verdict) in [(true, Accelerator::Kvm), (false, Accelerator::Tcg)] {
            let (found, reason) = this.judge(None, || Ok(answers)).unwrap();
            assert_eq!(found, verdict);
            assert!(reason.is_some());
            let recorded = this.remember(found);
            let again = this.judge(Some(&recorded), || panic!("a second trial"));
            assert_eq!(again.unwrap(), (verdict, None));
        }
    }

    #[test]
    fn judge_under_pvm_chooses_emulation_without_trial() {
        let this = host("/usr/bin/qemu", "6.1.0", true);
        // The second verdict dates from before `kvm_pvm` was loaded.
        for recorded in [None, Some(this.remember(Accelerator::Kvm))] {
            let judged = this.judge(recorded.as_deref(), || panic!("a trial"));
            let (verdict, reason) = judged.unwrap();
            assert_eq!(verdict, Accelerator::Tcg);
            assert!(reason.unwrap().contains("kvm_pvm"), "{reason:?}");
        }
        let recorded = this.remember(Accelerator::Tcg);
        let again = this.judge(Some(&recorded), || panic!("a trial"));
        assert_eq!(again.unwrap(), (Accelerator::Tcg, None));
    }
}
