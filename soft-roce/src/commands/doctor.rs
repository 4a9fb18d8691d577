//! `cargo soft-roce doctor`: missing parts, and the speed of guests on this machine with the reason.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::accelerator::{self, KvmState};
use crate::architecture;
use crate::boot::apt;
use crate::commands::setup::{self, Group};
use crate::run::available_mib;
use crate::sandbox::{self, Confinement};
use crate::workspace::{self, Workspace};
use crate::{process, uml};

/// Memory of two guests by default, in MiB.
const MEMORY_MIB: u64 = 2048;

/// Age of package lists whose packages the distribution may have replaced.
const OLD: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Properties of the machine that decide on guests.
#[derive(Clone, Debug)]
struct Facts {
    kvm: KvmState,
    /// The User-Mode Linux kernel, if built.
    uml: Option<PathBuf>,
    has_qemu: bool,
    /// The distribution's kernel in the cache, for QEMU.
    has_kernel: bool,
    has_apt: bool,
    /// Age of apt's package lists.
    lists: Option<Duration>,
    /// Missing packages or files, by group.
    missing: Vec<(Group, Vec<&'static str>)>,
    has_nextest: bool,
    memory_mib: Option<u64>,
    confinement: Confinement,
    cache: PathBuf,
}

/// State of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Good,
    /// Guests start, slower.
    Slow,
    /// Something fails, or is installed at the first use.
    Missing,
}

/// A line of the report.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    state: State,
    topic: &'static str,
    text: String,
}

/// Prints the report. The exit code is 1 if guests cannot start without an installation.
pub(crate) fn run(workspace: &Workspace) -> ExitCode {
    let facts = Facts::gather(workspace);
    for Finding { state, topic, text } in facts.findings() {
        let state = match state {
            State::Good => "ok",
            State::Slow => "slow",
            State::Missing => "missing",
        };
        println!("{state:8} {topic:16} {text}");
    }
    println!("\n{}", facts.verdict());
    if facts.can_start() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

impl Facts {
    fn gather(workspace: &Workspace) -> Self {
        let native = architecture::native().ok();
        let qemu = native.and_then(|native| process::find_program(native.qemu));
        let missing = Group::OF_GUESTS
            .iter()
            .map(|group| (*group, setup::absent(*group)));
        Self {
            kvm: accelerator::state(workspace.cache(), qemu.as_deref()),
            uml: uml::build::built(None).map(|kernel| kernel.image),
            has_qemu: qemu.is_some(),
            has_kernel: workspace.cache().join("kernel").is_dir(),
            has_apt: apt::is_available(),
            lists: age_of_lists(Path::new("/var/lib/apt/lists")),
            missing: missing.filter(|(_, absent)| !absent.is_empty()).collect(),
            has_nextest: process::find_program("cargo-nextest").is_some(),
            memory_mib: available_mib(&fs::read_to_string("/proc/meminfo").unwrap_or_default()),
            confinement: Confinement::of_next_guest(),
            cache: workspace::user_cache().unwrap_or_else(|| workspace.cache().to_owned()),
        }
    }

    fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![self.kvm(), self.uml(), self.qemu()];
        findings.extend(self.missing.iter().map(|(group, absent)| Finding {
            // User-Mode Linux and siw are built once; their tools are not needed afterwards.
            state: State::Missing,
            topic: "packages",
            text: format!(
                "{}: {}; `cargo soft-roce setup` installs them",
                group.name(),
                absent.join(" ")
            ),
        }));
        if self.missing.is_empty() {
            let text = "all of guests are installed".to_owned();
            findings.push(Finding {
                state: State::Good,
                topic: "packages",
                text,
            });
        }
        findings.push(self.package_lists());
        findings.push(self.memory());
        findings.push(self.confinement());
        findings.push(Finding {
            state: State::Good,
            topic: "cache",
            text: self.cache.display().to_string(),
        });
        let nextest = if self.has_nextest {
            "installed: `cargo soft-roce test --nextest` runs each test in a guest of its own"
        } else {
            "not installed; only `cargo soft-roce test --nextest` needs it"
        };
        findings.push(Finding {
            state: State::Good,
            topic: "nextest",
            text: nextest.to_owned(),
        });
        findings
    }

    fn kvm(&self) -> Finding {
        let (state, text) = match self.kvm {
            KvmState::Works => (State::Good, "guests of QEMU use it"),
            KvmState::Untested => (State::Good, "accessible; the first guest of QEMU tests it"),
            KvmState::Absent => (
                State::Slow,
                "no /dev/kvm: no hardware virtualization, or a virtual machine without nested virtualization",
            ),
            KvmState::Forbidden => (
                State::Slow,
                "/dev/kvm refuses this user: `sudo usermod -aG kvm $USER`, then log in again",
            ),
            KvmState::Pvm => (
                State::Slow,
                "/dev/kvm belongs to kvm_pvm, which interprets a guest's kernel: not used",
            ),
            KvmState::Hangs => (
                State::Slow,
                "/dev/kvm exists, and a guest that uses it does not start: not used",
            ),
        };
        Finding {
            state,
            topic: "KVM",
            text: text.to_owned(),
        }
    }

    fn uml(&self) -> Finding {
        let (state, text) = match &self.uml {
            Some(image) => (State::Good, format!("built: {}", image.display())),
            None if self.has_apt => {
                let text = format!(
                    "not built; `--backend uml` or `test` builds it once: {}",
                    uml::build::price()
                );
                (
                    if self.is_fast_with_kvm() {
                        State::Good
                    } else {
                        State::Slow
                    },
                    text,
                )
            }
            None => (
                State::Slow,
                "not built: the build needs Debian's source packages".to_owned(),
            ),
        };
        Finding {
            state,
            topic: "User-Mode Linux",
            text,
        }
    }

    fn qemu(&self) -> Finding {
        let text = match (self.has_qemu, self.has_kernel) {
            (true, true) => "installed, and its kernel is in the cache".to_owned(),
            (true, false) => {
                "installed; the first guest downloads the distribution's kernel".to_owned()
            }
            (false, _) => match architecture::native() {
                Ok(native) => format!("{} is not on PATH", native.qemu),
                Err(error) => error.to_string(),
            },
        };
        let state = if self.has_qemu || self.uml.is_some() {
            State::Good
        } else {
            State::Missing
        };
        Finding {
            state,
            topic: "QEMU",
            text,
        }
    }

    fn package_lists(&self) -> Finding {
        let days = |age: Duration| age.as_secs() / (24 * 60 * 60);
        let (state, text) = match self.lists {
            _ if !self.has_apt => (
                State::Missing,
                "apt-get is not on PATH: guests need a kernel given with --kernel and --modules"
                    .to_owned(),
            ),
            None => (
                State::Missing,
                "apt has none: `apt-get update`, as root".to_owned(),
            ),
            Some(age) if age > OLD => (
                State::Good,
                format!("{} days old; refreshed before a download", days(age)),
            ),
            Some(_) => (State::Good, "of apt-get".to_owned()),
        };
        Finding {
            state,
            topic: "package lists",
            text,
        }
    }

    fn memory(&self) -> Finding {
        let (state, text) = match self.memory_mib {
            Some(mib) if mib < MEMORY_MIB => (
                State::Missing,
                format!(
                    "{mib} MiB are free, and two guests take {MEMORY_MIB}: close other programs, or lower --memory"
                ),
            ),
            Some(mib) => (State::Good, format!("{mib} MiB are free")),
            None => (State::Good, "unknown".to_owned()),
        };
        Finding {
            state,
            topic: "memory",
            text,
        }
    }

    fn confinement(&self) -> Finding {
        let (state, text) = match self.confinement {
            Confinement::Works => (
                State::Good,
                "Landlock: guests write only $OUT and their memory".to_owned(),
            ),
            Confinement::Declined => (
                State::Good,
                format!(
                    "none, by {}=1: a guest's root can write this machine's files",
                    sandbox::VARIABLE
                ),
            ),
            Confinement::Unsupported => (
                State::Missing,
                format!(
                    "no Landlock: boot Linux 5.13 or later with `landlock` in `lsm=`, or let guests write this \
                     machine's files by {}=1",
                    sandbox::VARIABLE
                ),
            ),
        };
        Finding {
            state,
            topic: "sandbox",
            text,
        }
    }

    fn is_fast_with_kvm(&self) -> bool {
        self.has_qemu && matches!(self.kvm, KvmState::Works | KvmState::Untested)
    }

    /// Whether a guest can start now.
    fn can_start(&self) -> bool {
        let lacks = |wanted: Group| self.missing.iter().any(|(group, _)| *group == wanted);
        let is_confined = self.confinement != Confinement::Unsupported;
        is_confined && !lacks(Group::Guest) && (self.uml.is_some() || self.has_qemu)
    }

    /// The machine of the next guest, with its speed, as `--backend auto` chooses.
    fn verdict(&self) -> &'static str {
        if self.confinement == Confinement::Unsupported {
            "Guests cannot start: this kernel cannot confine them."
        } else if !self.can_start() {
            "Guests cannot start yet: `cargo soft-roce setup` installs the missing packages."
        } else if self.is_fast_with_kvm() {
            "Guests run in QEMU with KVM: a boot takes about 1 s, and programs run at full speed."
        } else if self.uml.is_some() {
            "Guests run in User-Mode Linux: a boot takes about 1 s; system calls are several times slower, and there is \
             one processor."
        } else {
            "Guests are emulated: a boot takes 10 to 30 s, and programs run about ten times slower. User-Mode Linux \
             would be faster: `cargo soft-roce run --backend uml -- true` builds it."
        }
    }
}

/// Time since the last refresh of package lists in `folder`; none without lists.
fn age_of_lists(folder: &Path) -> Option<Duration> {
    let lists = fs::read_dir(folder).ok()?.flatten();
    let lists = lists.filter(|entry| entry.file_name().to_string_lossy().contains("_Packages"));
    lists
        .flat_map(|entry| entry.metadata()?.modified())
        .max()?
        .elapsed()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            kvm: KvmState::Absent,
            uml: None,
            has_qemu: true,
            has_kernel: false,
            has_apt: true,
            lists: Some(Duration::from_secs(60)),
            missing: Vec::new(),
            has_nextest: false,
            memory_mib: Some(MEMORY_MIB),
            confinement: Confinement::Works,
            cache: "/cache".into(),
        }
    }

    fn state(facts: &Facts, topic: &str) -> State {
        let findings = facts.findings();
        findings
            .iter()
            .find(|finding| finding.topic == topic)
            .unwrap()
            .state
    }

    #[test]
    fn machine_of_guests_is_the_fastest_that_works() {
        let emulated = facts();
        assert!(emulated.verdict().starts_with("Guests are emulated"));
        let uml = Facts {
            uml: Some("/linux".into()),
            ..facts()
        };
        assert!(uml.verdict().contains("User-Mode Linux:"));
        let kvm = Facts {
            kvm: KvmState::Works,
            ..uml.clone()
        };
        assert!(kvm.verdict().contains("with KVM"));
        let hanging = Facts {
            kvm: KvmState::Hangs,
            ..uml
        };
        assert!(hanging.verdict().contains("User-Mode Linux:"));
    }

    #[test]
    fn guests_without_their_packages_cannot_start() {
        let missing = vec![(Group::Guest, vec!["busybox-static"])];
        let lacking = Facts { missing, ..facts() };
        assert!(!lacking.can_start());
        assert_eq!(state(&lacking, "packages"), State::Missing);
        let findings = lacking.findings();
        assert!(
            findings
                .iter()
                .any(|finding| finding.text.contains("guest: busybox-static"))
        );
        assert!(
            !Facts {
                has_qemu: false,
                ..facts()
            }
            .can_start()
        );
    }

    #[test]
    fn guests_that_cannot_be_confined_cannot_start() {
        let with = |confinement| Facts {
            confinement,
            ..facts()
        };
        let unsupported = with(Confinement::Unsupported);
        assert!(!unsupported.can_start());
        assert_eq!(state(&unsupported, "sandbox"), State::Missing);
        assert!(unsupported.verdict().contains("confine"));
        assert!(with(Confinement::Declined).can_start());
    }

    #[test]
    fn siw_and_uml_tools_are_optional() {
        let missing = vec![(Group::Uml, vec!["flex"]), (Group::Siw, vec!["gcc"])];
        assert!(Facts { missing, ..facts() }.can_start());
    }

    #[test]
    fn slow_parts_are_named_with_the_reason() {
        for (kvm, part) in [
            (KvmState::Absent, "no /dev/kvm"),
            (KvmState::Forbidden, "usermod"),
            (KvmState::Pvm, "kvm_pvm"),
        ] {
            let finding = Facts { kvm, ..facts() }.kvm();
            assert_eq!(finding.state, State::Slow);
            assert!(finding.text.contains(part), "{finding:?}");
        }
        assert_eq!(state(&facts(), "User-Mode Linux"), State::Slow);
        assert_eq!(
            state(
                &Facts {
                    memory_mib: Some(10),
                    ..facts()
                },
                "memory"
            ),
            State::Missing
        );
        assert_eq!(
            state(
                &Facts {
                    lists: None,
                    ..facts()
                },
                "package lists"
            ),
            State::Missing
        );
    }

    #[test]
    fn age_of_lists_without_lists_is_none() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("lock"), "").unwrap();
        assert_eq!(age_of_lists(folder.path()), None);
        fs::write(folder.path().join("x_main_binary-amd64_Packages.lz4"), "").unwrap();
        assert!(age_of_lists(folder.path()).unwrap() < OLD);
    }
}
