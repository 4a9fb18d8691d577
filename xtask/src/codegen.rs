//! `cargo xtask codegen`: regenerates the checked-in bindings of the -sys crates from the installed headers.
//!
//! The build scripts of these crates run bindgen, and an example of each crate prints the result. So xtask itself needs
//! neither libclang nor rdma-core.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::{self, Workspace};

/// Folders of the crates, and the example of each crate with the bindings as output.
const CRATES: [(&str, &str); 4] = [
    ("ibverbs-sys", "ibverbs-bindings"),
    ("rdmacm-sys", "rdmacm-bindings"),
    ("efa-sys", "efa-bindings"),
    ("mlx5-sys", "mlx5-bindings"),
];

/// Writes the bindings of every -sys crate. With `check`, fails if they would change.
pub(crate) fn run(check: bool) -> Result<()> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "run this on x86_64: the bindings' layout assertions are those of x86_64"
    );
    let workspace = Workspace::load()?;
    for (folder, example) in CRATES {
        let fresh = generate(&workspace, folder, example)
            .with_context(|| format!("{folder}: no bindings"))?;
        let path = workspace.root().join(folder).join("src/bindings.rs");
        if check {
            compare(&path, &fresh).with_context(|| folder.to_owned())?;
        } else {
            fs::write(&path, fresh).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(())
}

/// The text of `src/bindings.rs` for this machine's headers.
fn generate(workspace: &Workspace, folder: &str, example: &str) -> Result<String> {
    let mut cargo = workspace::cargo(workspace);
    cargo.args(["run", "--quiet", "--locked", "--features", "bindgen"]);
    cargo.args(["--example", example, "--manifest-path"]);
    cargo.arg(workspace.root().join(folder).join("Cargo.toml"));
    let output = cargo
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(
        output.status.success(),
        "`{example}` failed: see above; `cargo xtask setup` installs what it needs"
    );
    let printed = String::from_utf8(output.stdout)?;

    let (release, bindings) = printed.split_once('\n').context("nothing was printed")?;
    // Structs with a pthread mutex differ in size on other architectures.
    let bindings = bindings.replace(
        "\nconst _: () = {",
        "\n#[cfg(target_arch = \"x86_64\")]\nconst _: () = {",
    );
    format(&format!(
        "{release}: made of its headers by `cargo xtask codegen`, not by hand.\n\n{bindings}"
    ))
}

/// Formats with rustfmt: independent of bindgen's formatting and of line lengths.
fn format(text: &str) -> Result<String> {
    let mut rustfmt = Command::new("rustfmt")
        .args([
            "--edition",
            "2024",
            "--config",
            "max_width=100,newline_style=Unix",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run rustfmt: `rustup component add rustfmt`")?;
    let mut stdin = rustfmt.stdin.take().context("rustfmt has no input")?;
    // rustfmt reads all input before writing, so this cannot deadlock.
    stdin
        .write_all(text.as_bytes())
        .context("rustfmt does not read")?;
    drop(stdin);
    let output = rustfmt.wait_with_output()?;
    ensure!(output.status.success(), "rustfmt failed on the bindings");
    Ok(String::from_utf8(output.stdout)?)
}

/// Fails if the file at `path` differs from `fresh`; the error has the first differing line.
fn compare(path: &Path, fresh: &str) -> Result<()> {
    let old =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    if old == fresh {
        return Ok(());
    }
    let (old_release, fresh_release) = (first_line(&old), first_line(fresh));
    if old_release != fresh_release {
        bail!(
            "cannot check {}: its first line is \"{old_release}\", and this machine's headers give \"{fresh_release}\"; \
             check on a machine with the rdma-core release of the file",
            path.display()
        );
    }
    let same = old
        .lines()
        .zip(fresh.lines())
        .take_while(|(old, fresh)| old == fresh)
        .count();
    let line = |text: &str| text.lines().nth(same).unwrap_or("(end of file)").to_owned();
    bail!(
        "{}:{} is stale: run `cargo xtask codegen`, and commit\n  checked in: {}\n  generated:  {}",
        path.display(),
        same + 1,
        line(&old),
        line(fresh)
    )
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked_in(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn compare_with_the_same_text_is_ok() {
        let file = checked_in("// rdma-core 44\nstruct a;\n");
        compare(file.path(), "// rdma-core 44\nstruct a;\n").unwrap();
    }

    #[test]
    fn compare_with_another_text_names_the_line() {
        let file = checked_in("// rdma-core 44\nstruct a;\n");
        let error = compare(file.path(), "// rdma-core 44\nstruct b;\n")
            .unwrap_err()
            .to_string();
        assert!(error.contains(":2 is stale"), "{error}");
        assert!(error.contains("generated:  struct b;"), "{error}");
    }

    #[test]
    fn compare_with_another_release_is_an_error_but_not_stale() {
        let file = checked_in("// rdma-core 44\n");
        let error = compare(file.path(), "// rdma-core 50\n")
            .unwrap_err()
            .to_string();
        assert!(error.contains("cannot check"), "{error}");
    }
}
