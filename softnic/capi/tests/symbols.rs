//! The shared library's symbols and their versions, compared with the installed libraries of rdma-core.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeSet, process::Command};

/// Symbols defined by a file, with their versions, such as `ibv_open_device@@IBVERBS_1.1`, or with one `@` if the version is not
/// the default.
fn symbols(file: &str) -> BTreeSet<String> {
    let nm = Command::new("nm")
        .args(["-D", "--defined-only", "--with-symbol-versions", file])
        .output()
        .unwrap();
    assert!(nm.status.success(), "{file}: {nm:?}");
    let lines = String::from_utf8(nm.stdout).unwrap();
    let names = lines.lines().filter_map(|line| line.split(' ').next_back());
    // Versions themselves are listed, too.
    let names = names.filter(|name| name.contains('@'));
    names.map(str::to_owned).collect()
}

/// The file of a library that the system's programs load.
fn installed(name: &str) -> String {
    let loaded = Command::new("sh")
        .args(["-c", "ldd \"$(command -v rping)\""])
        // Cargo's, with folders of libraries that this build links.
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .unwrap();
    let lines = String::from_utf8(loaded.stdout).unwrap();
    let line = lines.lines().find(|line| line.contains(name)).unwrap();
    line.split_whitespace().nth(2).unwrap().to_owned()
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn all_symbols_of_both_libraries_are_defined_with_their_versions() {
    let ours = symbols(env!("CARGO_BIN_EXE_softnic-verbs"));
    // A function for providers has one default version, and those of other releases.
    let ours: BTreeSet<_> = ours.iter().map(|name| name.replace("@@", "@")).collect();
    let both = ["libibverbs.so.1", "librdmacm.so.1"];
    let theirs: BTreeSet<_> = both
        .iter()
        .flat_map(|name| symbols(&installed(name)))
        // Others are for programs linked before 2007.
        .filter(|name| name.contains("@@"))
        .map(|name| name.replace("@@", "@"))
        .collect();
    assert!(theirs.len() > 200, "{theirs:?}");
    let missing: Vec<_> = theirs.difference(&ours).collect();
    // The installed libraries may be older than the newest ones with a version in `symbols.map`.
    let version = |symbol: &String| symbol.split('@').nth(1).map(str::to_owned);
    let versions: BTreeSet<_> = theirs.iter().map(version).collect();
    let more = ours.difference(&theirs);
    let more: Vec<_> = more
        .filter(|symbol| versions.contains(&version(symbol)))
        .collect();
    assert!(
        missing.is_empty() && more.is_empty(),
        "missing: {missing:?}, more: {more:?}"
    );
}
