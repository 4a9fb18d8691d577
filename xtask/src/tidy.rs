//! `cargo xtask tidy`: the project's rules not covered by a lint.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cargo_metadata::{DependencyKind, Package};

use crate::workspace::Workspace;
use crate::{
    assumptions, builders, conflict_markers, dependencies, document_paths, documented_limits,
    identifiers, miri, packages, prose, surface, test, test_names,
};

/// Maximum number of lines of a file, except generated files.
const MAX_LINES: usize = 800;

/// Exceptions from [`MAX_LINES`], each with the reason.
const LONG_FILES: &[(&str, &str)] = &[];

/// Generated files, exempt from all rules.
pub(crate) const GENERATED: &[&str] = &[
    "ibverbs-sys/src/bindings.rs",
    "rdmacm-sys/src/bindings.rs",
    "efa-sys/src/bindings.rs",
    "mlx5-sys/src/bindings.rs",
];

/// File names without information about the contents.
const EMPTY_NAMES: [&str; 5] = ["util.rs", "utils.rs", "common.rs", "types.rs", "helpers.rs"];

/// Folders of the protocol cores, which do no I/O: no `unsafe`, no clock, no file descriptors, no verbs.
const SANS_IO: [&str; 5] = [
    "rsocket/proto/src/",
    "rds/proto/src/",
    "softnic/src/wire/",
    "softnic/src/engine/",
    "softnic/src/cm/",
];
const NOT_SANS_IO: [&str; 8] = [
    "unsafe ",
    "::now(",
    "std::os::fd",
    "std::net::Tcp",
    "std::net::Udp",
    "std::thread",
    "verbs::",
    "ffi::",
];

/// The crates without I/O, and the only dependencies of those crates outside of tests.
const SANS_IO_CRATES: [&str; 2] = ["rdma-rsocket-proto", "rdma-rds-proto"];
const SANS_IO_DEPENDENCIES: [&str; 2] = ["bitflags", "fastrand"];

/// The valgrind suppressions, whose `fun:` lines name tests.
const SUPPRESSIONS: &str = "ci/valgrind.supp";

/// The table of soundness holes and their tests.
const HOLES: &str = "verbs/tests/holes.md";

/// Tables of softnic's rules, which name tests by their file, below the folder of tests or of those of the engine.
const RULES: [&str; 2] = ["softnic/TRANSPORT.md", "softnic/LINUX.md"];
/// Minimum number of rows with tests in [`HOLES`] and in each of [`RULES`].
const MIN_ROWS: [usize; 3] = [1, 41, 21];
const TESTS_OF_RULES: [&str; 2] = ["softnic/tests", "softnic/tests/engine"];

/// Sources of the libraries with builders.
const LIBRARIES: [&str; 4] = ["verbs/src/", "cm/src/", "rsocket/src/", "rds/src/"];

/// Checks the Rust files, documents and packages of the workspace, and the tables of holes and assumptions.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let root = workspace.root();
    let read = |file: &Path| read(root, file);
    let mut complaints = Vec::new();
    let (mut tests, mut exceptions) = (HashSet::new(), HashSet::new());
    let (mut paths, mut citations) = (Vec::new(), Vec::new());
    let mut names = identifiers::Names::default();
    for file in files(root, ".rs")? {
        let (name, text) = (file.to_string_lossy(), read(&file)?);
        complaints.extend(check(&name, &text));
        complaints.extend(surface::hiding_imports(&name, &text));
        names.add(&name, &text);
        citations.extend(assumptions::citations(&name, &text));
        if LIBRARIES.iter().any(|library| name.starts_with(library)) {
            complaints.extend(builders::other_ends(&name, &text));
        }
        complaints.extend(prose::check(&name, &text, &mut exceptions));
        paths.extend(
            test_names::in_file(&text)
                .iter()
                .map(|test| test.path(&name)),
        );
        tests.extend(tests_in(&name, &text));
    }
    complaints.extend(names.complaints());
    let all = files(root, "")?;
    for file in files(root, ".md")? {
        let (name, text) = (file.to_string_lossy(), read(&file)?);
        complaints.extend(document_paths::dead(&name, &text, &all));
        complaints.extend(surface::hiding_imports(&name, &text));
        complaints.extend(prose::check(&name, &text, &mut exceptions));
    }
    let architecture = read(Path::new(document_paths::ARCHITECTURE))?;
    complaints.extend(document_paths::unnamed(&architecture, &all));
    complaints.extend(conflict_markers::complaints(root)?);
    complaints.extend(prose::unused_exceptions(&exceptions));
    let selections = [test::selections(), miri::selections()].concat();
    complaints.extend(test_names::empty_selections(&selections, &paths));
    let suppressions = read(Path::new(SUPPRESSIONS))?;
    complaints.extend(test_names::empty_suppressions(&suppressions, &paths));
    complaints.extend(table_rules(root, &tests, &paths, &citations)?);
    let verbs = read(Path::new(surface::ROOT))?;
    complaints.extend(surface::crowded_root(&verbs));
    let source = |file: &str| fs::read_to_string(root.join("verbs/src").join(file)).ok();
    complaints.extend(surface::names_of_two_modules(&verbs, source));
    let dependencies = read(Path::new(dependencies::FILE))?;
    complaints.extend(package_rules(root, workspace.packages(), &dependencies)?);
    if !complaints.is_empty() {
        bail!("\n{}", complaints.join("\n"));
    }
    Ok(())
}

/// The violations of tables that name tests: of holes, rules, limits and assumptions.
fn table_rules(
    root: &Path,
    tests: &HashSet<String>,
    paths: &[String],
    citations: &[assumptions::Citation],
) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for (file, min) in [HOLES, RULES[0], RULES[1]].into_iter().zip(MIN_ROWS) {
        let table = read(root, Path::new(file))?;
        let exists = |test: &str| match file {
            HOLES => tests.contains(test),
            _ => is_of_rule(test, paths),
        };
        complaints.extend(absent_tests(file, &table, min, exists));
    }
    complaints.extend(documented_limits::differing(
        &read(root, Path::new(documented_limits::DOCUMENT))?,
        &read(root, Path::new(documented_limits::LIST))?,
        tests,
        |file| fs::read_to_string(root.join(file)).ok(),
    ));
    let table = read(root, Path::new(assumptions::FILE))?;
    complaints.extend(assumptions::complaints(&table, tests, citations));
    Ok(complaints)
}

fn read(root: &Path, file: &Path) -> Result<String> {
    fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {}", file.display()))
}

/// The violations of packages; `dependencies` is the table of dependencies.
fn package_rules(root: &Path, members: &[Package], dependencies: &str) -> Result<Vec<String>> {
    let mut complaints = dependencies::complaints(dependencies, members);
    complaints.extend(partial_docs(members));
    complaints.extend(packages::complaints(root, members)?);
    complaints.extend(io_dependencies(members));
    Ok(complaints)
}

/// The violations in a file, as `FILE:LINE: MESSAGE`.
fn check(name: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut complain = |line: usize, what: &str| complaints.push(format!("{name}:{line}: {what}"));
    if GENERATED.contains(&name) {
        return Vec::new();
    }
    if EMPTY_NAMES
        .iter()
        .any(|empty| name.ends_with(&format!("/{empty}")))
    {
        complain(
            1,
            "the file name says nothing about the contents: name the file after its main type or topic",
        );
    }
    if !starts_with_header(text) {
        complain(1, "no `//!` header: describe the file in its first line");
    }
    let lines = text.lines().count();
    if lines > MAX_LINES && !LONG_FILES.iter().any(|(long, _)| *long == name) {
        complain(lines, "longer than 800 lines");
    }
    let sans_io = SANS_IO.iter().any(|folder| name.starts_with(folder));
    let example = name.starts_with("examples/");
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        // Written in parts, so that this file passes.
        if [concat!("TO", "DO"), concat!("FIX", "ME")]
            .iter()
            .any(|mark| line.contains(mark))
        {
            complain(number, "unfinished work: do it now, or file an issue");
        }
        let code = line.split("//").next().unwrap_or_default();
        let io = NOT_SANS_IO
            .iter()
            .find(|word| code.contains(*word))
            .filter(|_| sans_io);
        if let Some(io) = io {
            complain(
                number,
                &format!("`{}` in a protocol core, which does no I/O", io.trim()),
            );
        }
        if example && has_word(code, "unsafe") {
            complain(number, "unsafe code in an example");
        }
        if let Some(id) = id_of_case(line) {
            let what = format!("`{id}` is defined in no document of this tree: say it in words");
            complain(number, &what);
        }
    }
    complaints.extend(unreadable_errors(name, text));
    complaints
}

/// Complains about error types whose `Debug`, which `unwrap` and `fn main() -> Result` print, does not read as their
/// `Display`.
fn unreadable_errors(name: &str, text: &str) -> Vec<String> {
    let implemented = |line: &str| {
        let (head, subject) = line.strip_prefix("impl")?.split_once("Error for ")?;
        let is_error = head.trim_end().is_empty() || head.ends_with([' ', ':']);
        let end = subject.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
        is_error.then(|| subject[..end].to_owned())
    };
    let reads = |subject: &str| {
        let of_subject = |line: &&str| {
            line.starts_with("impl")
                && line
                    .split_once("Debug for ")
                    .is_some_and(|(_, debugged)| debugged.starts_with(subject))
        };
        let body = text.lines().skip_while(|line| !of_subject(line)).skip(1);
        let mut body = body.take_while(|line| *line != "}");
        body.any(|line| line.contains("Display::fmt("))
    };
    text.lines()
        .enumerate()
        .filter_map(|(index, line)| Some((index + 1, implemented(line)?)))
        .filter(|(_, subject)| !reads(subject))
        .map(|(number, subject)| {
            format!("{name}:{number}: `Debug` of the error `{subject}` does not call its `Display`")
        })
        .collect()
}

/// Complains about dependencies of crates without I/O, except test-only ones, that are not in
/// [`SANS_IO_DEPENDENCIES`].
fn io_dependencies(packages: &[Package]) -> Vec<String> {
    let sans_io = packages
        .iter()
        .filter(|package| SANS_IO_CRATES.contains(&package.name.as_str()));
    let dependencies = sans_io.flat_map(|package| {
        package
            .dependencies
            .iter()
            .map(move |dependency| (package, dependency))
    });
    dependencies
        .filter(|(_, dependency)| dependency.kind != DependencyKind::Development)
        .filter(|(_, dependency)| !SANS_IO_DEPENDENCIES.contains(&dependency.name.as_str()))
        .map(|(package, dependency)| {
            format!(
                "{}: the dependency `{}` in a crate without I/O",
                package.manifest_path, dependency.name
            )
        })
        .collect()
}

/// Names of a file's functions, and the file's own name if the file must not compile.
fn tests_in(name: &str, text: &str) -> Vec<String> {
    let functions = text.lines().filter_map(|line| {
        let (name, _) = line.trim_start().strip_prefix("fn ")?.split_once('(')?;
        Some(name.to_owned())
    });
    let misuse = name
        .strip_prefix("verbs/tests/compile_fail/")
        .and_then(|name| name.strip_suffix(".rs"));
    functions.chain(misuse.map(str::to_owned)).collect()
}

/// Reports tests in the last columns of tables, `test` or `tests`, that do not exist, rows without a test, and fewer than `min`
/// rows.
fn absent_tests(file: &str, text: &str, min: usize, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let tables = match tables::all(text) {
        Ok(tables) => tables,
        Err(error) => return vec![format!("{file}:{error}")],
    };
    let is_of_tests = |table: &tables::Table<'_>| {
        let last = table.columns.last();
        last.is_some_and(|last| ["test", "tests"].contains(last))
    };
    let rows = tables
        .into_iter()
        .filter(is_of_tests)
        .flat_map(|table| table.rows);
    let rows: Vec<_> = rows.collect();
    let mut complaints = Vec::new();
    if rows.len() < min {
        let count = rows.len();
        complaints.push(format!("{file}: {count} rows with tests, fewer than {min}"));
    }
    for row in rows {
        let named: Vec<_> = row
            .cells
            .last()
            .into_iter()
            .flat_map(|cell| tables::quoted(cell))
            .collect();
        if named.is_empty() {
            complaints.push(format!("{file}:{}: no test", row.line));
        }
        let absent = named.into_iter().filter(|test| !exists(test));
        complaints.extend(absent.map(|test| format!("{file}:{}: no test `{test}`", row.line)));
    }
    complaints
}

/// Whether a test of [`RULES`], `FILE::NAME`, is one of `paths`.
fn is_of_rule(test: &str, paths: &[String]) -> bool {
    let folder = TESTS_OF_RULES[usize::from(!test.contains('/'))];
    let path = document_paths::joined(Path::new(folder), test);
    paths.contains(&path.to_string_lossy().replace('/', "::"))
}

/// Complains about published packages with features whose documentation on docs.rs lacks some of the features.
fn partial_docs(packages: &[Package]) -> Vec<String> {
    let is_published =
        |package: &&Package| package.publish.as_ref().is_none_or(|to| !to.is_empty());
    let has_all = |package: &Package| {
        let all = package.metadata.pointer("/docs/rs/all-features");
        all.is_some_and(|all| all == true)
    };
    packages
        .iter()
        .filter(is_published)
        .filter(|package| !package.features.is_empty() && !has_all(package))
        .map(|package| {
            format!(
                "{}: no `[package.metadata.docs.rs] all-features = true`: the documentation lacks optional features",
                package.manifest_path
            )
        })
        .collect()
}

/// Whether the first line, after attributes and blank lines, begins with `//!`.
fn starts_with_header(text: &str) -> bool {
    let mut lines = text
        .lines()
        .map(str::trim_start)
        .filter(|line| !line.is_empty());
    lines
        .find(|line| !line.starts_with("#!"))
        .is_some_and(|line| line.starts_with("//!"))
}

/// An id of a list of cases, in a line: a letter, a hyphen, one to four letters and one to three digits.
fn id_of_case(line: &str) -> Option<&str> {
    let is_id = |word: &&str| {
        let Some((list, case)) = word.split_once('-') else {
            return false;
        };
        let digits = case.trim_start_matches(|c: char| c.is_ascii_uppercase());
        let letters = case.len() - digits.len();
        list.len() == 1
            && list.chars().all(|c| c.is_ascii_uppercase())
            && (1..=4).contains(&letters)
            && (1..=3).contains(&digits.len())
            && digits.chars().all(|c| c.is_ascii_digit())
    };
    line.split(|c: char| !(c.is_alphanumeric() || c == '-'))
        .find(is_id)
}

fn has_word(code: &str, word: &str) -> bool {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .any(|found| found == word)
}

/// The files below a folder whose names end like this, sorted, relative to the folder.
pub(crate) fn files(root: &Path, end: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    collect(root, Path::new(""), end, &mut files)?;
    files.sort();
    Ok(files)
}

/// The files in a folder, also a hidden one, sorted, relative to the root.
pub(crate) fn files_in(root: &Path, folder: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    collect(root, Path::new(folder), "", &mut files)?;
    files.sort();
    Ok(files)
}

fn collect(root: &Path, folder: &Path, end: &str, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if entry.file_type()?.is_dir() {
            if name != "target" && !name.starts_with('.') {
                collect(root, &path, end, files)?;
            }
        } else if name.ends_with(end) {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_after_attributes_is_accepted() {
        assert!(starts_with_header("//! What it is.\n"));
        assert!(starts_with_header(
            "#![forbid(unsafe_code)]\n\n//! What it is.\n"
        ));
        assert!(!starts_with_header("use std::fs;\n//! Late.\n"));
        assert!(!starts_with_header(""));
    }

    #[test]
    fn file_without_violation_passes() {
        assert!(
            check(
                "verbs/src/pd.rs",
                "//! Protection domains.\nlet unsafety = 1;\n"
            )
            .is_empty()
        );
    }

    #[test]
    fn errors_whose_debug_does_not_read_as_display_are_found() {
        let complaints = |text: &str| unreadable_errors("x.rs", text);
        let derived = "#[derive(Debug)]\nstruct E;\nimpl std::error::Error for E {}\n";
        assert_eq!(
            complaints(derived),
            ["x.rs:3: `Debug` of the error `E` does not call its `Display`"]
        );
        let other =
            "impl fmt::Debug for E {\n    f.write_str(\"E\")\n}\nimpl<T> Error for E<T> {\n}\n";
        assert_eq!(complaints(other).len(), 1);
        let delegates = "impl<T> fmt::Debug for E<T> {\n    fmt::Display::fmt(self, f)\n}\nimpl Error for E {}\n";
        assert_eq!(complaints(delegates), [""; 0]);
        assert_eq!(
            complaints("impl From<E> for Error {\n}\nimpl From<verbs::Error> for E {}\n"),
            [""; 0]
        );
    }

    #[test]
    fn holes_with_absent_or_no_test_are_reported() {
        let mut tests = HashSet::new();
        tests.extend(tests_in(
            "verbs/tests/device/x.rs",
            "#[test]\nfn it_is_closed() {",
        ));
        tests.extend(tests_in(
            "verbs/tests/compile_fail/misuse.rs",
            "fn main() {}",
        ));
        let table = "| hole | test |\n|---|---|\n| a `b` | `it_is_closed`, `misuse` |\n";
        let absent = |table: &str| absent_tests(HOLES, table, 1, |test| tests.contains(test));
        assert_eq!(absent(table), [""; 0]);
        assert_eq!(absent(&format!("{table}\n{table}")), [""; 0]);
        let open = format!("{table}| c | `it_is_open` |\n| d | nothing |\n");
        assert_eq!(
            absent(&open),
            [
                "verbs/tests/holes.md:4: no test `it_is_open`",
                "verbs/tests/holes.md:5: no test"
            ]
        );
        let renamed = table.replace("test", "check");
        let complaint = "verbs/tests/holes.md: 0 rows with tests, fewer than 1";
        assert_eq!(absent(&renamed), [complaint]);
    }

    #[test]
    fn tests_of_rules_are_found_by_their_file() {
        let paths = [
            "softnic::tests::engine::hostile::frame_is_dropped",
            "softnic::capi::tests::two_hosts::main::mtu_is_known",
        ];
        let paths = paths.map(str::to_owned);
        for (test, exists) in [
            ("hostile::frame_is_dropped", true),
            ("engine/hostile::frame_is_dropped", true),
            ("../capi/tests/two_hosts/main::mtu_is_known", true),
            ("frame_is_dropped", false),
            ("hostile::frame_is_dropped_again", false),
            ("wire/hostile::frame_is_dropped", false),
        ] {
            assert_eq!(is_of_rule(test, &paths), exists, "{test}");
        }
    }

    #[test]
    fn package_with_partly_documented_features_is_reported() {
        let package = |features: &str, publish: &str, metadata: &str| -> Package {
            let json = format!(
                r#"{{"name": "x", "version": "1.0.0", "id": "x", "dependencies": [], "targets": [],
                    "manifest_path": "/x/Cargo.toml", "edition": "2024",
                    "features": {features}, "publish": {publish}, "metadata": {metadata}}}"#
            );
            serde_json::from_str(&json).unwrap()
        };
        let some = r#"{"tokio": []}"#;
        let all = r#"{"docs": {"rs": {"all-features": true}}}"#;
        let part = r#"{"docs": {"rs": {"all-features": false}}}"#;
        let other = r#"{"docs": {"rs": {"targets": []}}}"#;
        for (features, publish, metadata) in [
            (some, "null", "null"),
            (some, "null", part),
            (some, "null", other),
            (some, r#"["registry"]"#, "null"),
        ] {
            let complaints = partial_docs(&[package(features, publish, metadata)]);
            assert_eq!(complaints.len(), 1, "{features} {publish} {metadata}");
            assert!(complaints[0].starts_with("/x/Cargo.toml: "));
        }
        for (features, publish, metadata) in [
            (some, "null", all),
            (some, "[]", "null"),
            ("{}", "null", "null"),
        ] {
            let complaints = partial_docs(&[package(features, publish, metadata)]);
            assert_eq!(complaints, [""; 0]);
        }
    }

    #[test]
    fn dependency_with_io_in_protocol_crate_is_reported() {
        let package = |name: &str, dependency: &str, kind: &str| -> Package {
            let json = format!(
                r#"{{"name": "{name}", "version": "1.0.0", "id": "x", "targets": [], "features": {{}},
                    "manifest_path": "/x/Cargo.toml", "edition": "2024",
                    "dependencies": [{{"name": "{dependency}", "req": "*", "kind": {kind},
                        "optional": false, "uses_default_features": true, "features": []}}]}}"#
            );
            serde_json::from_str(&json).unwrap()
        };
        for (name, dependency, kind) in [
            ("rdma-rds-proto", "fastrand", "null"),
            ("rdma-rds-proto", "libc", r#""dev""#),
            ("rdma-rds", "libc", "null"),
        ] {
            let complaints = io_dependencies(&[package(name, dependency, kind)]);
            assert_eq!(complaints, [""; 0]);
        }
        for kind in ["null", r#""build""#] {
            assert_eq!(
                io_dependencies(&[package("rdma-rds-proto", "libc", kind)]),
                ["/x/Cargo.toml: the dependency `libc` in a crate without I/O"]
            );
        }
    }

    #[test]
    fn file_with_each_violation_is_reported() {
        let complaints = |name: &str, text: &str| check(name, text).len();
        assert_eq!(complaints("verbs/src/util.rs", "//! Things.\n"), 1);
        assert_eq!(complaints("verbs/src/pd.rs", "fn f() {}\n"), 1);
        assert_eq!(
            complaints("verbs/src/pd.rs", concat!("//! X.\n// TO", "DO: later\n")),
            1
        );
        assert_eq!(
            complaints(
                "verbs/src/pd.rs",
                &format!("//! X.\n{}", "\n".repeat(MAX_LINES))
            ),
            1
        );
        assert_eq!(
            complaints("rds/proto/src/rx.rs", "//! X.\nlet t = Instant::now();\n"),
            1
        );
        assert_eq!(
            complaints("examples/src/bin/x.rs", "//! X.\nunsafe { f() }\n"),
            1
        );
        assert_eq!(
            complaints("examples/src/bin/x.rs", "//! X.\n// never unsafe\n"),
            0
        );
    }

    #[test]
    fn ids_of_cases_are_reported() {
        let complaints = |id: &str| check("x.rs", &format!("//! Case {id}: text.\n")).len();
        for id in [
            concat!("T-", "DT1"),
            concat!("X-", "F09"),
            concat!("L-", "API12"),
        ] {
            assert_eq!(complaints(id), 1, "{id}");
        }
        for text in ["ISO-8859", "A-1", "AF_X25", "RFC-5044", "X-FF", "Q-X12b"] {
            assert_eq!(complaints(text), 0, "{text}");
        }
    }
}
