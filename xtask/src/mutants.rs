//! Mutation tests with hand-written mutants: each mutant is inserted into a copy of the sources, and a test must fail.
//!
//! The list is `ci/mutants.txt`. A block has, in order: `== ` with a description of the fault; the file; arguments of
//! `cargo test`, which must fail with the fault; `--`; the original text; `++`; the replacement. The original text must
//! occur exactly once in the file.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::Workspace;
use soft_roce::process::{self, Supervised};

/// Path of the list, relative to the workspace's root.
const LIST: &str = "ci/mutants.txt";

/// Time limit of a test run. A lost wake-up shows as a hang, and counts as a failure.
const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// A fault, and the tests that must detect the fault.
#[derive(Debug, PartialEq, Eq)]
struct Mutant<'a> {
    name: &'a str,
    file: &'a str,
    /// Arguments of `cargo test`.
    tests: &'a str,
    pattern: String,
    replacement: String,
}

/// Runs the mutants with `filter` in the name or file. Returns whether all were detected.
pub(crate) fn run(workspace: &Workspace, filter: Option<&str>) -> Result<bool> {
    let list = fs::read_to_string(workspace.root().join(LIST))?;
    let mut mutants = parse(&list)?;
    mutants.retain(|mutant| {
        filter.is_none_or(|filter| mutant.name.contains(filter) || mutant.file.contains(filter))
    });
    ensure!(
        !mutants.is_empty(),
        "no mutant in {LIST} has the filter's text in its name or file"
    );
    let folder = workspace.target().join("mutants");
    let bench = Bench {
        sources: folder.join("sources"),
        target: folder.join("target"),
        log: folder.join("log"),
    };
    copy(workspace.root(), &bench.sources)?;
    let tests: BTreeSet<&str> = mutants.iter().map(|mutant| mutant.tests).collect();
    for tests in tests {
        bench.check_tests(tests)?;
    }
    let mut survivors = Vec::new();
    for mutant in &mutants {
        let found = bench.find(mutant)?;
        println!(
            "{} {}",
            if found { "found   " } else { "SURVIVED" },
            mutant.name
        );
        if !found {
            survivors.push(mutant.name);
        }
    }
    println!(
        "{} of {} mutants found",
        mutants.len() - survivors.len(),
        mutants.len()
    );
    Ok(survivors.is_empty())
}

fn parse(list: &str) -> Result<Vec<Mutant<'_>>> {
    let mut mutants = Vec::new();
    let mut lines = list.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("== ") else {
            ensure!(
                line.is_empty() || line.starts_with('#'),
                "`{line}` is outside of a block"
            );
            continue;
        };
        let (file, tests) = lines
            .next()
            .zip(lines.next())
            .with_context(|| format!("{name}: no file, or no tests"))?;
        ensure!(
            lines.next() == Some("--"),
            "{name}: no `--` after the tests"
        );
        let mut text = [String::new(), String::new()];
        let mut part = 0;
        while let Some(line) = lines.next_if(|line| !line.starts_with("== ")) {
            if line == "++" {
                part += 1;
            } else if let Some(text) = text.get_mut(part) {
                text.push_str(line);
                text.push('\n');
            }
        }
        ensure!(part == 1, "{name}: not one `++`");
        let [pattern, replacement] = text;
        mutants.push(Mutant {
            name,
            file,
            tests,
            pattern: pattern.trim_end().into(),
            replacement: replacement.trim_end().into(),
        });
    }
    Ok(mutants)
}

impl Mutant<'_> {
    /// The file's text with the fault inserted.
    fn apply(&self, text: &str) -> Result<String> {
        let count = text.matches(&self.pattern).count();
        ensure!(
            count == 1,
            "{}: the original text occurs {count} times in {}, and must occur once",
            self.name,
            self.file
        );
        Ok(text.replacen(&self.pattern, &self.replacement, 1))
    }
}

/// A copy of the sources, its target folder, and the log.
struct Bench {
    sources: PathBuf,
    target: PathBuf,
    log: PathBuf,
}

impl Bench {
    /// Fails unless the tests exist and pass without a fault.
    fn check_tests(&self, tests: &str) -> Result<()> {
        ensure!(
            self.test(tests, false)?,
            "`cargo test {tests}` fails without any mutant: see {}",
            self.log.display()
        );
        let log = fs::read_to_string(&self.log)?;
        let any = log
            .lines()
            .any(|line| line.starts_with("test ") && line.ends_with(" ... ok"));
        ensure!(any, "`cargo test {tests}` runs no test");
        Ok(())
    }

    /// Whether the tests detect a mutant.
    fn find(&self, mutant: &Mutant<'_>) -> Result<bool> {
        let path = self.sources.join(mutant.file);
        let text = fs::read_to_string(&path)
            .with_context(|| format!("{}: {}", mutant.name, mutant.file))?;
        fs::write(&path, mutant.apply(&text)?)?;
        let found = self.test(mutant.tests, true).and_then(|builds| {
            if !builds {
                bail!(
                    "{}: the mutant does not compile: see {}",
                    mutant.name,
                    self.log.display()
                );
            }
            Ok(!self.test(mutant.tests, false)?)
        });
        fs::write(&path, text)?;
        found
    }

    /// Runs tests, or only builds them. Returns whether cargo succeeded.
    fn test(&self, tests: &str, only_build: bool) -> Result<bool> {
        let log = File::create(&self.log)?;
        let mut command = Command::new("cargo");
        let (tests, names) = tests.split_once(" -- ").unwrap_or((tests, ""));
        command.arg("test").args(tests.split_whitespace());
        if only_build {
            command.arg("--no-run");
        } else if !names.is_empty() {
            command.arg("--").args(names.split_whitespace());
        }
        command
            .current_dir(&self.sources)
            .env("CARGO_TARGET_DIR", &self.target);
        command
            .stdin(Stdio::null())
            .stderr(log.try_clone()?)
            .stdout(log);
        if only_build {
            return Ok(process::status(&mut command)?.success());
        }
        let mut child = Supervised::spawn(&mut command, &[])?;
        let status = child.wait_until(Instant::now() + TEST_TIMEOUT)?;
        Ok(status.is_some_and(|status| status.success()))
    }
}

/// Copies the sources from `from` to `to`, without hidden files and `target`. Unchanged files keep their times, so that
/// cargo does not rebuild them.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        let (from, to) = (entry.path(), to.join(&name));
        if name == "target" || name.to_string_lossy().starts_with('.') {
            continue;
        }
        // Symbolic links are followed.
        if from.is_dir() {
            copy(&from, &to)?;
        } else {
            let bytes = fs::read(&from)?;
            if fs::read(&to).ok().as_ref() != Some(&bytes) {
                fs::write(&to, bytes)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: &str =
        "# A remark.\n\n== it never wakes\na.rs\n-p a --lib\n--\nwake();\n++\n();\n";

    #[test]
    fn parse_of_block_returns_fault_and_tests() {
        let mutants = parse(BLOCK).unwrap();
        let expected = Mutant {
            name: "it never wakes",
            file: "a.rs",
            tests: "-p a --lib",
            pattern: "wake();".into(),
            replacement: "();".into(),
        };
        assert_eq!(mutants, [expected]);
        assert_eq!(mutants[0].apply("f(); wake();").unwrap(), "f(); ();");
        for text in ["f();", "wake(); wake();"] {
            assert!(mutants[0].apply(text).is_err(), "{text}");
        }
    }

    #[test]
    fn parse_of_block_without_a_part_fails() {
        for bad in [
            "wake();",
            "== a\nb",
            "== a\nb\nc\nwake();\n",
            "== a\nb\nc\n--\nd\n",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    /// The original text of every mutant occurs once in the current sources.
    #[test]
    fn mutant_of_the_list_applies_to_its_file() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let list = fs::read_to_string(root.join(LIST)).unwrap();
        let mutants = parse(&list).unwrap();
        assert!(mutants.len() > 20);
        for mutant in &mutants {
            let text = fs::read_to_string(root.join(mutant.file)).unwrap();
            let mutated = mutant.apply(&text).unwrap();
            assert_ne!(mutated, text, "{}", mutant.name);
        }
    }
}
