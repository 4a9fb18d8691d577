//! apt's package lists: the system's, a copy of them that a user without root can refresh, or those of Debian unstable, for
//! packages newer than the distribution's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::architecture::Architecture;
use crate::boot::apt;
use crate::process;

/// Suite with the newest packages of Debian.
const NEWEST_SUITE: &str = "unstable";

/// The keyring of Debian's releases, where the package debian-archive-keyring installs it.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The package lists of a query or a download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lists {
    /// The lists of the system's package manager.
    System,
    /// Lists in a folder of the cache, which the user may refresh. The system's lists stay as they are, and nothing is
    /// installed.
    Cached {
        /// Configuration file of apt for these lists.
        configuration: PathBuf,
    },
}

impl Lists {
    /// The lists of Debian unstable for `architecture` below `cache`, from the mirror that the system uses. Downloads nothing.
    ///
    /// # Errors
    ///
    /// The system is not Debian, or `cache` is not writable.
    pub(crate) fn newest(cache: &Path, architecture: &Architecture) -> Result<Self> {
        let ask = apt::ask(&Self::System);
        let targets = ask(&[
            "apt-get",
            "indextargets",
            "--format",
            "$(ORIGIN) $(LABEL) $(REPO_URI)",
            "Created-By: Packages",
        ])?;
        let mirror = mirror(&targets)
            .context("apt has no mirror of Debian, whose packages are the newest ones")?;
        let folder = folder(cache, "apt", architecture)?;
        let sources = entries(mirror, Path::new(KEYRING).exists());
        fs::write(folder.join("sources.list"), sources)?;
        Self::cached(
            &folder,
            &format!(
                "{}{}",
                sources_in(&folder),
                configure(&folder, architecture)
            ),
        )
    }

    /// The system's lists; for another architecture than the system's, those of [`of_user`](Self::of_user).
    ///
    /// # Errors
    ///
    /// As for [`of_user`](Self::of_user).
    pub(crate) fn of_system(cache: &Path, architecture: &Architecture) -> Result<Self> {
        match architecture.is_native() {
            true => Ok(Self::System),
            false => Self::of_user(cache, architecture),
        }
    }

    /// The lists of the system's sources for `architecture` below `cache`. Downloads nothing.
    ///
    /// # Errors
    ///
    /// `cache` is not writable.
    pub(crate) fn of_user(cache: &Path, architecture: &Architecture) -> Result<Self> {
        let folder = folder(cache, "apt-system", architecture)?;
        Self::cached(&folder, &configure(&folder, architecture))
    }

    fn cached(folder: &Path, text: &str) -> Result<Self> {
        let configuration = folder.join("apt.conf");
        fs::write(&configuration, text)?;
        Ok(Self::Cached { configuration })
    }

    /// A command of apt with these lists.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        if let Self::Cached { configuration } = self {
            command.env("APT_CONFIG", configuration);
        }
        command
    }

    /// Downloads the source archive of a source package into `folder`, without Debian's changes, and returns the file.
    /// Refreshes the lists first.
    ///
    /// # Errors
    ///
    /// The lists have no such package, or it cannot be downloaded.
    pub(crate) fn fetch_source(&self, package: &str, folder: &Path) -> Result<PathBuf> {
        apt::refresh(self)?;
        let mut command = self.command("apt-get");
        command
            .args(["--quiet=2", "source", "--download-only", "--tar-only"])
            .arg(package)
            .current_dir(folder);
        process::output(&mut command)
            .with_context(|| format!("cannot download the source of {package}"))?;
        let pattern = folder.join(format!("{package}_*.orig.tar.*"));
        let archive = glob::glob(&pattern.to_string_lossy())?.flatten().next();
        archive.with_context(|| format!("the source package {package} has no archive"))
    }
}

/// URI of the system's mirror of Debian in the output of `apt-get indextargets`.
fn mirror(targets: &str) -> Option<&str> {
    targets.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let is_debian = words.next() == Some("Debian") && words.next() == Some("Debian");
        words.next().filter(|_| is_debian)
    })
}

/// Lines of a `sources.list` with the newest suite.
fn entries(mirror: &str, has_keyring: bool) -> String {
    let keyring = if has_keyring {
        format!(" [signed-by={KEYRING}]")
    } else {
        String::new()
    };
    ["deb", "deb-src"]
        .map(|kind| format!("{kind}{keyring} {mirror} {NEWEST_SUITE} main\n"))
        .concat()
}

/// Folder for lists and downloads of apt below `cache`.
fn folder(cache: &Path, name: &str, architecture: &Architecture) -> Result<PathBuf> {
    let folder = match architecture.is_native() {
        true => cache.join(name),
        false => cache.join(format!("{name}-{}", architecture.debian)),
    };
    for name in ["lists/partial", "archives/partial"] {
        fs::create_dir_all(folder.join(name))
            .with_context(|| format!("cannot make {}", folder.join(name).display()))?;
    }
    Ok(folder)
}

/// apt's configuration for the `sources.list` in `folder` instead of the system's sources.
fn sources_in(folder: &Path) -> String {
    format!(
        "Dir::Etc::SourceList \"{}/sources.list\";\n\
         Dir::Etc::SourceParts \"/dev/null\";\n\
         Dir::Etc::Preferences \"/dev/null\";\n\
         Dir::Etc::PreferencesParts \"/dev/null\";\n",
        folder.display()
    )
}

/// apt's configuration for lists and downloads in `folder`. apt's sandbox user may lack access to a user's cache.
fn configure(folder: &Path, architecture: &Architecture) -> String {
    let folder = folder.display();
    let foreign = match architecture.is_native() {
        true => String::new(),
        false => format!(
            "APT::Architecture \"{0}\";\nAPT::Architectures {{\"{0}\";}};\nDir::State::Status \"/dev/null\";\n",
            architecture.debian
        ),
    };
    format!(
        "{foreign}Dir::State::Lists \"{folder}/lists\";\n\
         Dir::Cache \"{folder}\";\n\
         APT::Sandbox::User \"root\";\n\
         Acquire::Languages \"none\";\n\
         Acquire::PDiffs \"false\";\n\
         Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::architecture::{self, AARCH64, X86_64};

    #[test]
    fn mirror_is_that_of_debian_and_not_of_its_security_archive() {
        let targets = "Debian Debian-Security http://security.example/\n\
                       Other Debian http://other.example/\n\
                       Debian Debian http://mirror.example/debian/\n";
        assert_eq!(mirror(targets), Some("http://mirror.example/debian/"));
        assert_eq!(mirror("Ubuntu Ubuntu http://ubuntu.example/\n"), None);
        assert_eq!(mirror(""), None);
    }

    #[test]
    fn entries_name_binary_and_source_packages_of_one_suite() {
        let text = entries("http://mirror.example/debian/", false);
        assert_eq!(
            text,
            "deb http://mirror.example/debian/ unstable main\n\
             deb-src http://mirror.example/debian/ unstable main\n"
        );
        let signed = entries("http://mirror.example/debian/", true);
        assert_eq!(signed.matches("[signed-by=/").count(), 2);
    }

    #[test]
    fn commands_of_the_system_lists_have_the_system_configuration() {
        let variables = |lists: &Lists| lists.command("apt-get").get_envs().count();
        assert_eq!(variables(&Lists::System), 0);
        let newest = Lists::Cached {
            configuration: "/cache/apt/apt.conf".into(),
        };
        assert_eq!(variables(&newest), 1);
    }

    #[test]
    fn cached_lists_of_the_system_have_its_sources() {
        let cache = tempfile::tempdir().unwrap();
        let lists = Lists::of_user(cache.path(), architecture::native().unwrap()).unwrap();
        let Lists::Cached { configuration } = &lists else {
            unreachable!("these lists are in the cache")
        };
        let text = fs::read_to_string(configuration).unwrap();
        assert!(!text.contains("Dir::Etc"), "{text}");
        assert!(cache.path().join("apt-system/lists/partial").is_dir());
        let foreign = [&X86_64, &AARCH64].into_iter().find(|one| !one.is_native());
        let Lists::Cached { configuration } =
            Lists::of_system(cache.path(), foreign.unwrap()).unwrap()
        else {
            unreachable!("the system's lists are of its architecture")
        };
        let text = fs::read_to_string(configuration).unwrap();
        assert!(text.contains("APT::Architectures {"), "{text}");
    }
}
