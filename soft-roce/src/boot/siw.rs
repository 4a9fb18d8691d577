//! SoftiWARP for kernels without the module, such as Debian's: built from the distribution's kernel source against the
//! kernel's headers, below the target folder.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::boot::apt::{self, Ask};
use crate::boot::kernel::{self, Kernel};
use crate::boot::package_lists::Lists;
use crate::commands::setup::{self, Group};
use crate::process;
use crate::scratch::Scratch;

/// Returns `siw.ko` for `kernel`, built below `cache` from packages in `lists` unless cached.
///
/// # Errors
///
/// The kernel's headers or the distribution's source are unavailable, or the build fails.
pub(crate) fn ensure(kernel: &Kernel, lists: &Lists, cache: &Path) -> Result<PathBuf> {
    let module = module(kernel, cache);
    if module.exists() {
        return Ok(module);
    }
    let _lock = kernel::lock(cache)?;
    if !module.exists() {
        build(kernel, lists, cache, &module).with_context(|| {
            format!(
                "the kernel {} has no module siw, and building it failed",
                kernel.release()
            )
        })?;
    }
    Ok(module)
}

/// Whether the module of `kernel` is built, or its headers are installed, unpacked or in the package lists.
pub(crate) fn can_be_built(kernel: &Kernel, cache: &Path) -> bool {
    if module(kernel, cache).exists() || headers_beside(kernel).is_some() || !apt::is_available() {
        return true;
    }
    let (lists, reason) = apt::refreshed(&Lists::System);
    // Old lists may lack headers that the archive has.
    reason.is_some() || header_packages(&kernel.release(), &apt::ask(&lists)).is_ok()
}

/// Packages with the headers of a kernel release, including the build tools.
pub(crate) fn header_packages(release: &str, ask: Ask<'_>) -> Result<BTreeSet<String>> {
    let headers = format!("linux-headers-{release}");
    if !apt::has(&headers, ask) {
        bail!("apt knows no package {headers}");
    }
    let prefixes = ["linux-headers-", "linux-kbuild-", "linux-compiler-"];
    let mut packages = apt::closure(&headers, &prefixes, ask)?;
    packages.insert(headers);
    Ok(packages)
}

fn module(kernel: &Kernel, cache: &Path) -> PathBuf {
    cache.join("siw").join(kernel.release()).join("siw.ko")
}

/// The `usr` folder with the kernel's headers, unpacked beside the kernel or installed.
fn headers_beside(kernel: &Kernel) -> Option<PathBuf> {
    let makefile = format!("src/linux-headers-{}/Makefile", kernel.release());
    // Ancestors of `lib/modules/RELEASE`.
    let roots = kernel.modules.ancestors().skip(3);
    roots
        .map(|root| root.join("usr"))
        .find(|usr| usr.join(&makefile).is_file())
}

fn build(kernel: &Kernel, lists: &Lists, cache: &Path, module: &Path) -> Result<()> {
    if !apt::is_available() {
        bail!(
            "building siw works only with Debian's packages: use a kernel with CONFIG_RDMA_SIW=m"
        );
    }
    setup::ensure(&[Group::Siw])?;
    let release = kernel.release();
    let headers = headers_beside(kernel);
    let scratch = Scratch::inside(&without_spaces(cache))?;
    let unpacked = scratch.path().join("unpacked");
    eprintln!("Downloading the source of siw, once");
    let named = |ask: Ask<'_>| packages(&release, headers.is_some(), ask);
    let files = apt::fetch(lists, named, scratch.path())?;
    eprintln!("Building siw");
    for file in &files {
        apt::unpack(file, &unpacked)?;
    }
    if let Some(usr) = headers {
        copy_headers(&usr, &unpacked.join("usr"))?;
    }
    let sources = unpacked.join("usr/src");
    let siw = unpack_siw(&sources, &release)?;
    let headers = sources.join(format!("linux-headers-{release}"));
    relocate(&headers.join("Makefile"), &sources)?;
    let mut make = Command::new("make");
    make.arg("-C")
        .arg(headers)
        .arg(format!("M={}", siw.display()));
    make.args(["CONFIG_RDMA_SIW=m", "modules"]);
    // No BTF: newer kernels' header packages lack the tool.
    make.arg("CONFIG_DEBUG_INFO_BTF_MODULES=");
    // Errors are on standard error.
    process::run(make.stdout(Stdio::null()))?;
    let home = module.parent().context("the module has no parent folder")?;
    fs::create_dir_all(home)?;
    // Moved into place by rename, so that another run never sees a partial file.
    let unfinished = Scratch::inside(home)?;
    let copy = unfinished.path().join("siw.ko");
    fs::copy(siw.join("siw.ko"), &copy)?;
    fs::rename(copy, module)?;
    Ok(())
}

/// Packages with the source of siw and, unless installed, the kernel's headers.
fn packages(release: &str, has_headers: bool, ask: Ask<'_>) -> Result<Vec<String>> {
    let mut packages = Vec::new();
    if !has_headers {
        let headers = header_packages(release, ask).context(
            "the kernel's headers are unavailable: install them below /usr/src, use a kernel whose package \
             linux-headers-* exists or one with CONFIG_RDMA_SIW=m, or leave out --kernel and --modules",
        )?;
        packages.extend(headers);
    }
    let source = source(release)?;
    let version = apt::candidate(&format!("linux-headers-{release}"), ask);
    // A later source of the same series also works: siw rarely changes within a series.
    let exact = version.map(|version| format!("{source}={version}"));
    packages.push(
        exact
            .ok()
            .filter(|exact| apt::offers(exact, ask))
            .unwrap_or(source),
    );
    Ok(packages)
}

/// Name of the package with the source of a kernel's series.
fn source(release: &str) -> Result<String> {
    let series = series(release).with_context(|| format!("no series in the release {release}"))?;
    Ok(format!("linux-source-{series}"))
}

/// `folder`, or the system's temporary folder if `folder` has characters that `make` does not support.
fn without_spaces(folder: &Path) -> PathBuf {
    let name = folder.to_string_lossy();
    if name.contains(|c: char| c.is_whitespace() || ":'\"$#".contains(c)) {
        std::env::temp_dir()
    } else {
        folder.to_owned()
    }
}

/// Copies the header packages, which contain symbolic links to each other, from a `usr` folder.
fn copy_headers(from: &Path, to: &Path) -> Result<()> {
    for (folder, pattern) in [("src", "linux-headers-*"), ("lib", "linux-kbuild-*")] {
        fs::create_dir_all(to.join(folder))?;
        // The pattern is applied to file names only: `from` itself may contain pattern characters.
        for entry in fs::read_dir(from.join(folder)).into_iter().flatten() {
            let entry = entry?;
            let name = entry.file_name();
            let is_match = glob::Pattern::new(pattern)?.matches(&name.to_string_lossy());
            if is_match {
                let mut copy = Command::new("cp");
                copy.arg("-a").arg(entry.path()).arg(to.join(folder));
                process::run(&mut copy)?;
            }
        }
    }
    Ok(())
}

/// Extracts the siw folder from the kernel source archive.
fn unpack_siw(sources: &Path, release: &str) -> Result<PathBuf> {
    let source = source(release)?;
    let folder = format!("{source}/drivers/infiniband/sw/siw");
    process::run(
        Command::new("tar")
            .arg("-xJf")
            .arg(sources.join(format!("{source}.tar.xz")))
            .arg("-C")
            .arg(sources)
            .arg(&folder),
    )?;
    Ok(sources.join(folder))
}

/// Replaces absolute paths in the headers' makefile by paths below `sources`. Symbolic links between the packages are
/// relative.
fn relocate(makefile: &Path, sources: &Path) -> Result<()> {
    let text = fs::read_to_string(makefile)
        .with_context(|| format!("cannot read {}", makefile.display()))?;
    let text = text.replace("/usr/src/", &format!("{}/", sources.display()));
    Ok(fs::write(makefile, text)?)
}

/// Major and minor number of a release: `6.1` for `6.1.0-56-amd64`.
fn series(release: &str) -> Option<&str> {
    let mut dots = release.match_indices('.').map(|(at, _)| at);
    let (_, second) = (dots.next()?, dots.next()?);
    release.get(..second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_release_is_major_and_minor() {
        assert_eq!(series("6.1.0-56-amd64"), Some("6.1"));
        assert_eq!(series("6.12.48+deb13-amd64"), Some("6.12"));
        assert_eq!(series("6"), None);
    }
}
