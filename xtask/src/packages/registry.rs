//! A registry in files with the packages of a release, from which cargo resolves them as from the public registry: by name and
//! version, with the checksum of the archive.
//!
//! Cargo runs with a home folder of its own below the build folder, with links to the user's registry: packages of the release are
//! unpacked there again for each run, while cargo takes a version of a registry for unchangeable.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use cargo_metadata::{Dependency, DependencyKind, MetadataCommand, Package};
use serde_json::{Value, json};
use soft_roce::process;

use super::clear;
use crate::workspace::{self, Workspace};

/// The public registry, as named in the index.
const PUBLIC: &str = "https://github.com/rust-lang/crates.io-index";

/// A registry in files.
#[derive(Debug)]
pub(super) struct Registry {
    /// Cargo's home folder.
    home: PathBuf,
    /// Cargo's settings, by which packages of the public registry are those of this one.
    settings: PathBuf,
}

impl Registry {
    /// Writes the registry `registry` of `build_folder` from the archives in `package`, and the manifests in the folders of
    /// the `unpacked` packages.
    pub(super) fn write(build_folder: &Path, unpacked: &[PathBuf]) -> Result<Self> {
        let packages = &packages_in(unpacked)?;
        let folder = build_folder.join("registry");
        clear(&folder)?;
        for package in packages {
            let file = format!("{}-{}.crate", package.name, package.version);
            let archive = build_folder.join("package").join(&file);
            let sum = process::output(Command::new("sha256sum").arg(&archive))?;
            let sum = sum
                .split_whitespace()
                .next()
                .context("sha256sum printed nothing")?;
            let entry = folder.join("index").join(index_path(&package.name));
            create_folder_of(&entry)?;
            fs::write(&entry, format!("{}\n", line(package, packages, sum)))
                .with_context(|| format!("cannot write {}", entry.display()))?;
            fs::copy(&archive, folder.join(&file))
                .with_context(|| format!("cannot copy {file}"))?;
        }
        let settings = build_folder.join("registry.toml");
        let names: Vec<(&str, String)> = packages
            .iter()
            .map(|package| (package.name.as_str(), package.version.to_string()))
            .collect();
        fs::write(&settings, configuration(&folder, &names))
            .context("cannot write registry.toml")?;
        let home = build_folder.join("cargo-home");
        link_home(&home)?;
        Ok(Self { home, settings })
    }

    /// Cargo with the command `name`, without network.
    pub(super) fn cargo(&self, workspace: &Workspace, name: &str) -> Command {
        let mut cargo = workspace::cargo(workspace);
        cargo.env("CARGO_HOME", &self.home);
        cargo
            .args([name, "--offline", "--config"])
            .arg(&self.settings);
        cargo
    }
}

/// The packages in the folders.
fn packages_in(folders: &[PathBuf]) -> Result<Vec<Package>> {
    let mut packages = Vec::new();
    for folder in folders {
        let mut metadata = MetadataCommand::new();
        metadata.manifest_path(folder.join("Cargo.toml")).no_deps();
        let metadata = metadata.exec().context("cargo cannot describe a package")?;
        packages.extend(metadata.packages);
    }
    Ok(packages)
}

/// The path of a package in an index: `rd/ma/rdma-cm`. Names of this project have more than three letters.
fn index_path(name: &str) -> PathBuf {
    let (first, second) = (&name[..2], &name[2..4]);
    Path::new(first).join(second).join(name)
}

/// The package's line in the index.
fn line(package: &Package, packages: &[Package], sum: &str) -> Value {
    let is_released = |name: &str| packages.iter().any(|package| package.name.as_str() == name);
    let dependencies: Vec<Value> = package
        .dependencies
        .iter()
        .map(|dependency| entry(dependency, is_released))
        .collect();
    json!({
        "name": package.name.as_str(),
        "vers": package.version.to_string(),
        "deps": dependencies,
        "features": {},
        "features2": package.features,
        "cksum": sum,
        "yanked": false,
        "rust_version": package.rust_version.as_ref().map(ToString::to_string),
        "v": 2,
    })
}

/// A dependency in the index. Without a registry, it is in the same one.
fn entry(dependency: &Dependency, is_released: impl Fn(&str) -> bool) -> Value {
    let renamed = dependency.rename.is_some().then_some(&dependency.name);
    json!({
        "name": dependency.rename.as_ref().unwrap_or(&dependency.name),
        "package": renamed,
        "req": dependency.req.to_string(),
        "features": dependency.features,
        "optional": dependency.optional,
        "default_features": dependency.uses_default_features,
        "target": dependency.target.as_ref().map(ToString::to_string),
        "kind": match dependency.kind {
            DependencyKind::Development => "dev",
            DependencyKind::Build => "build",
            _ => "normal",
        },
        "registry": (!is_released(&dependency.name)).then_some(PUBLIC),
    })
}

/// Cargo's settings: the registry `release`, and its packages in place of the public registry's.
fn configuration(folder: &Path, packages: &[(&str, String)]) -> String {
    let folder = folder.display();
    let mut text = format!(
        "[registries.release]\nindex = \"file://{folder}/index\"\n\n\
         [source.release]\nregistry = \"file://{folder}/index\"\nreplace-with = \"files-of-release\"\n\n\
         [source.files-of-release]\nlocal-registry = \"{folder}\"\n\n[patch.crates-io]\n"
    );
    for (name, version) in packages {
        text += &format!("{name} = {{ version = \"={version}\", registry = \"release\" }}\n");
    }
    text
}

/// Makes a home folder for cargo, with links to the registry of the user's.
fn link_home(home: &Path) -> Result<()> {
    clear(home)?;
    let users = match env::var_os("CARGO_HOME") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(env::var_os("HOME").context("the variable HOME is not set")?)
            .join(".cargo"),
    };
    let link = |name: &str| -> Result<()> {
        let (from, to) = (users.join(name), home.join(name));
        if from.exists() {
            create_folder_of(&to)?;
            symlink(&from, &to).with_context(|| format!("cannot link {}", from.display()))?;
        }
        Ok(())
    };
    for name in ["config.toml", "registry/index", "registry/cache"] {
        link(name)?;
    }
    let sources = users.join("registry/src");
    for source in
        fs::read_dir(&sources).with_context(|| format!("cannot list {}", sources.display()))?
    {
        let name = source?.file_name().to_string_lossy().into_owned();
        // Names of registries in files begin with a hyphen.
        if !name.starts_with('-') {
            link(&format!("registry/src/{name}"))?;
        }
    }
    Ok(())
}

fn create_folder_of(file: &Path) -> Result<()> {
    let folder = file.parent().context("a file without a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_has_released_dependencies_without_a_registry_and_others_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, manifest: &str| {
            let path = folder.path().join(name);
            create_folder_of(&path).unwrap();
            fs::write(path, manifest).unwrap();
        };
        write(
            "a/Cargo.toml",
            "[package]\nname = \"rdma-a\"\nversion = \"1.2.3\"\nedition = \"2024\"\n",
        );
        write(
            "b/Cargo.toml",
            "[package]\nname = \"rdma-b\"\nversion = \"1.2.3\"\nedition = \"2024\"\n\
             [dependencies]\na = { package = \"rdma-a\", version = \"1.2\", features = [\"x\"], optional = true }\n\
             [build-dependencies]\nlibc = \"0.2\"\n[features]\nfast = [\"dep:a\"]\n",
        );
        for name in ["a/src/lib.rs", "b/src/lib.rs"] {
            write(name, "");
        }
        let packages = packages_in(&["a", "b"].map(|name| folder.path().join(name))).unwrap();
        let b = packages
            .iter()
            .find(|package| package.name.as_str() == "rdma-b")
            .unwrap();
        let line = line(b, &packages, "abc");
        assert_eq!(line["cksum"], "abc");
        assert_eq!(line["features2"]["fast"], json!(["dep:a"]));
        let [a, libc] = [&line["deps"][0], &line["deps"][1]];
        assert_eq!((&a["name"], &a["package"]), (&json!("a"), &json!("rdma-a")));
        assert_eq!(
            (&a["req"], &a["optional"], &a["features"]),
            (&json!("^1.2"), &json!(true), &json!(["x"]))
        );
        assert_eq!(
            (&a["registry"], &a["kind"]),
            (&Value::Null, &json!("normal"))
        );
        assert_eq!(
            (&libc["registry"], &libc["kind"]),
            (&json!(PUBLIC), &json!("build"))
        );
        assert_eq!(index_path("rdma-b"), Path::new("rd/ma/rdma-b"));
    }
}
