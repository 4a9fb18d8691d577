//! Runs of several guests behind a switch, and their links.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use super::{Finished, PROGRAM, finish, rping, run};

/// Options of guests that share this machine.
const SMALL: [&str; 4] = ["--memory", "256", "--timeout", "60"];

/// Runs the same script on `hosts` guests.
fn on_each(hosts: &str, more: &[&str], script: &str) -> Finished {
    run(&[&SMALL[..], &["--hosts", hosts], more, &["--", script]].concat())
}

/// A shell function: whether a host answers one of `$2` pings.
const ANSWERS: &str = "answers() { /run/soft-roce/busybox ping -c $2 -W 2 $1 >/dev/null; }; ";

#[test]
fn each_of_five_hosts_reaches_the_others_by_name() {
    let script = format!(
        "{ANSWERS} for host in $HOSTS; do answers $host 3 && echo \"$HOST reaches $host\"; done; sleep 3"
    );
    let finished = on_each("5", &[], &script).expect_code(0);
    for from in ["a", "b", "c", "d", "e"] {
        for to in ["a", "b", "c", "d", "e"] {
            let line = format!("{from}| {from} reaches {to}\n");
            assert!(finished.stdout.contains(&line), "{line} in {finished:#?}");
        }
    }
}

#[test]
fn rping_of_two_clients_and_a_server_succeeds() {
    let client = format!("sleep 2; {}", rping("-c -v -a $A -C 3"));
    let server = "rping -s -P -a $A";
    let each = ["--each", server, "--each", &client, "--each", &client];
    let until = ["--until", "b"];
    run(&[&SMALL[..], &until, &each].concat())
        .expect_code(0)
        .expect_stdout("b| ping data: rdma-ping-2");
}

#[test]
fn cut_link_separates_its_hosts_only() {
    let script = format!(
        "{ANSWERS} case $HOST in a) sleep 8 ;; b) answers c 3 && ! answers a 2 ;; c) answers a 3 ;; esac"
    );
    on_each("3", &["--link", "a-b:down"], &script).expect_code(0);
}

#[test]
fn delayed_link_takes_its_time_in_both_directions() {
    let ping = "/run/soft-roce/busybox ping -c 2 -W 5 a | sed -n 's/^round-trip.* = \\([0-9]*\\).*/round trip \\1/p'";
    let script = format!("if [ $HOST = b ]; then {ping}; else sleep 4; fi");
    let finished = on_each("2", &["--link", "all:delay=150ms"], &script).expect_code(0);
    let time = finished.stdout.split("b| round trip ").nth(1).unwrap();
    let time: u32 = time.trim().parse().unwrap();
    assert!((300..2000).contains(&time), "{finished:#?}");
}

#[test]
fn link_of_total_loss_passes_nothing() {
    let script = format!("{ANSWERS} if [ $HOST = b ]; then ! answers a 2; else sleep 5; fi");
    on_each("2", &["--link", "a-b:loss=1"], &script).expect_code(0);
}

/// A run whose host b reports each change of its way to host a.
fn start_reporter() -> (Child, BufReader<ChildStdout>) {
    let script = format!(
        "{ANSWERS} [ $HOST = b ] || exec sleep 50; \
         for state in up down up; do \
             case $state in up) until answers a 1; do :; done ;; down) while answers a 1; do :; done ;; esac; \
             echo \"link is $state\"; \
         done"
    );
    let mut child = Command::new(PROGRAM)
        .args(["soft-roce", "run", "--hosts", "2", "--until", "b"])
        .args(SMALL)
        .args(["--", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

/// Runs `cargo soft-roce link ARGUMENTS`.
fn link(arguments: &[&str]) -> Finished {
    finish(
        Command::new(PROGRAM)
            .args(["soft-roce", "link"])
            .args(arguments),
    )
}

#[test]
fn link_command_cuts_and_restores_a_link_during_the_run() {
    let (mut child, mut output) = start_reporter();
    let process = child.id().to_string();
    let mut expect = |expected: &str| {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, format!("b| link is {expected}\n"));
    };
    expect("up");
    link(&["a", "b", "down", "--run", &process]).expect_code(0);
    expect("down");
    link(&["a", "c", "down", "--run", &process])
        .expect_code(1)
        .expect_stderr("the run has no host c");
    link(&["a", "b", "up", "--run", &process]).expect_code(0);
    expect("up");
    assert!(child.wait().unwrap().success());
    link(&["a", "b", "up", "--run", &process])
        .expect_code(1)
        .expect_stderr(&format!("no run has the process id {process}"));
}

#[test]
fn pcap_option_with_a_switch_records_frames() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("switch.pcap");
    let script = format!("{ANSWERS} if [ $HOST = b ]; then answers a 3; else sleep 4; fi");
    on_each("2", &["--pcap", file.to_str().unwrap()], &script).expect_code(0);
    let bytes = std::fs::read(Path::new(&file)).unwrap();
    // The addresses of host a and host b, in a frame from b to a.
    let addresses = [0x52, 0x54, 0, 9, 0, 1, 0x52, 0x54, 0, 9, 0, 2];
    assert!(bytes.windows(addresses.len()).any(|part| part == addresses));
}

#[test]
fn options_for_absent_hosts_are_refused() {
    for (option, value, part) in [
        ("--link", "a-c:down", "no host c"),
        ("--rds", "c", "no host c"),
        ("--until", "d", "no host d"),
    ] {
        run(&["--hosts", "2", option, value, "--", "true"])
            .expect_code(1)
            .expect_stderr(part);
    }
    run(&["--link", "a-b:down", "--", "true"])
        .expect_code(1)
        .expect_stderr("--link needs two guests");
}
