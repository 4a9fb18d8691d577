//! Programs in languages with their own I/O runtime.

use std::{env, process::Command};

use crate::{LEAST, Preload, address, c_program, packets, python, run, source};

/// 27 checks with the same results as over TCP.
#[test]
fn python_sockets_behave_as_over_tcp() {
    let before = packets();
    let [over_rdma, over_tcp] = lines_of("semantics.py", None);
    assert!(packets() > before);
    let failed: Vec<_> = over_rdma
        .iter()
        .filter(|line| line.contains("FAIL"))
        .collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(over_rdma.len(), 27, "{over_rdma:?}");
    assert_eq!(difference(&over_rdma, &over_tcp), None);
}

/// The first line of RDMA and of TCP that differ. Both are empty if only the numbers of lines differ.
fn difference<'l>(over_rdma: &'l [String], over_tcp: &'l [String]) -> Option<(&'l str, &'l str)> {
    let mut pairs = over_rdma.iter().zip(over_tcp);
    let pair = pairs.find(|(one, other)| one != other);
    let lens = (over_rdma.len() != over_tcp.len()).then_some(("", ""));
    pair.map(|(one, other)| (one.as_str(), other.as_str()))
        .or(lens)
}

/// The lines printed by a script over RDMA and over TCP. Each line is a call with its result.
fn lines_of(script: &str, count: Option<u32>) -> [Vec<String>; 2] {
    [Preload::Ours, Preload::Nothing].map(|preload| {
        let mut program = python(script);
        program.args(count.map(|count| count.to_string()));
        let ran = preload.load(program).output().unwrap();
        let errors = String::from_utf8_lossy(&ran.stderr);
        let lines = String::from_utf8_lossy(&ran.stdout);
        // A log may keep only the first line of a failure.
        let last = |text: &str| text.lines().last().map(str::to_owned);
        assert!(
            ran.status.success(),
            "{preload:?}: {}, {:?} after {:?}\n{errors}",
            ran.status,
            last(&errors),
            last(&lines)
        );
        lines.lines().map(str::to_owned).collect()
    })
}

#[test]
fn random_sequences_of_calls_have_the_results_of_tcp() {
    const SEQUENCES: u32 = 60;
    let before = packets();
    let [over_rdma, over_tcp] = lines_of("sequences.py", Some(SEQUENCES));
    assert!(packets() > before);
    assert!(over_tcp.len() > 1000);
    assert_eq!(difference(&over_rdma, &over_tcp), None);
}

#[test]
fn refused_attempt_is_repeated_by_rdma_on_the_same_socket() {
    let before = packets();
    let [over_rdma, over_tcp] = lines_of("retries.py", None);
    assert!(packets() > before);
    assert_eq!(difference(&over_rdma, &over_tcp), None);
}

/// gccgo's runtime calls the C library; the runtime of Go's own compiler makes direct system calls.
#[test]
fn gccgo_program_runs_over_rdma() {
    let program = env::temp_dir().join("echo-go");
    let names = ["gccgo", "gccgo-14", "gccgo-13", "gccgo-12"];
    let compiler = names.into_iter().find(|name| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|version| version.status.success())
    });
    let built = Command::new(compiler.expect("no gccgo is installed"))
        .args(["-O1", "-o"])
        .arg(&program)
        .arg(source("echo.go"))
        .status()
        .unwrap();
    assert!(built.success());
    let before = packets();
    run("echo.go", Command::new(&program));
    assert!(packets() - before >= LEAST);
    // Runs over TCP, for comparison.
    let plain = Command::new(&program).arg(address()).output().unwrap();
    assert_eq!(plain.stdout, b"all is well\n");
}

/// The C program has the note of Go's linker, and makes no call that matters.
#[test]
fn log_of_a_program_by_gos_own_compiler_reports_tcp() {
    let log = |name: &str, part: &str| {
        let mut program = c_program(name);
        program.arg(part).env("RSOCKET_PRELOAD_LOG", "1");
        run(part, program)
    };
    let expected = "a program of Go's own compiler calls the kernel past the C library";
    let output = log("go_note.c", "note");
    assert_eq!(output.matches(expected).count(), 1, "{output}");
    let output = log("calls.c", "fallback");
    assert!(!output.contains(expected), "{output}");
}
