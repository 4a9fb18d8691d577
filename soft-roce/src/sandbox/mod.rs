//! Confinement of a guest's machine to its own files.
//!
//! The process of User-Mode Linux and of QEMU makes the system calls of the host on behalf of a guest, whose root may
//! mount the host's files a second time. Three mechanisms of the kernel, none of which needs privileges, are set between
//! fork and exec:
//!
//! - *Landlock*: all files can be read, and only those of [`Writable`] written. There, regular files and folders can be
//!   created, and no symbolic links, device nodes, sockets and FIFOs.
//! - *seccomp*: modes, owners and times of files do not change, which Landlock does not cover; new files are never
//!   set-user-ID or set-group-ID; no socket is opened.
//! - *capabilities*: those of root are dropped, except access to files, which Landlock limits.

mod system_calls;

use std::env;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use seccompiler::BpfProgram;

/// Environment variable that starts guests without a sandbox, if it is `1`.
pub(crate) const VARIABLE: &str = "SOFT_ROCE_UNCONFINED";

/// Rights of Landlock to create and change regular files and folders.
const WRITING: BitFlags<AccessFs> = landlock::make_bitflags!(AccessFs::{
    WriteFile | Truncate | RemoveFile | RemoveDir | MakeReg | MakeDir | Refer
});

/// Rights for one file that exists, a device among them.
const WRITING_FILE: BitFlags<AccessFs> =
    landlock::make_bitflags!(AccessFs::{WriteFile | Truncate | IoctlDev});

/// Newest version of Landlock whose rights are denied where the kernel has them.
const NEWEST_ABI: ABI = ABI::V10;

/// Capabilities of root that a machine keeps: access to files of other users, and tracing of its own processes where the
/// kernel reserves tracing for root.
const KEPT: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::SYS_PTRACE);

/// Files that a machine may write.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writable {
    /// Folders, with all files below them.
    pub(crate) folders: Vec<PathBuf>,
    /// Files and devices that exist.
    pub(crate) files: Vec<PathBuf>,
}

/// The sandbox of one machine.
#[derive(Debug)]
pub(crate) struct Sandbox {
    rules: RulesetCreated,
    filters: [BpfProgram; 2],
}

impl Sandbox {
    /// A sandbox in which `writable` can be written; none if the user has chosen so by [`VARIABLE`].
    ///
    /// # Errors
    ///
    /// The kernel has no Landlock or no seccomp, or a file of `writable` does not exist.
    pub(crate) fn new(writable: &Writable) -> Result<Option<Self>> {
        if is_declined() {
            return Ok(None);
        }
        Self::required(writable).map(Some)
    }

    fn required(writable: &Writable) -> Result<Self> {
        let mut rules = ruleset()?;
        for folder in &writable.folders {
            rules = allow(rules, folder, WRITING)?;
        }
        for file in &writable.files {
            rules = allow(rules, file, WRITING_FILE)?;
        }
        let filters = system_calls::filters(denies_truncation())?;
        Ok(Self { rules, filters })
    }

    /// Confines the process that `command` starts, and its descendants.
    pub(crate) fn confine(self, command: &mut Command) {
        let in_child = move || {
            let rules = self.rules.try_clone()?;
            let status = rules.restrict_self().map_err(io::Error::other)?;
            if status.ruleset == RulesetStatus::NotEnforced {
                return Err(io::Error::other("Landlock did not take effect"));
            }
            drop_capabilities()?;
            for filter in &self.filters {
                seccompiler::apply_filter(filter).map_err(io::Error::other)?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes system calls, on descriptors and programs that were made before
        // the fork; the closure takes no lock, and allocates only to report a failure, after which the child exits.
        unsafe { command.pre_exec(in_child) };
    }
}

/// Confinement of guests on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confinement {
    /// The kernel confines guests.
    Works,
    /// Guests are not confined, by [`VARIABLE`].
    Declined,
    /// The kernel cannot confine guests, which are refused.
    Unsupported,
}

impl Confinement {
    /// The confinement of the next guest.
    pub(crate) fn of_next_guest() -> Self {
        if is_declined() {
            Self::Declined
        } else if ruleset().is_ok() {
            Self::Works
        } else {
            Self::Unsupported
        }
    }
}

fn is_declined() -> bool {
    env::var_os(VARIABLE).is_some_and(|value| value == "1")
}

/// Rules that allow no write.
fn ruleset() -> Result<RulesetCreated> {
    let create = || {
        Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_write(ABI::V1))?
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_write(NEWEST_ABI))?
            .scope(Scope::from_all(NEWEST_ABI))?
            .create()
    };
    create().with_context(|| {
        format!(
            "this kernel has no Landlock, so a guest's root could write this machine's files: boot Linux 5.13 or later \
             with `landlock` in the parameter `lsm=`, or accept such writes by {VARIABLE}=1"
        )
    })
}

fn allow(rules: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> Result<RulesetCreated> {
    let opened = PathFd::new(path).with_context(|| format!("cannot open {}", path.display()))?;
    let added = rules.add_rule(PathBeneath::new(opened, access));
    added.with_context(|| format!("Landlock cannot allow writes to {}", path.display()))
}

/// Whether Landlock denies the truncation of files; since Linux 6.2.
fn denies_truncation() -> bool {
    let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let rules = rules.handle_access(AccessFs::Truncate);
    rules.is_ok_and(|rules| rules.create().is_ok())
}

/// Drops root's capabilities except [`KEPT`], where root has the capability to do so.
fn drop_capabilities() -> io::Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    if !sets.effective.contains(CapabilitySet::SETPCAP) {
        return Ok(());
    }
    // From the bounding set too: otherwise root's exec counts as one that gains capabilities, and the processes of User-Mode
    // Linux 7 hang.
    for capability in CapabilitySet::all().difference(KEPT) {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Unknown to this kernel.
            Err(Errno::INVAL) => {}
            removed => removed?,
        }
    }
    sets.permitted &= KEPT;
    sets.effective &= KEPT;
    sets.inheritable = CapabilitySet::empty();
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::thread;

    use super::*;

    /// Runs a script with `sh`, confined to `writable`.
    fn confined(script: &str, writable: &Writable) -> std::process::Output {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let sandbox = Sandbox::required(writable).unwrap();
        sandbox.confine(&mut command);
        command.output().unwrap()
    }

    /// Names, modes and owners below a folder.
    fn contents(folder: &Path) -> Vec<(String, u32, u32)> {
        let entries = fs::read_dir(folder).unwrap().flatten();
        let mut contents: Vec<_> = entries
            .map(|entry| {
                let data = fs::symlink_metadata(entry.path()).unwrap();
                let name = entry.file_name().to_string_lossy().into_owned();
                (name, data.mode(), data.uid())
            })
            .collect();
        contents.sort();
        contents
    }

    /// Commands that change the folder `$1`, with a file `file`.
    const CHANGES: [&str; 16] = [
        "echo x >>$1/file",
        "true >$1/file",
        "rm -f $1/file",
        "mv $1/file $1/moved",
        "echo x >$1/new",
        "mkdir $1/folder",
        "mkfifo $1/fifo",
        "mknod $1/device c 1 3",
        "mknod $1/disk b 8 0",
        "ln -s /etc/passwd $1/link",
        "ln $1/file $1/second",
        "chmod 4755 $1/file",
        "chmod 600 $1/file",
        "chown 1234 $1/file",
        "touch -d 2001-01-01 $1/file",
        "python3 -c \"import os; os.truncate('$1/file', 1)\"",
    ];

    fn changes_in(folder: &Path) -> String {
        let folder = crate::quote(folder).unwrap();
        format!("set -- {folder}\n{}", CHANGES.join("\n"))
    }

    #[test]
    fn confined_process_changes_no_other_file() {
        let (outside, inside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = outside.path().join("file");
        fs::write(&file, "contents").unwrap();
        let before = (contents(outside.path()), fs::metadata(&file).unwrap());
        let writable = Writable {
            folders: vec![inside.path().to_owned()],
            files: Vec::new(),
        };
        confined(&changes_in(outside.path()), &writable);
        assert_eq!(contents(outside.path()), before.0);
        assert_eq!(fs::read_to_string(&file).unwrap(), "contents");
        let modified = fs::metadata(&file).unwrap().modified().unwrap();
        assert_eq!(modified, before.1.modified().unwrap());
        // Without a sandbox the same commands change the folder.
        let script = changes_in(outside.path());
        Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_ne!(contents(outside.path()), before.0);
    }

    #[test]
    fn confined_process_makes_only_plain_files_in_its_folder() {
        let inside = tempfile::tempdir().unwrap();
        fs::write(inside.path().join("file"), "").unwrap();
        let writable = Writable {
            folders: vec![inside.path().to_owned()],
            files: vec!["/dev/null".into()],
        };
        let folder = crate::quote(inside.path()).unwrap();
        let script = format!(
            "cd {folder} && mkdir one two && echo x >one/a && mv one/a two/b && rm file && cp -p /bin/true ./program \
             && ./program && touch -d 2001-01-01 two/b && : >/dev/null; umask 0; \
             python3 -c \"import os; os.open('set-id', os.O_CREAT | os.O_WRONLY, 0o4755)\"; \
             python3 -c \"import os; os.mknod('set-gid', 0o102755)\"; python3 -c \"import socket; socket.socket()\"; \
             ln -s /etc/passwd link; ln /etc/passwd hard; mknod device c 1 3; mkfifo fifo; chown 1234 program; \
             chmod 4755 program; chmod u+s two; exit 3"
        );
        let output = confined(&script, &writable);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let user = rustix::process::geteuid().as_raw();
        let contents = contents(inside.path());
        let names: Vec<&str> = contents.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["one", "program", "two"], "{output:?}");
        for (name, mode, owner) in &contents {
            assert_eq!((mode & 0o6000, *owner), (0, user), "{name}");
        }
        let moved = fs::read_to_string(inside.path().join("two/b"));
        assert_eq!(moved.unwrap(), "x\n", "{output:?}");
        let program = fs::metadata(inside.path().join("program")).unwrap();
        assert_eq!(program.permissions().mode() & 0o100, 0o100);
    }

    #[test]
    fn confined_root_has_access_to_files_only() {
        let output = confined("grep CapEff /proc/self/status", &Writable::default());
        let text = String::from_utf8(output.stdout).unwrap();
        let effective = text.split_whitespace().nth(1).unwrap();
        let effective = u64::from_str_radix(effective, 16).unwrap();
        assert_eq!(effective & !KEPT.bits(), 0, "{text}");
    }

    #[test]
    fn kernel_without_landlock_is_refused_with_the_way_out() {
        let refused = thread::spawn(|| {
            let rules = [(libc::SYS_landlock_create_ruleset, Vec::new())].into();
            let filter = system_calls::compiled(rules, libc::ENOSYS).unwrap();
            seccompiler::apply_filter(&filter).unwrap();
            assert_eq!(Confinement::of_next_guest(), Confinement::Unsupported);
            Sandbox::required(&Writable::default())
                .unwrap_err()
                .to_string()
        });
        let message = refused.join().unwrap();
        assert!(
            message.contains(VARIABLE) && message.contains("lsm="),
            "{message}"
        );
    }
}
