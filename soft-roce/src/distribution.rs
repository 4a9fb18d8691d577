//! The distribution's package manager: installing packages, and downloading packages without installing.
//!
//! The project's CI covers only apt; dnf, pacman and zypper are written after their manuals.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};

use crate::package_lists::Lists;
use crate::process::{self, Supervised};
use crate::workspace;

/// A package manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manager {
    Apt,
    Dnf,
    Pacman,
    Zypper,
}

impl Manager {
    /// The package manager of this machine.
    pub(crate) fn detect() -> Option<Self> {
        let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let named = Self::of_distribution(&text);
        let all = [Self::Apt, Self::Dnf, Self::Pacman, Self::Zypper];
        named
            .into_iter()
            .chain(all)
            .find(|manager| process::find_program(manager.program()).is_some())
    }

    /// The package manager of the distribution described by an os-release file.
    pub(crate) fn of_distribution(os_release: &str) -> Option<Self> {
        let ids = os_release_words(os_release);
        ids.iter().find_map(|id| match id.as_str() {
            "debian" | "ubuntu" => Some(Self::Apt),
            "fedora" | "rhel" | "centos" => Some(Self::Dnf),
            "arch" => Some(Self::Pacman),
            "suse" | "opensuse" | "sles" => Some(Self::Zypper),
            _ => None,
        })
    }

    /// The manager's list in `packages`.
    pub(crate) fn package_list(self) -> &'static str {
        match self {
            Self::Apt => include_str!("../packages/apt"),
            Self::Dnf => include_str!("../packages/dnf"),
            Self::Pacman => include_str!("../packages/pacman"),
            Self::Zypper => include_str!("../packages/zypper"),
        }
    }

    /// Program that installs packages.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Apt => "apt-get",
            Self::Dnf => "dnf",
            Self::Pacman => "pacman",
            Self::Zypper => "zypper",
        }
    }

    /// Arguments for an unattended installation without recommended packages.
    pub(crate) fn install_arguments(self) -> &'static [&'static str] {
        match self {
            Self::Apt => &[
                "--quiet=2",
                "-o",
                "Dpkg::Use-Pty=0",
                "install",
                "--yes",
                "--no-install-recommends",
            ],
            Self::Dnf => &["install", "--assumeyes", "--setopt=install_weak_deps=False"],
            Self::Pacman => &["-S", "--noconfirm", "--needed"],
            Self::Zypper => &["--non-interactive", "install", "--no-recommends"],
        }
    }

    /// Arguments for refreshing the package lists.
    pub(crate) fn refresh_arguments(self) -> &'static [&'static str] {
        match self {
            Self::Apt => &["--quiet=2", "update"],
            Self::Dnf => &["makecache"],
            Self::Pacman => &["-Sy"],
            Self::Zypper => &["--non-interactive", "refresh"],
        }
    }

    /// Prints the command, then runs the package manager as root.
    pub(crate) fn run_privileged(self, arguments: &[&str]) -> Result<()> {
        let mut command = privileged(self.program())?;
        command
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null());
        eprintln!("$ {}", process::display(&command));
        // Errors are on standard error. apt alone prints dozens of lines per package on standard output.
        if self == Self::Apt {
            command.stdout(Stdio::null());
        } else {
            command.stdout(std::io::stderr());
        }
        process::run(&mut command)
    }

    /// Installs packages. Refreshes the package lists if they lack a package or the installation fails.
    pub(crate) fn install(self, packages: &[&str]) -> Result<()> {
        let arguments: Vec<&str> = self
            .install_arguments()
            .iter()
            .chain(packages)
            .copied()
            .collect();
        let ask = ask(&Lists::System);
        if self == Self::Apt && !packages.iter().all(|package| apt_has(package, &ask)) {
            self.run_privileged(self.refresh_arguments())?;
        }
        self.run_privileged(&arguments).or_else(|_| {
            self.run_privileged(self.refresh_arguments())?;
            self.run_privileged(&arguments)
        })
    }

    /// Downloads the packages returned by `named` from `lists` into `folder`, with a progress bar, and returns the files.
    /// Installs nothing.
    ///
    /// The package lists are refreshed first, because a distribution removes superseded versions; without permission to
    /// refresh the system's, a copy of the user's is used instead. If a download still fails, the lists are refreshed again
    /// and `named` is called again, in case the mirror changed in between.
    ///
    /// # Errors
    ///
    /// `named` fails, or a package cannot be downloaded.
    pub(crate) fn fetch(
        self,
        lists: &Lists,
        named: impl Fn(Ask<'_>) -> Result<Vec<String>>,
        folder: &Path,
    ) -> Result<Vec<PathBuf>> {
        let (lists, stale) = self.refreshed(lists);
        let named = || named(&ask(&lists));
        let explain = |error: anyhow::Error| match &stale {
            Some(stale) => error.context(format!("the package lists may be old: {stale}")),
            None => error,
        };
        let packages = named().map_err(explain)?;
        if let Err(error) = self.download(&lists, &packages, folder) {
            eprintln!("note: downloading again after refreshing the package lists: {error:#}");
            // A failed refresh is part of the download's error.
            drop(self.refresh(&lists));
            self.download(&lists, &named()?, folder).map_err(explain)?;
        }
        let mut files = Vec::new();
        package_files(folder, &mut files)?;
        Ok(files)
    }

    /// Refreshes `lists`, or instead of the system's a copy of the user's. Returns the lists to use, and the reason why they
    /// are not refreshed, if so.
    pub(crate) fn refreshed(self, lists: &Lists) -> (Lists, Option<String>) {
        let Err(error) = self.refresh(lists) else {
            return (lists.clone(), None);
        };
        let copy = || {
            let cache = workspace::user_cache().context("there is no cache folder")?;
            let copy = Lists::of_user(&cache)?;
            self.refresh(&copy)?;
            anyhow::Ok(copy)
        };
        if (self, lists) == (Self::Apt, &Lists::System)
            && let Ok(copy) = copy()
        {
            return (copy, None);
        }
        (lists.clone(), Some(format!("{error:#}")))
    }

    /// Refreshes the package lists.
    ///
    /// # Errors
    ///
    /// No network, or no permission to run the package manager without a password.
    pub(crate) fn refresh(self, lists: &Lists) -> Result<()> {
        if let Lists::Cached { .. } = lists {
            // These lists belong to the user.
            let mut command = lists.command(self.program());
            return process::output(command.args(self.refresh_arguments())).map(drop);
        }
        if rustix::process::geteuid().is_root() {
            return self.run_privileged(self.refresh_arguments());
        }
        let mut command = Command::new("sudo");
        command.arg("-n").arg(self.program());
        process::output(command.args(self.refresh_arguments()))
            .map(drop)
            .with_context(|| {
                let arguments = self.refresh_arguments().join(" ");
                format!("refresh them with `sudo {} {arguments}`", self.program())
            })
    }

    fn download(self, lists: &Lists, packages: &[String], folder: &Path) -> Result<()> {
        let mut command = match self {
            Self::Apt => {
                let mut command = lists.command("apt-get");
                if rustix::process::geteuid().is_root() {
                    // apt's sandbox user may lack access to the folder.
                    command.args(["-o", "APT::Sandbox::User=root"]);
                }
                command.args(["--quiet=2", "download"]).args(packages);
                command
            }
            Self::Dnf => {
                let mut command = Command::new("dnf");
                command
                    .args(["--quiet", "download", "--destdir"])
                    .arg(folder)
                    .args(packages);
                command
            }
            Self::Pacman => return download_by_pacman(packages, folder),
            Self::Zypper => {
                let mut command = Command::new("zypper");
                command
                    .args(["--non-interactive", "--pkg-cache-dir"])
                    .arg(folder);
                command.args(["download"]).args(packages);
                command
            }
        };
        command
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(std::io::stderr());
        let total = if self == Self::Apt {
            apt_download_size(lists, packages)
        } else {
            None
        };
        watch_download(&mut command, folder, total)
    }

    /// Extracts a package's files below `folder`. Installs nothing.
    pub(crate) fn unpack(self, package: &Path, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        match self {
            Self::Apt => process::run(
                Command::new("dpkg-deb")
                    .arg("--extract")
                    .arg(package)
                    .arg(folder),
            ),
            Self::Pacman => process::run(
                Command::new("tar")
                    .args(["--extract", "--auto-compress", "--file"])
                    .arg(package)
                    .arg("-C")
                    .arg(folder),
            ),
            Self::Dnf | Self::Zypper => {
                let script = "rpm2cpio \"$1\" | cpio --quiet --extract --make-directories";
                process::run(
                    Command::new("sh")
                        .args(["-c", script, "sh"])
                        .arg(package)
                        .current_dir(folder),
                )
            }
        }
    }
}

/// Asks a package manager: runs a command, given as its words, and returns the command's standard output.
pub(crate) type Ask<'a> = &'a dyn Fn(&[&str]) -> Result<String>;

/// Asks the package manager of this machine about the packages in `lists`.
pub(crate) fn ask(lists: &Lists) -> impl Fn(&[&str]) -> Result<String> + '_ {
    |words| {
        let (program, arguments) = words.split_first().context("a command has no words")?;
        process::output(lists.command(program).env("LC_ALL", "C").args(arguments))
    }
}

/// Whether apt's package lists have an installable version of `package`.
pub(crate) fn apt_has(package: &str, ask: Ask<'_>) -> bool {
    apt_candidate(package, ask).is_ok()
}

/// The version of `package` that apt would install.
pub(crate) fn apt_candidate(package: &str, ask: Ask<'_>) -> Result<String> {
    let policy = ask(&["apt-cache", "policy", package])?;
    let candidate = policy
        .lines()
        .find_map(|line| line.trim_start().strip_prefix("Candidate: "));
    match candidate {
        Some(version) if version != "(none)" => Ok(version.to_owned()),
        _ => bail!("apt knows no package {package}"),
    }
}

/// Whether apt's package lists offer `package`, given as `NAME` or `NAME=VERSION`.
pub(crate) fn apt_offers(package: &str, ask: Ask<'_>) -> bool {
    ask(&["apt-cache", "show", package]).is_ok_and(|text| !text.is_empty())
}

/// Transitive dependencies of `package`, restricted to names with one of `prefixes`.
pub(crate) fn apt_closure(
    package: &str,
    prefixes: &[&str],
    ask: Ask<'_>,
) -> Result<BTreeSet<String>> {
    let mut todo = vec![package.to_owned()];
    let mut packages = BTreeSet::new();
    while let Some(package) = todo.pop() {
        let text = ask(&["apt-cache", "depends", &package])?;
        for name in text
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix("Depends: "))
        {
            let is_selected = prefixes.iter().any(|prefix| name.starts_with(prefix));
            if is_selected && packages.insert(name.to_owned()) {
                todo.push(name.to_owned());
            }
        }
    }
    Ok(packages)
}

/// A command with root's rights: directly as root, otherwise through sudo.
fn privileged(program: &str) -> Result<Command> {
    if rustix::process::geteuid().is_root() {
        return Ok(Command::new(program));
    }
    if process::find_program("sudo").is_none() {
        bail!(
            "`{program}` needs root's rights and there is no sudo: run `cargo soft-roce setup` as root"
        );
    }
    let mut command = Command::new("sudo");
    command.arg(program);
    Ok(command)
}

/// `ID` and the words of `ID_LIKE`, most specific first.
pub(crate) fn os_release_words(text: &str) -> Vec<String> {
    let field = |name: &str| {
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value
            .unwrap_or_default()
            .trim_matches(['"', '\''])
            .to_owned()
    };
    format!("{} {}", field("ID"), field("ID_LIKE"))
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

fn apt_download_size(lists: &Lists, packages: &[String]) -> Option<u64> {
    let text = process::output(
        lists
            .command("apt-get")
            .args(["download", "--print-uris"])
            .args(packages),
    )
    .ok()?;
    text.lines()
        .map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok())
        .sum()
}

/// Downloads packages of Arch. pacman 7 downloads as a user of its own, which may not enter `folder`: the packages are
/// downloaded into a temporary folder that every user can enter.
fn download_by_pacman(packages: &[String], folder: &Path) -> Result<()> {
    let entered = tempfile::Builder::new()
        .prefix("soft-roce-")
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir()?;
    let mut command = privileged("pacman")?;
    command
        .args(["-Sw", "--noconfirm", "--nodeps", "--nodeps", "--cachedir"])
        .arg(entered.path())
        .args(packages)
        .stdin(Stdio::null())
        .stdout(std::io::stderr());
    watch_download(&mut command, entered.path(), None)?;
    let mut files = Vec::new();
    package_files(entered.path(), &mut files)?;
    for file in files {
        fs::copy(&file, folder.join(file.file_name().unwrap_or_default()))?;
    }
    Ok(())
}

/// Runs a download and shows the size of `folder` as progress.
fn watch_download(command: &mut Command, folder: &Path, total: Option<u64>) -> Result<()> {
    let mut child = Supervised::spawn(command, &[])
        .with_context(|| format!("cannot start `{}`", process::display(command)))?;
    let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    let template = match total {
        Some(_) => "  {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        None => "  {spinner} {bytes} {bytes_per_sec}",
    };
    bar.set_style(ProgressStyle::with_template(template)?);
    let status = loop {
        bar.set_position(folder_size(folder));
        if let Some(status) = child.wait_until(Instant::now() + Duration::from_millis(100))? {
            break status;
        }
    };
    bar.finish_and_clear();
    if !status.success() {
        bail!("`{}` failed ({status})", process::display(command));
    }
    Ok(())
}

fn folder_size(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    let sizes = entries.flatten().filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        Some(if metadata.is_dir() {
            folder_size(&entry.path())
        } else {
            metadata.len()
        })
    });
    sizes.sum()
}

fn package_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            package_files(&path, files)?;
        } else if is_package(&path) {
            files.push(path);
        }
    }
    Ok(())
}

fn is_package(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let by_extension = path
        .extension()
        .is_some_and(|extension| extension == "deb" || extension == "rpm");
    by_extension || (name.contains(".pkg.tar") && !name.ends_with(".sig"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distribution_of_known_id_or_family_has_its_manager() {
        let manager = Manager::of_distribution;
        assert_eq!(
            manager("PRETTY_NAME=\"Debian\"\nID=debian\n"),
            Some(Manager::Apt)
        );
        assert_eq!(
            manager("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"),
            Some(Manager::Apt)
        );
        assert_eq!(
            manager("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"),
            Some(Manager::Dnf)
        );
        assert_eq!(
            manager("ID=\"opensuse-tumbleweed\"\nID_LIKE=\"opensuse suse\"\n"),
            Some(Manager::Zypper)
        );
        assert_eq!(
            manager("ID=endeavouros\nID_LIKE=arch\n"),
            Some(Manager::Pacman)
        );
        assert_eq!(manager("ID=nixos\n"), None);
    }

    #[test]
    fn package_file_is_recognized_by_its_name() {
        assert!(is_package(Path::new("x/linux-image_6.1_amd64.deb")));
        assert!(is_package(Path::new("linux-6.9-1-x86_64.pkg.tar.zst")));
        assert!(!is_package(Path::new("linux-6.9-1-x86_64.pkg.tar.zst.sig")));
        assert!(!is_package(Path::new("partial")));
    }
}
