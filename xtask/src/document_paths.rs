//! Links and paths in documents: each leads to a file of the workspace. And sources without a noun in `ARCHITECTURE.md`.

use std::path::{Component, Path, PathBuf};

/// Ends of the names of files whose paths are checked.
const SOURCES: [&str; 5] = [".rs", ".md", ".py", ".supp", ".txt"];

/// Folder of files made by commands, which need not exist.
const MADE: &str = "target/";

/// Documents about the past, which name files of their time.
const HISTORY: [&str; 1] = ["CHANGELOG.md"];

/// The document that names each source.
pub(crate) const ARCHITECTURE: &str = "ARCHITECTURE.md";

/// Names of sources whose noun is that of their folder, and folders of such sources.
const OF_FOLDER: [&str; 7] = [
    "mod.rs",
    "lib.rs",
    "main.rs",
    "tests.rs",
    "bindings.rs",
    "tests",
    "bin",
];

/// Complains about sources below `src` that the document of the architecture does not name: neither the file, nor one of its
/// folders with a slash at the end.
pub(crate) fn unnamed(document: &str, files: &[PathBuf]) -> Vec<String> {
    let quoted: Vec<_> = document.lines().flat_map(tables::quoted).collect();
    let is_named = |path: &Path, end: &str| {
        let mut names = quoted.iter().filter_map(|name| name.strip_suffix(end));
        names.any(|name| path.ends_with(format!("{name}{end}")))
    };
    let complaint = |file: &PathBuf| {
        let parts: Vec<_> = file.iter().collect();
        let source = parts.iter().rposition(|part| *part == "src")? + 1;
        let is_of_folder = |name: &&str| parts[source..].iter().any(|part| part == name);
        let mut folders = file.ancestors().skip(1).take(parts.len() - source - 1);
        let is_covered = file.extension().is_none_or(|end| end != "rs")
            || OF_FOLDER.iter().any(is_of_folder)
            || is_named(file, ".rs")
            || folders.any(|folder| is_named(folder, "/"));
        (!is_covered).then(|| format!("{}: no noun in {ARCHITECTURE}", file.display()))
    };
    files.iter().filter_map(complaint).collect()
}

/// Complains about links, and paths in backquotes, that lead to no file. A path may leave out its first folders.
pub(crate) fn dead(name: &str, text: &str, files: &[PathBuf]) -> Vec<String> {
    let folder = Path::new(name).parent().unwrap_or(Path::new(""));
    let mut complaints = Vec::new();
    let mut is_code = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        let number = index + 1;
        let dead_links = links(line).filter(|link| !exists(&joined(folder, link), files));
        complaints.extend(dead_links.map(|link| format!("{name}:{number}: no file `{link}`")));
        let dead_paths = paths(line).filter(|_| !HISTORY.contains(&name));
        let dead_paths = dead_paths.filter(|path| !ends_a_file(path, files));
        complaints.extend(dead_paths.map(|path| format!("{name}:{number}: no file `{path}`")));
    }
    complaints
}

/// Targets of a line's links, without those of the web, of headings and of items of the documentation.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| {
        let (target, _) = rest.split_once(')')?;
        target.split('#').next()
    });
    targets.filter(|target| !target.is_empty() && !target.contains("::") && !target.contains(':'))
}

/// Paths of sources in a line's backquotes.
fn paths(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split('`').skip(1).step_by(2);
    quoted.filter(|quoted| {
        let is_path = !quoted.contains([' ', '*', '{', ':']);
        let is_source = SOURCES
            .iter()
            .any(|end| quoted.ends_with(end) && quoted != end);
        is_path && is_source && !quoted.starts_with(MADE)
    })
}

/// A path relative to a folder, relative to the root.
pub(crate) fn joined(folder: &Path, path: &str) -> PathBuf {
    let mut joined = PathBuf::new();
    for component in folder.join(path).components() {
        match component {
            Component::ParentDir => {
                joined.pop();
            }
            Component::CurDir => {}
            component => joined.push(component),
        }
    }
    joined
}

/// Whether a path is a file, or a folder with files.
fn exists(path: &Path, files: &[PathBuf]) -> bool {
    files.iter().any(|file| file.starts_with(path))
}

fn ends_a_file(path: &str, files: &[PathBuf]) -> bool {
    files.iter().any(|file| file.ends_with(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead_in(name: &str, text: &str) -> Vec<String> {
        let files = ["README.md", "book/start.md", "verbs/src/cq/mod.rs"];
        dead(name, text, &files.map(PathBuf::from))
    }

    #[test]
    fn links_and_paths_of_existing_files_are_accepted() {
        let text = "[up](../README.md#limits) [down](start.md), [web](https://x.y/z.md), [item](cq::Cq), [book](../book)\n\
                    `cq/mod.rs`, `verbs/src/cq/mod.rs`, `mod.rs`, `target/out.txt`, `*.rs`, `.rs`, `NAME.txt x`\n\
                    ```\n[no link](a.md) `b.rs`\n```\n";
        assert_eq!(dead_in("book/README.md", text), [""; 0]);
    }

    #[test]
    fn link_or_path_without_a_file_is_reported() {
        let dead = dead_in(
            "book/start.md",
            "[up](README.md)\n`verbs/cq/mod.rs` `q/mod.rs`\n",
        );
        let expected = [
            "1: no file `README.md`",
            "2: no file `verbs/cq/mod.rs`",
            "2: no file `q/mod.rs`",
        ];
        assert_eq!(dead, expected.map(|text| format!("book/start.md:{text}")));
        assert_eq!(dead_in("CHANGELOG.md", "`gone.rs`"), [""; 0]);
        assert_eq!(dead_in("CHANGELOG.md", "[x](gone.rs)").len(), 1);
    }

    #[test]
    fn source_without_a_noun_is_reported() {
        let document = "### `verbs`\n| `cq.rs`, `qp/` | queues |\n`src/`\n";
        let unnamed_of = |file: &str| unnamed(document, &[PathBuf::from(file)]);
        for file in [
            "verbs/src/cq.rs",
            "verbs/src/qp/ring/slots.rs",
            "verbs/src/lib.rs",
            "verbs/src/bin/tool.rs",
            "verbs/src/text.md",
            "verbs/tests/pd.rs",
        ] {
            assert_eq!(unnamed_of(file), [""; 0], "{file}");
        }
        for file in ["verbs/src/pd.rs", "qp/src/cq/pd.rs", "verbs/src/xcq.rs"] {
            let complaint = format!("{file}: no noun in ARCHITECTURE.md");
            assert_eq!(unnamed_of(file), [complaint]);
        }
    }
}
