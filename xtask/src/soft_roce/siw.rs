//! SoftiWARP for a kernel that comes without it, as Debian's does: built from the distribution's kernel source
//! against the kernel's headers. Everything stays below the target folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::kernel::{self, Kernel};
use crate::distribution::{self, Manager};
use crate::process::{self, Scratch};
use crate::setup::{self, Group};

/// Returns `siw.ko` for `kernel`, built below `cache` unless it is there.
pub(crate) fn ensure(kernel: &Kernel, cache: &Path) -> Result<PathBuf> {
    let release = kernel.release();
    let home = cache.join("siw").join(&release);
    let module = home.join("siw.ko");
    if module.exists() {
        return Ok(module);
    }
    let _lock = kernel::lock(cache)?;
    if !module.exists() {
        build(&release, cache, &home).with_context(|| {
            format!("the kernel {release} has no module siw, and building it failed")
        })?;
    }
    Ok(module)
}

fn build(release: &str, cache: &Path, home: &Path) -> Result<()> {
    if Manager::detect() != Some(Manager::Apt) {
        bail!("this is done only with Debian's packages; take a kernel with CONFIG_RDMA_SIW=m");
    }
    setup::ensure(&[Group::Siw])?;
    let headers = format!("linux-headers-{release}");
    let version = distribution::apt_candidate(&headers)
        .context("the headers of this kernel are not to be had any more: remove target/soft-roce for a newer one")?;
    let source = format!(
        "linux-source-{}",
        series(release).context("strange kernel release")?
    );

    let scratch = Scratch::inside(cache)?;
    let unpacked = scratch.path().join("unpacked");
    let mut packages = vec![headers.clone(), format!("{source}={version}")];
    packages.extend(distribution::apt_closure(
        &headers,
        &["linux-headers-", "linux-kbuild-", "linux-compiler-"],
    )?);
    eprintln!("Fetching the kernel's headers and source, once, to build siw");
    let files = Manager::Apt.download(&packages, scratch.path())?;
    eprintln!("Building siw");
    for file in &files {
        Manager::Apt.unpack(file, &unpacked)?;
    }

    let sources = unpacked.join("usr/src");
    let archive = sources.join(format!("{source}.tar.xz"));
    let folder = format!("{source}/drivers/infiniband/sw/siw");
    process::run(
        Command::new("tar")
            .arg("-xJf")
            .arg(&archive)
            .arg("-C")
            .arg(&sources)
            .arg(&folder),
    )?;

    // Only this file names an installed path; the links between the packages are relative.
    let makefile = sources.join(&headers).join("Makefile");
    let text = fs::read_to_string(&makefile)?;
    fs::write(
        &makefile,
        text.replace("/usr/src/", &format!("{}/", sources.display())),
    )?;

    let siw = sources.join(folder);
    let mut make = Command::new("make");
    make.arg("-C")
        .arg(sources.join(&headers))
        .arg(format!("M={}", siw.display()));
    make.args(["CONFIG_RDMA_SIW=m", "modules"]);
    // What goes wrong is told on standard error.
    process::run(make.stdout(Stdio::null()))?;
    fs::create_dir_all(home)?;
    // Over to its place in one step: a half-copied module must not be found.
    let unfinished = scratch.path().join("siw.ko");
    fs::copy(siw.join("siw.ko"), &unfinished)?;
    fs::rename(&unfinished, home.join("siw.ko"))?;
    Ok(())
}

/// The first two numbers of a release: `6.1` for `6.1.0-56-amd64`.
fn series(release: &str) -> Option<&str> {
    let mut dots = release.match_indices('.').map(|(at, _)| at);
    let (_, second) = (dots.next()?, dots.next()?);
    release.get(..second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_is_major_and_minor() {
        assert_eq!(series("6.1.0-56-amd64"), Some("6.1"));
        assert_eq!(series("6.12.48+deb13-amd64"), Some("6.12"));
        assert_eq!(series("6"), None);
    }
}
