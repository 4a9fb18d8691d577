//! The workspace's examples under all rules by which no call fails, with checks: each ends successfully, without a report.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "the file belongs to the tests of other programs")]
mod program;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use program::{addr, exchange_by};

/// Options of `softnic check`.
const RULES: [&str; 2] = ["--adversary", "7"];

/// Folder of the examples, built as those of the workspace.
static EXAMPLES: LazyLock<PathBuf> = LazyLock::new(|| {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--workspace"]);
    assert!(cargo.arg("--bins").status().unwrap().success());
    let command = Path::new(env!("CARGO_BIN_EXE_softnic"));
    command.parent().unwrap().to_owned()
});

/// Runs a server and a client, each an example with its arguments.
fn exchange(test: u8, server: &str, client: &str) {
    let folder = EXAMPLES.to_str().unwrap();
    let [server, client] = [server, client].map(|words| format!("{folder}/{words}"));
    let addrs = [addr(test, 2), addr(test, 3)];
    exchange_by("check", addrs, &RULES, &server, &client);
}

#[cfg_attr(without_programs, ignore = "needs libibverbs and librdmacm")]
#[test]
fn pingpongs_run_under_all_rules() {
    for kind in ["rc", "uc", "ud", "srq", "xsrq"] {
        let server = format!("{kind}_pingpong -g 0 -n 100 -p PORT");
        exchange(50, &server, &format!("{server} SERVER"));
    }
}

#[cfg_attr(without_programs, ignore = "needs libibverbs and librdmacm")]
#[test]
fn tools_of_librdmacm_run_under_all_rules() {
    for (server, client) in [
        (
            "rping -s -a SERVER -p PORT -C 20 -v",
            "rping -c -a SERVER -p PORT -C 20 -v",
        ),
        ("rdma_server -p PORT", "rdma_client -s SERVER -p PORT"),
        (
            "ucmatose -b SERVER -p PORT -C 20",
            "ucmatose -s SERVER -p PORT -C 20",
        ),
        ("udaddy -b SERVER -C 10", "udaddy -s SERVER -C 10"),
        (
            "rstream -b SERVER -p PORT -C 20",
            "rstream -s SERVER -p PORT -C 20",
        ),
    ] {
        exchange(51, server, client);
    }
}

#[cfg_attr(without_programs, ignore = "needs libibverbs and librdmacm")]
#[test]
fn tutorials_run_under_all_rules() {
    for (server, client) in [
        ("basic-server -p PORT -c 1", "basic-client SERVER PORT"),
        (
            "read-write-server -p PORT -c 1 write",
            "read-write-client write SERVER PORT",
        ),
        (
            "read-write-server -p PORT -c 1 read",
            "read-write-client read SERVER PORT",
        ),
        (
            "http-server -p PORT -c 1",
            "http-client -p PORT SERVER /bytes/100000",
        ),
    ] {
        exchange(52, server, client);
    }
}

#[cfg_attr(without_programs, ignore = "needs libibverbs and librdmacm")]
#[test]
fn file_is_transferred_under_all_rules() {
    let [from, to] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let bytes: Vec<_> = (0..=u8::MAX).cycle().take(200_000).collect();
    let file = from.path().join("file");
    fs::write(&file, &bytes).unwrap();
    let server = format!(
        "file-transfer-server -p PORT -c 1 --force -f {}",
        to.path().display()
    );
    let client = format!("file-transfer-client -p PORT SERVER {}", file.display());
    exchange(53, &server, &client);
    assert_eq!(fs::read(to.path().join("file")).unwrap(), bytes);
}
