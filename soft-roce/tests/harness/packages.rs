//! Fetching the guest's kernel from the distribution's archive, with `apt-fake` in place of apt.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use super::{Finished, PROGRAM, finish};

/// A fake machine and archive. The initial package lists have the kernel 6.1.0-1.
struct Machine {
    folder: TempDir,
}

const OLD: &str = "6.1.0-1-amd64";
const NEW: &str = "6.1.0-2-amd64";

impl Machine {
    /// A machine whose archive offers `releases`, one after each refresh of the package lists.
    fn new(releases: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        for name in ["bin", "archive", "cache"] {
            fs::create_dir(path.join(name)).unwrap();
        }
        fs::write(path.join("lists"), format!("{OLD}\n")).unwrap();
        fs::write(path.join("offered"), "").unwrap();
        for (number, release) in releases.iter().enumerate() {
            let (name, release) = match release.strip_prefix("then ") {
                Some(release) => (format!("{number}-after"), release),
                None => (number.to_string(), *release),
            };
            fs::write(path.join("archive").join(name), format!("{release}\n")).unwrap();
        }
        let fake = path.join("bin/apt-fake");
        fs::write(&fake, include_str!("apt-fake")).unwrap();
        fs::set_permissions(&fake, Permissions::from_mode(0o755)).unwrap();
        for name in ["apt-get", "apt-cache", "dpkg-deb", "depmod"] {
            symlink("apt-fake", path.join("bin").join(name)).unwrap();
        }
        Self { folder }
    }

    /// Adds the old kernel without headers, as earlier versions fetched it.
    fn with_old_kernel(self) -> Self {
        let kernel = self.kernel();
        let modules = kernel.join("lib/modules").join(OLD).join("kernel");
        fs::create_dir_all(&modules).unwrap();
        fs::create_dir_all(kernel.join("boot")).unwrap();
        fs::write(modules.join("rdma_rxe.ko"), "").unwrap();
        fs::write(kernel.join("boot").join(format!("vmlinuz-{OLD}")), "").unwrap();
        self
    }

    fn kernel(&self) -> PathBuf {
        self.folder.path().join("cache/soft-roce/guests/kernel")
    }

    /// Runs a command in a guest. The boot always fails, because the fake's kernel is empty.
    fn run(&self, more: &[&str]) -> Finished {
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new(PROGRAM);
        command
            .env(
                "PATH",
                format!("{}/bin:{path}", self.folder.path().display()),
            )
            // The stack of the test run names a kernel of the real archive.
            .env_remove("SOFT_ROCE_KERNEL")
            .env("FAKE", self.folder.path())
            .env("XDG_CACHE_HOME", self.folder.path().join("cache"))
            .args(["soft-roce", "run", "--backend", "qemu"])
            .args(more)
            .args(["--", "true"]);
        finish(&mut command).expect_code(1)
    }

    /// The apt-get calls, one a line.
    fn called(&self) -> String {
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let calls = log
            .lines()
            .filter(|line| line.starts_with("apt-get") && !line.contains("--print-uris"));
        calls.collect::<Vec<_>>().join("\n")
    }

    #[track_caller]
    fn expect_kernel(&self, release: &str, finished: &Finished) {
        let image = self
            .kernel()
            .join("boot")
            .join(format!("vmlinuz-{release}"));
        let headers = format!("usr/src/linux-headers-{release}/Makefile");
        assert!(image.exists(), "{finished:#?}");
        assert!(self.kernel().join(headers).exists(), "{finished:#?}");
        let modules = fs::read_dir(self.kernel().join("lib/modules")).unwrap();
        assert_eq!(modules.count(), 1, "{finished:#?}");
    }
}

#[test]
fn kernel_fetch_refreshes_package_lists_and_includes_headers() {
    let machine = Machine::new(&[NEW]);
    let finished = machine.run(&[]);
    machine.expect_kernel(NEW, &finished);
    let called = machine.called();
    let (first, rest) = called.split_once('\n').unwrap();
    assert!(first.ends_with("update"), "{called}");
    assert!(!rest.contains("update"), "{called}");
}

#[test]
fn kernel_fetch_after_404_refreshes_the_lists_again() {
    // The refreshed list has the old release, which is removed from the archive before the download.
    let machine = Machine::new(&[OLD, &format!("then {NEW}")]);
    let finished = machine.run(&[]).expect_stderr("404");
    machine.expect_kernel(NEW, &finished);
    assert_eq!(machine.called().matches("update").count(), 2);
}

#[test]
fn siw_with_headers_gone_replaces_the_kernel() {
    let machine = Machine::new(&[NEW]).with_old_kernel();
    let finished = machine.run(&["--device", "siw"]).expect_stderr(OLD);
    machine.expect_kernel(NEW, &finished);
    let error = format!("the kernel {NEW} has no module siw, and building it failed");
    finished.expect_stderr(&error);
}

#[test]
fn siw_with_headers_offered_keeps_the_kernel() {
    let machine = Machine::new(&[OLD]).with_old_kernel();
    let finished = machine.run(&["--device", "siw"]);
    let image = machine.kernel().join(format!("boot/vmlinuz-{OLD}"));
    assert!(image.exists(), "{finished:#?}");
    let called = machine.called();
    assert!(called.contains(&format!("linux-headers-{OLD}")), "{called}");
}

#[test]
fn siw_with_own_kernel_fails_with_fitting_advice() {
    let machine = Machine::new(&[NEW]).with_old_kernel();
    let moved = machine.folder.path().join("own");
    fs::rename(machine.kernel(), &moved).unwrap();
    let image = moved.join(format!("boot/vmlinuz-{OLD}"));
    let (image, moved) = (image.to_str().unwrap(), moved.to_str().unwrap());
    let arguments = ["--device", "siw", "--kernel", image, "--modules", moved];
    let finished = machine
        .run(&arguments)
        .expect_stderr("leave out --kernel and --modules");
    assert!(!finished.stderr.contains("remove"), "{finished:#?}");
}
