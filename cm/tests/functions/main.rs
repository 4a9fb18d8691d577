//! Every function of librdmacm has a safe counterpart, documented under C's name, and a test.

#![expect(clippy::panic, reason = "a test fails by panicking")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// All files below a folder of the workspace.
fn sources(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("..")
            .join(folder),
    ];
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

fn text_of(folder: &str) -> String {
    let texts = sources(folder).into_iter().map(fs::read_to_string);
    texts.map(|text| text.expect("it is text")).collect()
}

/// Functions of librdmacm, except those of `ib.h` and those added after rdma-core 44.
fn functions() -> BTreeSet<String> {
    let found = ["rdmacm-sys/src/bindings.rs", "rdmacm-sys/src/inline"]
        .map(|path| {
            let whole = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
            if whole.is_dir() {
                text_of(path)
            } else {
                fs::read_to_string(whole).expect("it is text")
            }
        })
        .concat();
    // A function of the bindings, or the first line of an inline function's documentation.
    let name = |line: &str| {
        let line = line.trim_start();
        let after = line
            .strip_prefix("pub fn rdma_")
            .or_else(|| line.strip_prefix("/// `rdma_"))?;
        Some(format!("rdma_{}", after.split_once('(')?.0))
    };
    found.lines().filter_map(name).collect()
}

/// Rows of the table: the C function, the Rust counterpart, and the test.
fn table() -> Vec<[String; 3]> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("FUNCTIONS.md");
    let text = fs::read_to_string(path).expect("the table is there");
    let rows = text.lines().filter(|line| line.starts_with("| `rdma_"));
    rows.map(|row| {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [c, here, test] = cells[..] else {
            panic!("a row has three cells: {row}")
        };
        [c, here, test].map(|cell| cell.trim_matches('`').to_owned())
    })
    .collect()
}

#[test]
fn function_table_is_complete() {
    let functions = functions();
    // 38 and 2 of `rdma_cma.h`, and 3 and 16 of `rdma_verbs.h`.
    assert_eq!(functions.len(), 59, "{functions:?}");
    let listed: BTreeSet<_> = table().into_iter().map(|[c, ..]| c).collect();
    assert_eq!(listed, functions);
}

#[test]
fn documentation_names_every_function() {
    let source = text_of("cm/src");
    let missing: Vec<_> = functions()
        .into_iter()
        // C's way to report an error; here `Error` has this role.
        .filter(|name| name != "rdma_seterrno")
        .filter(|name| !source.contains(&format!("#[doc(alias = \"{name}\")]")))
        .collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn function_table_names_existing_tests() {
    let tests = text_of("cm/tests/device") + &text_of("cm/src");
    let missing: Vec<_> = table()
        .into_iter()
        .filter(|[.., test]| {
            let name = test.rsplit("::").next().unwrap_or(test);
            !tests.contains(&format!("fn {name}()"))
        })
        .collect();
    assert_eq!(missing, [[""; 3]; 0]);
}
