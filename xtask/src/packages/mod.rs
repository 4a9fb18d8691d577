//! The published packages: their names and manifests, their order, and a release into a registry in files.
//!
//! `cargo xtask packages` packages the crates, and writes a [`registry`] of the archives. A crate depends on them by the lines
//! of the README without paths, as after a release. It is built without rdma-core, and its tests run on softnic in an empty
//! root folder, as the user with the fewest rights. The key-value store of the tutorial is moved beside it, with its
//! programs, and is built with the rdma-core of this machine. The archives are unpacked to `target/packages/rdma`, where
//! their documentation is built with the settings of docs.rs. Nothing is downloaded.

mod registry;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cargo_metadata::Package;

use crate::workspace::{self, Workspace};
use registry::Registry;
use soft_roce::process;

/// Names of packages begin with this: the registry has foreign crates called `verbs`, `rsocket`, `rds` and
/// `ibverbs-sys`.
const PREFIX: &str = "rdma-";

/// Other names, free in the registry in November 2026.
const OTHER_NAMES: [&str; 3] = ["cargo-soft-roce", "rdmacm-sys", "softnic"];

/// Files of each published package. Licences are links to those of the workspace; cargo packages the files.
const FILES: [&str; 3] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Maximum number of keywords that the registry accepts.
const MAX_KEYWORDS: usize = 5;

/// The page with the order of publication, relative to the workspace's root, and the heading of the order.
const RELEASING: &str = "RELEASING.md";
const ORDER: &str = "\n## Order\n";

/// Documents with dependency lines, the first with all of them.
const DOCUMENTS: [&str; 2] = ["README.md", "softnic/GUIDE.md"];

/// Tests of the foreign crate: one of softnic's as it is, and one of the sockets.
const GUIDE: &str = include_str!("../../../softnic/tests/guide.rs");
const SOCKETS: &str = include_str!("../../consumer/sockets.rs");

/// The foreign crate's manifest, before the lines of the README. The table `workspace` keeps the crate out of this
/// workspace.
const MANIFEST: &str = "\
[package]
name = \"consumer\"
edition = \"2024\"
publish = false

[workspace]

[profile.dev]
debug = false

";

/// Variable of this workspace's `.cargo/config.toml`, which dependent crates lack.
const STUB_LIBRARIES: &str = "RDMA_STUB_LIBRARIES";

/// The tutorial's project.
const STORE: &str = "examples/kv_store";

/// The table of the store's manifest that needs this workspace.
const LINTS: &str = "[lints]\nworkspace = true\n";

/// Target folders: of the foreign crate, the key-value store and the documentation.
const TARGETS: [&str; 3] = ["target", "store-target", "docs-target"];

/// Variables of a machine with neither rdma-core nor its headers.
const WITHOUT_RDMA_CORE: [(&str, &str); 3] = [
    ("PKG_CONFIG", "/nonexistent/pkg-config"),
    ("LIBCLANG_PATH", "/nonexistent"),
    (STUB_LIBRARIES, ""),
];

/// Packages the crates, runs the tests of projects that depend on the packages, and builds the packages' documentation.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let packages: Vec<&Package> = published(workspace.packages()).collect();
    let build_folder = workspace.target().join("packages");
    let mut cargo = workspace::cargo(workspace);
    cargo.args(["package", "--quiet", "--offline", "--locked"]);
    // Built below, as a dependency.
    cargo.args(["--no-verify", "--allow-dirty", "--target-dir"]);
    cargo.arg(&build_folder);
    for package in &packages {
        cargo.args(["--package", package.name.as_str()]);
    }
    process::run(&mut cargo)?;
    let mut is_changed = false;
    let mut unpacked = Vec::new();
    for package in &packages {
        let folder = folder(workspace.root(), package)?;
        is_changed |= unpack(&build_folder, package, &folder)?;
        unpacked.push(build_folder.join("rdma").join(folder));
    }
    if is_changed {
        forget_builds(&build_folder, &packages)?;
    }
    let registry = Registry::write(&build_folder, &unpacked)?;
    test_consumer(workspace, &build_folder, &packages, &registry)?;
    let mut cargo = registry.cargo(workspace, "test");
    cargo.args(["--tests", "--manifest-path"]);
    cargo.arg(move_store(workspace, &build_folder)?);
    // The folder of the foreign crate has the build for a machine without rdma-core.
    cargo.arg("--target-dir").arg(build_folder.join(TARGETS[1]));
    process::run(&mut cargo).context("the packages do not serve the moved key-value store")?;
    document(workspace, &build_folder, &unpacked, &registry)
}

/// Runs the tests of the foreign crate.
fn test_consumer(
    workspace: &Workspace,
    build_folder: &Path,
    packages: &[&Package],
    registry: &Registry,
) -> Result<()> {
    let manifest = write_consumer(workspace, build_folder, packages)?;
    let mut cargo = registry.cargo(workspace, "test");
    cargo.args(["--tests", "--manifest-path"]);
    cargo.arg(&manifest).arg("--target-dir");
    cargo.arg(build_folder.join(TARGETS[0]));
    cargo.envs(WITHOUT_RDMA_CORE);
    let runner = workspace.root().join("xtask/consumer/empty_root.sh");
    cargo.arg("--config").arg(format!(
        "target.'cfg(unix)'.runner = ['sh', {:?}]",
        runner.display()
    ));
    process::run(&mut cargo).context("the packages do not serve a foreign crate")
}

/// Builds the documentation of each unpacked package, as docs.rs does: with the features of `package.metadata.docs.rs`, which
/// are all, and without rdma-core. A warning is an error.
fn document(
    workspace: &Workspace,
    build_folder: &Path,
    unpacked: &[PathBuf],
    registry: &Registry,
) -> Result<()> {
    for folder in unpacked {
        let mut cargo = registry.cargo(workspace, "doc");
        cargo.args(["--quiet", "--lib", "--no-deps", "--all-features"]);
        cargo.arg("--manifest-path").arg(folder.join("Cargo.toml"));
        cargo.arg("--target-dir").arg(build_folder.join(TARGETS[2]));
        cargo.envs(WITHOUT_RDMA_CORE);
        cargo.env("DOCS_RS", "1");
        cargo.env("RUSTDOCFLAGS", "--cfg docsrs -D warnings");
        process::run(&mut cargo).context("docs.rs would not build the documentation")?;
    }
    Ok(())
}

/// Lets cargo build the packages again: it takes a version of a registry for unchangeable.
fn forget_builds(build_folder: &Path, packages: &[&Package]) -> Result<()> {
    for target in TARGETS {
        let fingerprints = build_folder.join(target).join("debug/.fingerprint");
        for entry in fs::read_dir(&fingerprints).into_iter().flatten() {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_of = |package: &&&Package| name.starts_with(&format!("{}-", package.name));
            if packages.iter().find(is_of).is_some() {
                clear(&entry.path())?;
            }
        }
    }
    Ok(())
}

/// Copies the key-value store to a workspace of its own, and returns the path of its manifest.
fn move_store(workspace: &Workspace, build_folder: &Path) -> Result<PathBuf> {
    let (from, to) = (workspace.root().join(STORE), build_folder.join("kv_store"));
    let (manifest, lock) = (to.join("Cargo.toml"), to.join("Cargo.lock"));
    clear(&to)?;
    // Times are kept, so that cargo builds only changed files again.
    process::run(
        Command::new("cp")
            .args(["--archive", "--no-target-directory"])
            .arg(from)
            .arg(&to),
    )?;
    let text = fs::read_to_string(&manifest)
        .with_context(|| format!("cannot read {}", manifest.display()))?;
    ensure!(
        text.contains(LINTS),
        "{STORE}/Cargo.toml has no table of lints"
    );
    let text = without_paths(&text)?.replace(LINTS, "[workspace]\n");
    fs::write(&manifest, text).with_context(|| format!("cannot write {}", manifest.display()))?;
    fs::copy(workspace.root().join("Cargo.lock"), lock).context("cannot copy Cargo.lock")?;
    Ok(manifest)
}

/// A manifest with the versions of the packages, without their paths.
fn without_paths(manifest: &str) -> Result<String> {
    let mut text = String::new();
    for line in manifest.lines() {
        match line.split_once("path = \"../") {
            Some((before, after)) => {
                let (_, after) = after
                    .split_once("\", ")
                    .with_context(|| format!("no version after the path in `{line}`"))?;
                text += &format!("{before}{after}\n");
            }
            None => text += &format!("{line}\n"),
        }
    }
    ensure!(
        text.lines().count() > 0 && text != manifest,
        "the manifest has no path of a package"
    );
    Ok(text)
}

/// The packages for the registry.
pub(crate) fn published(packages: &[Package]) -> impl Iterator<Item = &Package> {
    let is_published = |to: &Vec<String>| !to.is_empty();
    packages
        .iter()
        .filter(move |package| package.publish.as_ref().is_none_or(is_published))
}

/// Name of the folder of an unpacked package: the package's folder in the workspace, `rsocket-proto` for `rsocket/proto`.
fn folder(root: &Path, package: &Package) -> Result<String> {
    let folder = package.manifest_path.parent();
    let folder = folder.and_then(|folder| folder.as_std_path().strip_prefix(root).ok());
    let folder =
        folder.with_context(|| format!("{} is outside of the workspace", package.manifest_path))?;
    Ok(folder.display().to_string().replace('/', "-"))
}

/// Unpacks a package. Unchanged files keep their time, so that cargo builds only changed packages again. Returns whether the
/// package has changed.
fn unpack(build_folder: &Path, package: &Package, folder: &str) -> Result<bool> {
    let Package { name, version, .. } = package;
    let archive = build_folder.join(format!("package/{name}-{version}.crate"));
    let fresh = build_folder.join("fresh");
    let unpacked = build_folder.join("rdma").join(folder);
    clear(&fresh)?;
    fs::create_dir_all(&fresh).with_context(|| format!("cannot create {}", fresh.display()))?;
    let mut tar = Command::new("tar");
    // Times in the archive are constant. Cargo would miss a change.
    tar.args(["--extract", "--touch", "--strip-components=1", "--file"]);
    process::run(tar.arg(&archive).arg("--directory").arg(&fresh))?;
    // Not a member of this workspace.
    let manifest = fresh.join("Cargo.toml");
    let text = fs::read_to_string(&manifest)
        .with_context(|| format!("cannot read {}", manifest.display()))?;
    fs::write(&manifest, format!("{text}\n[workspace]\n"))
        .with_context(|| format!("cannot write {}", manifest.display()))?;
    let mut diff = Command::new("diff");
    // The current commit is in `.cargo_vcs_info.json`. The lock file of a library is not read.
    diff.args(["--recursive", "--brief"]);
    diff.args(["--exclude=.cargo_vcs_info.json", "--exclude=Cargo.lock"]);
    let same = diff.arg(&fresh).arg(&unpacked).output();
    if same.is_ok_and(|output| output.status.success()) {
        return Ok(false);
    }
    clear(&unpacked)?;
    fs::create_dir_all(build_folder.join("rdma"))
        .with_context(|| format!("cannot create folders in {}", build_folder.display()))?;
    fs::rename(&fresh, &unpacked)
        .with_context(|| format!("cannot create {}", unpacked.display()))?;
    Ok(true)
}

/// Removes a folder, if it exists.
fn clear(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

/// Writes the foreign crate and returns the path of its manifest.
fn write_consumer(
    workspace: &Workspace,
    build_folder: &Path,
    packages: &[&Package],
) -> Result<PathBuf> {
    let dependencies = without_paths(&dependencies(workspace.root())?)?;
    let mut manifest = format!("{MANIFEST}{dependencies}");
    for package in packages {
        let Package { name, version, .. } = package;
        // Every package is built, those without a line in the README too.
        if !dependencies.contains(&format!("{name} = ")) {
            manifest += &format!("\n[dependencies.{name}]\nversion = \"{version}\"\n");
        }
    }
    let consumer = build_folder.join("consumer");
    let files = [
        ("Cargo.toml", manifest.as_str()),
        ("src/lib.rs", "//! A crate of somebody else.\n"),
        ("tests/guide.rs", GUIDE),
        ("tests/sockets.rs", SOCKETS),
    ];
    for (name, text) in files {
        let path = consumer.join(name);
        let folder = path.parent().context("a file without a folder")?;
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    // The versions of this workspace, which are on this machine.
    fs::copy(
        workspace.root().join("Cargo.lock"),
        consumer.join("Cargo.lock"),
    )
    .context("cannot copy Cargo.lock")?;
    Ok(consumer.join("Cargo.toml"))
}

/// The dependency tables of the README. The lines of the other documents must be among them.
fn dependencies(root: &Path) -> Result<String> {
    let mut tables: Option<String> = None;
    for document in DOCUMENTS {
        let path = root.join(document);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let block = toml_block(&text)
            .with_context(|| format!("{document} has no block of TOML with dependencies"))?;
        if let Some(tables) = &tables {
            for line in block.lines() {
                let is_there = tables.lines().any(|other| other.starts_with(line));
                ensure!(is_there, "{document} has `{line}`, and README.md has not");
            }
        }
        tables.get_or_insert_with(|| block.to_owned());
    }
    tables.context("no document has dependencies")
}

/// The first block of TOML in a document.
fn toml_block(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("```toml\n")?;
    rest.split_once("```").map(|(block, _)| block)
}

/// Complains about published packages with a name that may be taken, or without an item that the registry shows; and
/// about the order of publication.
pub(crate) fn complaints(root: &Path, packages: &[Package]) -> Result<Vec<String>> {
    let path = root.join(RELEASING);
    let releasing =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut complaints: Vec<String> = published(packages).flat_map(incomplete).collect();
    complaints.extend(disorder(&releasing, packages));
    Ok(complaints)
}

/// Complains about the name, the manifest and the files of a package.
fn incomplete(package: &Package) -> Vec<String> {
    let Package { name, .. } = package;
    let mut missing = Vec::new();
    if !name.starts_with(PREFIX) && !OTHER_NAMES.contains(&name.as_str()) {
        missing.push(format!(
            "the name `{name}` may be taken: begin it with `{PREFIX}`, or look it up and add it to `OTHER_NAMES`"
        ));
    }
    let items = [
        ("description", package.description.is_some()),
        ("license", package.license.is_some()),
        ("rust-version", package.rust_version.is_some()),
        ("categories", !package.categories.is_empty()),
        ("keywords", !package.keywords.is_empty()),
    ];
    let absent = items.iter().filter(|(_, is_there)| !is_there);
    missing.extend(absent.map(|(item, _)| format!("no `{item}` in a published package")));
    if package.keywords.len() > MAX_KEYWORDS {
        missing.push(format!("more than {MAX_KEYWORDS} keywords"));
    }
    let folder = package.manifest_path.with_file_name("");
    let absent = FILES.iter().filter(|file| !folder.join(file).exists());
    missing.extend(absent.map(|file| format!("no `{file}` beside the manifest")));
    let in_manifest = |text| format!("{}: {text}", package.manifest_path);
    missing.into_iter().map(in_manifest).collect()
}

/// Complains about published packages that the list of RELEASING.md has not exactly once, or before a dependency.
fn disorder(releasing: &str, packages: &[Package]) -> Vec<String> {
    // An item such as "1. `rdma-verbs`, `rdma-rsocket-proto`".
    let is_item = |line: &&str| line.starts_with(|c: char| c.is_ascii_digit());
    let (_, section) = releasing.split_once(ORDER).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let items = section.lines().filter(is_item);
    let listed: Vec<(usize, &str)> = items
        .enumerate()
        .flat_map(|(build_folder, line)| {
            let names = line.split('`').skip(1).step_by(2);
            names.map(move |name| (build_folder, name))
        })
        .collect();
    let positions = |package_name: &str| -> Vec<usize> {
        let found = listed.iter().filter(|(_, name)| *name == package_name);
        found.map(|(build_folder, _)| *build_folder).collect()
    };
    let mut complaints = Vec::new();
    for package in published(packages) {
        let [build_folder] = positions(&package.name)[..] else {
            complaints.push(format!(
                "{RELEASING}: the order must have `{}` once",
                package.name
            ));
            continue;
        };
        for dependency in &package.dependencies {
            // Dependencies of tests by path only are not in the packaged manifest.
            let is_dropped = dependency.req.to_string() == "*";
            let is_later = positions(&dependency.name)
                .first()
                .is_some_and(|other| *other >= build_folder);
            if is_later && !is_dropped {
                complaints.push(format!(
                    "{RELEASING}: `{}` depends on `{}`, which must be in an earlier item",
                    package.name, dependency.name
                ));
            }
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A package called `name` in `folder`, with further fields in JSON.
    fn package(folder: &Path, name: &str, fields: &str) -> Package {
        let json = format!(
            r#"{{"name": "{name}", "version": "1.0.0", "id": "x", "targets": [], "features": {{}},
                "manifest_path": "{}/Cargo.toml", "edition": "2024", {fields}}}"#,
            folder.display()
        );
        serde_json::from_str(&json).unwrap()
    }

    const COMPLETE: &str = r#""dependencies": [], "description": "x", "license": "MIT", "rust_version": "1.88",
        "categories": ["x"], "keywords": ["x"]"#;

    #[test]
    fn package_with_foreign_name_or_without_an_item_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        for file in FILES {
            fs::write(folder.path().join(file), "").unwrap();
        }
        let found = |name: &str, fields: &str| incomplete(&package(folder.path(), name, fields));
        assert_eq!(found("rdma-verbs", COMPLETE), [""; 0]);
        assert_eq!(found("softnic", COMPLETE), [""; 0]);
        let foreign = found("verbs", COMPLETE);
        assert!(foreign[0].contains("the name `verbs` may be taken"));
        for item in [
            "description",
            "license",
            "rust_version",
            "categories",
            "keywords",
        ] {
            let without = COMPLETE.replace(&format!("\"{item}\""), &format!("\"_{item}\""));
            assert_eq!(found("rdma-verbs", &without).len(), 1, "{item}");
        }
        let long = COMPLETE.replace(
            r#""keywords": ["x"]"#,
            r#""keywords": ["1", "2", "3", "4", "5", "6"]"#,
        );
        assert_eq!(found("rdma-verbs", &long).len(), 1);
        fs::remove_file(folder.path().join("LICENSE-MIT")).unwrap();
        let found = found("rdma-verbs", COMPLETE);
        assert!(found[0].ends_with("no `LICENSE-MIT` beside the manifest"));
    }

    #[test]
    fn order_with_absent_package_or_late_dependency_is_reported() {
        let dependent = |req: &str| {
            let dependency = format!(
                r#""dependencies": [{{"name": "rdma-a", "req": "{req}", "kind": null, "optional": false,
                    "uses_default_features": true, "features": []}}]"#
            );
            let fields = COMPLETE.replace(r#""dependencies": []"#, &dependency);
            let build_folder = Path::new("/x");
            [
                package(build_folder, "rdma-a", COMPLETE),
                package(build_folder, "rdma-b", &fields),
                package(
                    build_folder,
                    "kept",
                    &format!(r#"{COMPLETE}, "publish": []"#),
                ),
            ]
        };
        let complaints = |text: &str, req: &str| {
            let text = format!("1. `rdma-b`\n{ORDER}{text}## After\n1. `rdma-a`\n");
            disorder(&text, &dependent(req)).len()
        };
        assert_eq!(complaints("1. `rdma-a`\n2. `rdma-b`\n", "^0.1"), 0);
        assert_eq!(complaints("1. `rdma-a`, `rdma-b`\n", "^0.1"), 1);
        assert_eq!(complaints("1. `rdma-b`\n2. `rdma-a`\n", "^0.1"), 1);
        assert_eq!(complaints("1. `rdma-b`\n2. `rdma-a`\n", "*"), 0);
        assert_eq!(complaints("1. `rdma-a`\n", "^0.1"), 1);
        assert_eq!(
            complaints("1. `rdma-a`\n1. `rdma-a`\n2. `rdma-b`\n", "*"),
            1
        );
    }

    #[test]
    fn manifest_without_paths_has_the_versions() {
        let manifest =
            "[dependencies]\na = \"1\"\nb = { path = \"../rdma/b\", version = \"0.1\" } # remark\n";
        let without = without_paths(manifest).unwrap();
        assert_eq!(
            without,
            "[dependencies]\na = \"1\"\nb = { version = \"0.1\" } # remark\n"
        );
        for refused in ["a = \"1\"\n", "b = { path = \"../rdma/b\" }\n"] {
            assert!(without_paths(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn dependency_lines_of_other_documents_must_be_in_the_readme() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, lines: &str| {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("Text\n\n```toml\n{lines}```\n\nMore")).unwrap();
        };
        write(
            "README.md",
            "[dependencies]\na = \"1\" # remark\nb = \"1\"\n",
        );
        write("softnic/GUIDE.md", "[dependencies]\na = \"1\"\n");
        let tables = dependencies(root.path()).unwrap();
        assert_eq!(tables, "[dependencies]\na = \"1\" # remark\nb = \"1\"\n");
        write("softnic/GUIDE.md", "[dependencies]\nb = \"2\"\n");
        let error = dependencies(root.path()).unwrap_err().to_string();
        assert!(
            error.contains("softnic/GUIDE.md has `b = \"2\"`"),
            "{error}"
        );
    }
}
