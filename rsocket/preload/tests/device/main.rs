//! Programs that know nothing of RDMA, over a real device.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// rdma-core's own library for the same purpose.
const THEIRS: &str = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so";

/// A program that is made to use rsockets, or not.
#[derive(Clone, Copy, Debug)]
enum Preload {
    Ours,
    Theirs,
    Nothing,
}

impl Preload {
    fn load(self, mut program: Command) -> Command {
        program.arg(address());
        match self {
            // It is built beside this test program.
            Self::Ours => {
                let own = env::current_exe().unwrap();
                program.env("LD_PRELOAD", own.with_file_name("librspreload.so"));
            }
            Self::Theirs => {
                program.env("LD_PRELOAD", THEIRS);
            }
            Self::Nothing => {}
        }
        program
    }
}

fn source(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    folder.join("tests/device").join(name)
}

fn python(script: &str) -> Command {
    let mut python = Command::new("/usr/bin/python3");
    python.arg(source(script));
    python
}

/// A client that makes its socket without flags, which rdma-core 44 does not take for its own.
fn c_client() -> Command {
    let program = env::temp_dir().join("rspreload-client");
    let built = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-o"])
        .arg(&program)
        .arg(source("client.c"))
        .status()
        .unwrap();
    assert!(built.success());
    Command::new(program)
}

fn address() -> String {
    env::var("A").expect("this test runs in the guest: `cargo xtask test`")
}

/// A server that is killed if it does not end by itself.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// How many packets the device has sent.
fn packets() -> u64 {
    let counter = PathBuf::from("/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts");
    fs::read_to_string(counter).unwrap().trim().parse().unwrap()
}

/// Lets a client get back what it sends; returns the packets that the device has sent meanwhile.
fn echo(server: Preload, client: Preload, program: Command) -> u64 {
    let before = packets();
    let mut server = server.load(python("server.py"));
    let mut server = Server(server.stdout(Stdio::piped()).spawn().unwrap());
    let mut port = String::new();
    let mut said = BufReader::new(server.0.stdout.take().unwrap());
    said.read_line(&mut port).unwrap();
    let ran = client.load(program).arg(port.trim()).output().unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{}: {errors}", ran.status);
    assert_eq!(ran.stdout, b"all is well\n");
    assert!(server.0.wait().unwrap().success());
    packets() - before
}

/// No packet has more than 4096 bytes, and each client sends that many and gets them back.
const LEAST: u64 = 2 * 1_000_000 / 4096;

/// T-PL1, T-PL4
#[test]
fn programs_that_know_nothing_of_it_use_rdma() {
    let client = python("client.py");
    assert!(echo(Preload::Ours, Preload::Ours, client) >= LEAST);
}

/// T-X12
#[test]
fn the_other_end_may_be_the_original() {
    assert!(echo(Preload::Ours, Preload::Theirs, c_client()) >= LEAST);
}

/// T-PL2
#[test]
fn whoever_finds_nobody_turns_to_tcp() {
    for client in [python("client.py"), c_client()] {
        assert!(echo(Preload::Nothing, Preload::Ours, client) < LEAST);
    }
}

/// T-PL2: so it is for datagrams, whose type stays what it was.
#[test]
fn datagrams_use_rdma_where_it_leads() {
    let before = packets();
    let program = python("datagrams.py");
    let ran = Preload::Ours.load(program).output().unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{}: {errors}", ran.status);
    assert_eq!(ran.stdout, b"all is well\n");
    // Five hundred there and back, but for the first few.
    assert!(packets() - before >= 900);
}
