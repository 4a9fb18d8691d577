//! C programs with the header and the library, over a real device.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

#[path = "../option_table/mod.rs"]
mod option_table;
mod options;

use std::{
    env, fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

/// Implementation of rsockets used by a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Ours,
    /// librdmacm.
    Theirs,
}

use Whose::{Ours, Theirs};

fn address() -> String {
    env::var("A").expect("these tests run in the guest: `cargo xtask test`")
}

/// Folder of the library under the name linked by programs.
fn folder() -> PathBuf {
    env::temp_dir().join("rsocket-capi")
}

fn install() {
    let folder = folder();
    // Private to this guest; another test may be using the library.
    if folder.exists() {
        return;
    }
    fs::create_dir_all(&folder).unwrap();
    // Built in the same folder as this test program.
    let library = env::current_exe()
        .unwrap()
        .with_file_name("librsocket_capi.so");
    fs::copy(&library, folder.join("librsocket.so")).unwrap();
}

/// Builds a C program.
fn built(source: &str, whose: Whose) -> Command {
    install();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = folder().join(format!("{source}-{whose:?}"));
    let mut program = Command::new(&path);
    program.env("LD_LIBRARY_PATH", folder());
    if path.exists() {
        return program;
    }
    let mut compiler = Command::new("cc");
    compiler
        .args([
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
            "-o",
        ])
        .arg(&path)
        .arg(root.join("tests/device").join(source));
    match whose {
        Ours => compiler
            .arg("-I")
            .arg(root.join("include"))
            .arg("-DHEADER=\"rsocket.h\"")
            .arg("-L")
            .arg(folder())
            .arg("-lrsocket"),
        Theirs => compiler.args(["-DHEADER=<rdma/rsocket.h>", "-lrdmacm"]),
    };
    assert!(compiler.status().unwrap().success());
    program
}

/// Waits for a program, checks its status, and returns the rest of its output.
fn check(mut program: Child, mut output: impl Read) -> String {
    let mut all = String::new();
    output.read_to_string(&mut all).unwrap();
    let mut errors = String::new();
    let stderr = program.stderr.take();
    stderr.unwrap().read_to_string(&mut errors).unwrap();
    let status = program.wait().unwrap();
    assert!(status.success(), "{status}: {errors}");
    let result = all.strip_suffix("all is well\n");
    result.expect("not all is well").to_owned()
}

fn start(program: &mut Command) -> (Child, BufReader<ChildStdout>) {
    program.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut program = program.spawn().unwrap();
    let output = BufReader::new(program.stdout.take().unwrap());
    (program, output)
}

/// Programs get these headers from librdmacm's header without further includes.
#[test]
fn header_includes_those_of_librdmacm() {
    for whose in [Ours, Theirs] {
        let ran = built("includes.c", whose).status().unwrap();
        assert!(ran.success(), "{whose:?}: {ran}");
    }
}

#[test]
fn c_program_runs_as_with_librdmacm() {
    let (program, output) = start(built("program.c", Ours).arg(address()));
    assert_eq!(check(program, output), "");
}

/// Runs a part as server and client. Returns the client's output.
fn play(part: &str, server: Whose, client: Whose) -> String {
    let whose = server;
    let mut server = built("peers.c", whose);
    let (mut server, mut output) = start(server.args(["server", &address(), part]));
    let mut port = String::new();
    output.read_line(&mut port).unwrap();
    let mut client = built("peers.c", client);
    let (client, result) = start(client.args(["client", &address(), port.trim(), part]));
    let result = check(client, result);
    match whose {
        Ours => assert_eq!(check(server, output), ""),
        // After several simultaneous disconnects, rdma-core 44 may wait for an event already taken.
        Theirs => {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }
    result
}

/// T-X13: two threads for each end of each connection, also against librdmacm.
#[test]
fn threaded_c_program_interoperates_with_librdmacm() {
    for (server, client) in [(Ours, Ours), (Ours, Theirs), (Theirs, Ours)] {
        assert_eq!(play("threads", server, client), "", "{server:?} {client:?}");
    }
}

/// T-X9: P7. librdmacm does not return the credits of advertised mappings, so the sender stalls; this library
/// does.
#[test]
fn repeated_mappings_return_credits_unlike_librdmacm() {
    assert_eq!(
        play("mappings", Theirs, Ours),
        "stalls after many mappings\n"
    );
    assert_eq!(
        play("mappings", Ours, Ours),
        "continues after many mappings\n"
    );
}
