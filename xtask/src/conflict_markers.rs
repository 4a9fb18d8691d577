//! Conflict markers of merges, which no text file may have.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::tidy::{files, files_in};

/// Ends of the names of text files.
const TEXTS: [&str; 5] = [".rs", ".md", ".txt", ".toml", ".yml"];

/// Hidden folder with text files.
const WORKFLOWS: &str = ".github";

/// Lines that start with one of these, alone or before a space, are conflict markers.
const MARKERS: [&str; 4] = ["<<<<<<<", "|||||||", "=======", ">>>>>>>"];

/// Complains about conflict markers in the text files of a workspace.
pub(crate) fn complaints(root: &Path) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    let texts = |file: &&PathBuf| {
        let name = file.to_string_lossy();
        TEXTS.iter().any(|end| name.ends_with(end))
    };
    let all = [files(root, "")?, files_in(root, WORKFLOWS)?].concat();
    for file in all.iter().filter(texts) {
        let text =
            fs::read(root.join(file)).with_context(|| format!("cannot read {}", file.display()))?;
        complaints.extend(in_text(
            &file.to_string_lossy(),
            &String::from_utf8_lossy(&text),
        ));
    }
    Ok(complaints)
}

fn in_text(name: &str, text: &str) -> Vec<String> {
    let is_marker = |line: &str| {
        let after = MARKERS.iter().find_map(|marker| line.strip_prefix(marker));
        after.is_some_and(|after| after.is_empty() || after.starts_with(' '))
    };
    let lines = (1..).zip(text.lines());
    let marked = lines.filter(|(_, line)| is_marker(line));
    marked
        .map(|(number, line)| {
            format!("{name}:{number}: conflict marker `{line}`: write one text for both sides")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflict_markers_are_reported() {
        let text =
            "a\n<<<<<<< HEAD\nb\n||||||| 63a42ae9\n=======\nc\n>>>>>>> 244a78a8 (softnic: text)\n";
        let lines: Vec<_> = in_text("x.md", text)
            .iter()
            .filter_map(|complaint| Some(complaint.split(": ").next()?.to_owned()))
            .collect();
        assert_eq!(lines, ["x.md:2", "x.md:4", "x.md:5", "x.md:7"]);
        for text in ["    <<<<<<< HEAD", "<<<<<<<<", "<<<<<< a", "a ======="] {
            assert_eq!(in_text("x.md", text), [""; 0], "{text}");
        }
    }

    #[test]
    fn text_files_of_all_folders_are_read() {
        let root = tempfile::tempdir().unwrap();
        let marked = [
            "a.rs",
            "b/c.md",
            "b/d.txt",
            "Cargo.toml",
            ".github/workflows/ci.yml",
        ];
        for file in marked.into_iter().chain(["b/e.patch"]) {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, ">>>>>>> a\n").unwrap();
        }
        let found = complaints(root.path()).unwrap();
        assert_eq!(found.len(), marked.len(), "{found:?}");
        for file in marked {
            let start = format!("{file}:1: ");
            assert!(
                found.iter().any(|found| found.starts_with(&start)),
                "{file}"
            );
        }
    }
}
