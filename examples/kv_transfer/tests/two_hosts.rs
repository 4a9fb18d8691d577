//! The programs on four guests, with RDMA devices of their kernels: two readers, on hosts a and b, and two writers, which each write
//! to both.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

use std::path::Path;

use soft_roce::{Guests, Host, Ran, quote};

fn program(path: &str) -> String {
    quote(Path::new(path)).unwrap()
}

fn reader(leases: usize) -> String {
    let reader = program(env!("CARGO_BIN_EXE_kv-transfer-reader"));
    format!("{reader} --writers 2 --leases {leases} --ahead 4 --page-len 4096 --deadline 60000")
}

fn writer() -> String {
    let writer = program(env!("CARGO_BIN_EXE_kv-transfer-writer"));
    format!("{writer} $A $B --page-len 4096 --wait 60")
}

/// The numbers of lines about arrived leases, about complete writers, and about leases that have ended otherwise.
fn outcome(ran: &Ran, host: Host) -> [usize; 3] {
    let lines = || ran.stdout(host).lines();
    let count = |part: &str| lines().filter(|line| line.contains(part)).count();
    let lost = lines().filter(|line| line.contains("LeaseId") && line.contains("has ended"));
    [count(": 16 pages"), count(" MB/s"), lost.count()]
}

/// The reader compares each page with its lease.
#[test]
fn two_readers_receive_all_pages_of_two_writers() {
    const LEASES: usize = 40;
    let commands = [reader(LEASES), reader(LEASES), writer(), writer()];
    let ran = Guests::many(4).run(commands).unwrap().expect_success();
    for host in [Host::A, Host::B] {
        assert_eq!(outcome(&ran, host), [2 * LEASES, 2, 0], "{ran}");
    }
}

#[test]
fn readers_continue_with_one_writer_after_the_death_of_the_other() {
    // More lines than a pipe holds, of which one is read: the writer cannot end before it is killed.
    const LEASES: usize = 1000;
    let killed = format!(
        "mkfifo /tmp/lines; {} >/tmp/lines & {{ read line; kill -KILL $!; }} </tmp/lines; wait; true",
        writer()
    );
    let commands = [reader(LEASES), reader(LEASES), writer(), killed];
    let ran = Guests::many(4).run(commands).unwrap().expect_success();
    for host in [Host::A, Host::B] {
        let [arrived, complete, _] = outcome(&ran, host);
        assert_eq!(complete, 1, "{ran}");
        assert!((LEASES..2 * LEASES).contains(&arrived), "{ran}");
        let ended = ran
            .stdout(host)
            .lines()
            .filter(|line| line.starts_with("PeerId"));
        assert_eq!(
            ended.filter(|line| line.contains("has ended")).count(),
            2,
            "{ran}"
        );
    }
}
