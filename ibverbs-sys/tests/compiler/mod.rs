//! Runs the C compiler with the bindings' headers. Shared by both -sys crates.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A C compiler with the include folders of the build script.
pub(crate) struct Compiler {
    include: Vec<PathBuf>,
    folder: tempfile::TempDir,
}

impl Compiler {
    /// `include` is a colon-separated list of folders.
    pub(crate) fn new(include: &str) -> Self {
        let include = env::split_paths(include)
            .filter(|dir| !dir.as_os_str().is_empty())
            .collect();
        Self {
            include,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// Compiles `source` with `arguments` and returns standard output.
    pub(crate) fn compile(&self, source: &str, arguments: &[&str]) -> String {
        let file = self.file("source.c");
        fs::write(&file, source).unwrap();
        let mut command = Command::new(env::var_os("CC").unwrap_or_else(|| OsString::from("cc")));
        for dir in &self.include {
            command.arg("-I").arg(dir);
        }
        succeed(command.arg("-w").args(arguments).arg(&file))
    }

    /// Path of a file in the compiler's temporary folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// `#include` lines for `headers`.
pub(crate) fn includes(headers: &[&str]) -> String {
    headers
        .iter()
        .map(|header| format!("#include <{header}>\n"))
        .collect()
}

/// Runs a command, asserts success, and returns standard output.
pub(crate) fn succeed(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("a C compiler is installed");
    assert!(
        status.success(),
        "{command:?} failed:\n{}",
        String::from_utf8_lossy(&stderr)
    );
    String::from_utf8(stdout).unwrap()
}
