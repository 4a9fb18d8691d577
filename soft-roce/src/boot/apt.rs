//! Debian's package manager: installing packages, and downloading packages without installing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};

use crate::architecture;
use crate::boot::package_lists::Lists;
use crate::process::{self, Supervised};
use crate::workspace;

/// The packages that guests and the workspace need.
pub(crate) const PACKAGES: &str = include_str!("../../packages/apt");

const PROGRAM: &str = "apt-get";

/// Arguments for an unattended installation without recommended packages.
const INSTALL: [&str; 6] = [
    "--quiet=2",
    "-o",
    "Dpkg::Use-Pty=0",
    "install",
    "--yes",
    "--no-install-recommends",
];

/// Arguments for refreshing the package lists.
const REFRESH: [&str; 2] = ["--quiet=2", "update"];

/// Whether this machine has apt.
pub(crate) fn is_available() -> bool {
    process::find_program(PROGRAM).is_some()
}

/// Prints the command, then runs apt as root.
fn run_privileged(arguments: &[&str]) -> Result<()> {
    let mut command = privileged()?;
    command
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        // Errors are on standard error. Standard output has dozens of lines for each package.
        .stdout(Stdio::null());
    eprintln!("$ {}", process::display(&command));
    process::run(&mut command)
}

/// Installs packages. Refreshes the package lists if they lack a package or the installation fails.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    let arguments = [&INSTALL[..], packages].concat();
    let ask = ask(&Lists::System);
    if !packages.iter().all(|package| has(package, &ask)) {
        run_privileged(&REFRESH)?;
    }
    run_privileged(&arguments).or_else(|_| {
        run_privileged(&REFRESH)?;
        run_privileged(&arguments)
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
    lists: &Lists,
    named: impl Fn(Ask<'_>) -> Result<Vec<String>>,
    folder: &Path,
) -> Result<Vec<PathBuf>> {
    let (lists, stale) = refreshed(lists);
    let named = || named(&ask(&lists));
    let explain = |error: anyhow::Error| match &stale {
        Some(stale) => error.context(format!("the package lists may be old: {stale}")),
        None => error,
    };
    let packages = named().map_err(explain)?;
    if let Err(error) = download(&lists, &packages, folder) {
        eprintln!("note: downloading again after refreshing the package lists: {error:#}");
        // A failed refresh is part of the download's error.
        drop(refresh(&lists));
        download(&lists, &named()?, folder).map_err(explain)?;
    }
    package_files(folder)
}

/// Refreshes `lists`, or instead of the system's a copy of the user's. Returns the lists to use, and the reason why they
/// are not refreshed, if so.
pub(crate) fn refreshed(lists: &Lists) -> (Lists, Option<String>) {
    let Err(error) = refresh(lists) else {
        return (lists.clone(), None);
    };
    let copy = || {
        let cache = workspace::user_cache().context("there is no cache folder")?;
        let copy = Lists::of_user(&cache, architecture::native()?)?;
        refresh(&copy)?;
        anyhow::Ok(copy)
    };
    if *lists == Lists::System
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
pub(crate) fn refresh(lists: &Lists) -> Result<()> {
    if let Lists::Cached { .. } = lists {
        // These lists belong to the user.
        return process::output(lists.command(PROGRAM).args(REFRESH)).map(drop);
    }
    if rustix::process::geteuid().is_root() {
        return run_privileged(&REFRESH);
    }
    let mut command = Command::new("sudo");
    command.args(["-n", PROGRAM]).args(REFRESH);
    process::output(&mut command)
        .map(drop)
        .with_context(|| format!("refresh them with `sudo {PROGRAM} {}`", REFRESH.join(" ")))
}

fn download(lists: &Lists, packages: &[String], folder: &Path) -> Result<()> {
    let mut command = lists.command(PROGRAM);
    if rustix::process::geteuid().is_root() {
        // apt's sandbox user may lack access to the folder.
        command.args(["-o", "APT::Sandbox::User=root"]);
    }
    command
        .args(["--quiet=2", "download"])
        .args(packages)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(std::io::stderr());
    watch_download(&mut command, folder, download_size(lists, packages))
}

/// Extracts a package's files below `folder`. Installs nothing.
pub(crate) fn unpack(package: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    process::run(
        Command::new("dpkg-deb")
            .arg("--extract")
            .arg(package)
            .arg(folder),
    )
}

/// Asks apt: runs a command, given as its words, and returns the command's standard output.
pub(crate) type Ask<'a> = &'a dyn Fn(&[&str]) -> Result<String>;

/// Asks this machine's apt about the packages in `lists`.
pub(crate) fn ask(lists: &Lists) -> impl Fn(&[&str]) -> Result<String> + '_ {
    |words| {
        let (program, arguments) = words.split_first().context("a command has no words")?;
        process::output(lists.command(program).env("LC_ALL", "C").args(arguments))
    }
}

/// Whether apt's package lists have an installable version of `package`.
pub(crate) fn has(package: &str, ask: Ask<'_>) -> bool {
    candidate(package, ask).is_ok()
}

/// The version of `package` that apt would install.
pub(crate) fn candidate(package: &str, ask: Ask<'_>) -> Result<String> {
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
pub(crate) fn offers(package: &str, ask: Ask<'_>) -> bool {
    ask(&["apt-cache", "show", package]).is_ok_and(|text| !text.is_empty())
}

/// Transitive dependencies of `package`, restricted to names with one of `prefixes`.
pub(crate) fn closure(package: &str, prefixes: &[&str], ask: Ask<'_>) -> Result<BTreeSet<String>> {
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

/// apt with root's rights: directly as root, otherwise through sudo.
fn privileged() -> Result<Command> {
    if rustix::process::geteuid().is_root() {
        return Ok(Command::new(PROGRAM));
    }
    if process::find_program("sudo").is_none() {
        bail!(
            "`{PROGRAM}` needs root's rights and there is no sudo: run `cargo soft-roce setup` as root"
        );
    }
    let mut command = Command::new("sudo");
    command.arg(PROGRAM);
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

fn download_size(lists: &Lists, packages: &[String]) -> Option<u64> {
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

/// Bytes of the files in a folder.
fn folder_size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| Some(entry.metadata().ok()?.len()));
    sizes.sum()
}

fn package_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if is_package(&path) {
            files.push(path);
        }
    }
    Ok(files)
}

fn is_package(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "deb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distribution_is_found_by_its_id_and_its_family() {
        assert_eq!(
            os_release_words("PRETTY_NAME=\"Debian\"\nID=debian\n"),
            ["debian"]
        );
        let mint = os_release_words("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n");
        assert_eq!(mint, ["linuxmint", "ubuntu", "debian"]);
    }

    #[test]
    fn package_file_is_recognized_by_its_name() {
        assert!(is_package(Path::new("x/linux-image_6.1_amd64.deb")));
        assert!(!is_package(Path::new("partial")));
    }
}
