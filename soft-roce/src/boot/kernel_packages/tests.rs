//! The resolver, fed with the package lists of two distributions: the names of packages, and the guest's kernel in a
//! tree of the packages' files.

use std::fs;
use std::path::Path;

use super::*;
use crate::architecture::X86_64;
use crate::boot::initramfs::{OPTIONAL, Presence, QEMU};
use crate::boot::kernel::Kernel;
use crate::boot::modules::ModuleTree;

/// Answers of a distribution's package manager: commands after `$ `, each followed by its output. A command with a line
/// `error: ...` fails. `files of PACKAGE` is a command of the tests.
struct Answers(&'static str);

impl Answers {
    fn find(&self, command: &str) -> Option<String> {
        let heading = format!("$ {command}");
        let mut lines = self.0.lines();
        lines.find(|line| *line == heading)?;
        let output = lines.take_while(|line| !line.starts_with("$ "));
        Some(output.map(|line| format!("{line}\n")).collect())
    }

    /// The output of a command.
    #[track_caller]
    fn to(&self, words: &[&str]) -> Result<String> {
        let command = words.join(" ");
        let output = self.find(&command);
        let output = output.unwrap_or_else(|| panic!("no answer to `{command}`"));
        match output.lines().find(|line| line.starts_with("error: ")) {
            Some(error) => bail!("{error}"),
            None => Ok(output),
        }
    }

    fn os_release(&self) -> String {
        self.find("cat /etc/os-release").unwrap()
    }

    fn packages(&self) -> Result<Vec<String>> {
        named(&self.os_release(), &X86_64, &|words| self.to(words))
    }

    /// Creates the files of packages below `root`, as if unpacked. All are empty but `modules.builtin`.
    fn unpack(&self, packages: &[String], root: &Path) {
        for package in packages {
            let files = self.find(&format!("files of {package}"));
            let files = files.unwrap_or_else(|| panic!("no files of {package}"));
            let names = || files.lines().filter(|line| !line.is_empty());
            for name in names() {
                let path = root.join(name.trim_start_matches('/'));
                if names().any(|other| {
                    Path::new(other)
                        .ancestors()
                        .skip(1)
                        .any(|of| of == Path::new(name))
                }) {
                    fs::create_dir_all(path).unwrap();
                    continue;
                }
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                let contents = self.find(&format!("cat {name}")).unwrap_or_default();
                fs::write(path, contents).unwrap();
            }
        }
    }
}

/// The distributions with answers: the packages of each, and the image and the modules in them.
const DISTRIBUTIONS: [(Answers, &[&str], &str, &str); 2] = [
    (
        Answers(include_str!("answers/debian-13")),
        &[
            "linux-headers-6.12.117+deb13-amd64",
            "linux-headers-6.12.117+deb13-common",
            "linux-image-6.12.117+deb13-amd64",
            "linux-kbuild-6.12.117+deb13",
        ],
        "boot/vmlinuz-6.12.117+deb13-amd64",
        "usr/lib/modules/6.12.117+deb13-amd64",
    ),
    (
        Answers(include_str!("answers/ubuntu-24.04")),
        &[
            "linux-headers-6.8.0-31",
            "linux-headers-6.8.0-31-generic",
            "linux-image-6.8.0-31-generic",
            "linux-modules-6.8.0-31-generic",
            "linux-modules-extra-6.8.0-31-generic",
        ],
        "boot/vmlinuz-6.8.0-31-generic",
        "lib/modules/6.8.0-31-generic",
    ),
];

#[test]
fn kernel_packages_of_each_distribution_are_named() {
    for (answers, packages, ..) in &DISTRIBUTIONS {
        assert_eq!(answers.packages().unwrap(), *packages);
    }
}

#[test]
fn kernel_of_each_distribution_has_image_and_modules_of_guests() {
    for (answers, packages, image, modules) in &DISTRIBUTIONS {
        let root = tempfile::tempdir().unwrap();
        answers.unpack(&answers.packages().unwrap(), root.path());
        let kernel = Kernel::unpacked(root.path()).unwrap();
        assert_eq!(kernel.image, root.path().join(image), "{packages:?}");
        assert_eq!(kernel.modules, root.path().join(modules), "{packages:?}");
        let tree = ModuleTree::scan(&kernel.modules).unwrap();
        let needed = QEMU.iter().filter(|group| group.2 == Presence::Needed);
        for name in needed.flat_map(|group| group.1) {
            let is_there = tree.has(name) || OPTIONAL.contains(name);
            assert!(is_there, "{packages:?} {name}");
        }
    }
}

#[test]
fn lists_without_a_kernel_are_refused_with_advice() {
    let empty = named("ID=debian", &X86_64, &|_| Ok(String::new()));
    let failed = named("ID=debian", &X86_64, &|_| bail!("Unable to locate package"));
    for refused in [empty, failed] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("--kernel and --modules"), "{error}");
    }
}
