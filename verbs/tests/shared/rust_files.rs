//! The Rust files of the workspace, for tests of sources.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// All Rust files below a folder of the workspace.
pub(crate) fn rust_files(folder: &str) -> Vec<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    let mut folders = vec![workspace.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder is there") {
            let path = entry.expect("it can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|of| of == "rs") {
                found.push(path);
            }
        }
    }
    found
}
