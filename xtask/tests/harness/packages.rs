//! The guest's kernel and the distribution's archive, which a fake of apt plays: `apt-fake`.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use super::{Finished, finish, xtask};

/// A machine with an archive, whose package lists name the kernel 6.1.0-1.
struct Machine {
    folder: TempDir,
}

const OLD: &str = "6.1.0-1-amd64";
const NEW: &str = "6.1.0-2-amd64";

impl Machine {
    /// A machine whose archive has `releases` after each refresh of the package lists.
    fn new(releases: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        for name in ["bin", "archive", "target"] {
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

    /// Puts the old kernel there, as it was fetched before its headers came with it.
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
        self.folder.path().join("target/soft-roce/kernel")
    }

    /// Runs a command in a guest, which does not come so far: no kernel of the fake's is one.
    fn run(&self, more: &[&str]) -> Finished {
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new(xtask());
        command
            .env(
                "PATH",
                format!("{}/bin:{path}", self.folder.path().display()),
            )
            .env("FAKE", self.folder.path())
            .env("CARGO_TARGET_DIR", self.folder.path().join("target"))
            .args(["soft-roce", "run", "--backend", "qemu"])
            .args(more)
            .args(["--", "true"]);
        finish(&mut command).expect_code(1)
    }

    /// What was called, without the questions of `apt-cache`.
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
fn kernel_is_fetched_from_fresh_package_lists_with_its_headers() {
    let machine = Machine::new(&[NEW]);
    let finished = machine.run(&[]);
    machine.expect_kernel(NEW, &finished);
    let called = machine.called();
    let (first, rest) = called.split_once('\n').unwrap();
    assert!(first.ends_with("update"), "{called}");
    assert!(!rest.contains("update"), "{called}");
}

#[test]
fn kernel_that_is_gone_from_the_archive_is_looked_up_anew() {
    // A refresh brings the old release, which is removed before it is downloaded.
    let machine = Machine::new(&[OLD, &format!("then {NEW}")]);
    let finished = machine.run(&[]).expect_stderr("404");
    machine.expect_kernel(NEW, &finished);
    assert_eq!(machine.called().matches("update").count(), 2);
}

#[test]
fn siw_replaces_a_kernel_whose_headers_are_gone() {
    let machine = Machine::new(&[NEW]).with_old_kernel();
    let finished = machine.run(&["--device", "siw"]).expect_stderr(OLD);
    machine.expect_kernel(NEW, &finished);
    let error = format!("the kernel {NEW} has no module siw, and building it failed");
    finished.expect_stderr(&error);
}

#[test]
fn siw_keeps_a_kernel_whose_headers_are_offered() {
    let machine = Machine::new(&[OLD]).with_old_kernel();
    let finished = machine.run(&["--device", "siw"]);
    let image = machine.kernel().join(format!("boot/vmlinuz-{OLD}"));
    assert!(image.exists(), "{finished:#?}");
    let called = machine.called();
    assert!(called.contains(&format!("linux-headers-{OLD}")), "{called}");
}

#[test]
fn siw_for_a_kernel_of_the_callers_gives_advice_that_fits() {
    let machine = Machine::new(&[NEW]).with_old_kernel();
    let own = machine.folder.path().join("own");
    fs::rename(machine.kernel(), &own).unwrap();
    let image = own.join(format!("boot/vmlinuz-{OLD}"));
    let (image, own) = (image.to_str().unwrap(), own.to_str().unwrap());
    let arguments = ["--device", "siw", "--kernel", image, "--modules", own];
    let finished = machine
        .run(&arguments)
        .expect_stderr("leave out --kernel and --modules");
    assert!(!finished.stderr.contains("remove"), "{finished:#?}");
}
