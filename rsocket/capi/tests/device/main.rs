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
    io::{self, BufRead, BufReader, Read},
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use rsocket::Listener;

/// Implementation of rsockets used by a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Library {
    Ours,
    Librdmacm,
}

use Library::{Librdmacm, Ours};

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
    let library = env!("CARGO_BIN_EXE_librsocket");
    fs::copy(library, folder.join("librsocket.so")).unwrap();
}

/// Builds a C program.
fn built(source: &str, library: Library) -> Command {
    install();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = folder().join(format!("{source}-{library:?}"));
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
    match library {
        Ours => compiler
            .arg("-I")
            .arg(root.join("include"))
            .arg("-DHEADER=\"rsocket.h\"")
            .arg("-L")
            .arg(folder())
            .arg("-lrsocket"),
        Librdmacm => compiler.args(["-DHEADER=<rdma/rsocket.h>", "-lrdmacm"]),
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
    for library in [Ours, Librdmacm] {
        let ran = built("includes.c", library).status().unwrap();
        assert!(ran.success(), "{library:?}: {ran}");
    }
}

#[test]
fn c_program_runs_as_with_librdmacm() {
    let (program, output) = start(built("program.c", Ours).arg(address()));
    assert_eq!(check(program, output), "");
}

/// Receives from a program that exits without closing its socket.
fn read_from_exiting(library: Library) -> io::Result<usize> {
    let ip: IpAddr = address().parse().unwrap();
    let listener = Listener::bind(SocketAddr::new(ip, 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let mut client = built("exits.c", library);
    let mut client = client.args([address(), port]).spawn().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let end = stream.read_to_end(&mut Vec::new());
    assert!(client.wait().unwrap().success());
    end
}

#[test]
fn return_from_main_without_rclose_delivers_all_data_unlike_librdmacm() {
    assert_eq!(read_from_exiting(Ours).unwrap(), 3_000_000);
    let err = read_from_exiting(Librdmacm).unwrap_err();
    assert_eq!(err.kind(), io::ErrorKind::ConnectionReset);
}

/// Runs a part as server and client. Returns the client's output.
fn play(part: &str, server: Library, client: Library) -> String {
    let library = server;
    let mut server = built("peers.c", library);
    let (mut server, mut output) = start(server.args(["server", &address(), part]));
    let mut port = String::new();
    output.read_line(&mut port).unwrap();
    let mut client = built("peers.c", client);
    let (client, result) = start(client.args(["client", &address(), port.trim(), part]));
    let result = check(client, result);
    match library {
        Ours => assert_eq!(check(server, output), ""),
        // After several simultaneous disconnects, rdma-core 44 may wait for an event already taken.
        Librdmacm => {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }
    result
}

/// Two threads for each end of each connection, also against librdmacm.
#[test]
fn threaded_c_program_interoperates_with_librdmacm() {
    for (server, client) in [(Ours, Ours), (Ours, Librdmacm), (Librdmacm, Ours)] {
        assert_eq!(play("threads", server, client), "", "{server:?} {client:?}");
    }
}

/// librdmacm does not return the credits of advertised mappings, so the sender stalls; this library
/// does.
#[test]
fn repeated_mappings_return_credits_unlike_librdmacm() {
    assert_eq!(
        play("mappings", Librdmacm, Ours),
        "stalls after many mappings\n"
    );
    assert_eq!(
        play("mappings", Ours, Ours),
        "continues after many mappings\n"
    );
}
