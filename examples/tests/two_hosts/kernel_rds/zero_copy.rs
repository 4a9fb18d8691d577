//! The example of the mail: a server reads and writes the memory of clients, with either side on
//! the kernel's RDS.

use super::numbers;
use crate::guests::{Printed, run_with};

const CLIENT: &str = env!("CARGO_BIN_EXE_rds-zero-copy-client");
const SERVER: &str = env!("CARGO_BIN_EXE_rds-zero-copy-server");
const KERNEL: &str = concat!(
    "/usr/bin/python3 -B ",
    env!("CARGO_MANIFEST_DIR"),
    "/tests/two_hosts/kernel_rds/zero_copy.py"
);

/// Clients for the whole text, a part of a page, and the maximum size.
fn our_client() -> String {
    [
        format!("{CLIENT} $B:4000 'hello, RDS'"),
        format!("{CLIENT} --size 20001 $B:4000"),
        format!("{CLIENT} --size 1048576 $B:4000"),
    ]
    .join(" && ")
}

fn written(printed: &Printed) {
    for size in [10, 20_001, 1 << 20] {
        let line = format!("the server has written {size} bytes");
        let found = printed.a.iter().any(|one| one.starts_with(&line));
        assert!(found, "{size}: {:?}", printed.a);
    }
    assert!(printed.a[1].ends_with(": SDR ,olleh"), "{:?}", printed.a);
}

/// The six steps of the mail.
#[test]
fn zero_copy_protocol_runs_on_two_hosts() {
    let server = format!("{SERVER} --requests 6 $B:4000");
    let printed = run_with(&[], 200, &our_client(), &server);
    written(&printed);
    let operations = |kind, ends: &[&str]| {
        let lines = printed.b.iter().filter(|line| line.contains(kind));
        let ended = lines.filter(|line| ends.iter().any(|end| line.ends_with(end)));
        ended.count()
    };
    assert_eq!(operations(": Read of ", &["is done"]), 3, "{:?}", printed.b);
    // The client exits on the message after the write. Soft-RoCE completes that message before its acknowledgement, so
    // the server may learn of the exit first; the client has verified the written bytes.
    let ends = ["is done", "Input/output error (os error 5)"];
    assert_eq!(operations(": Write of ", &ends), 3, "{:?}", printed.b);
}

#[test]
fn zero_copy_client_runs_with_kernel_server() {
    let server = format!("{KERNEL} server $B:4000 6");
    let printed = run_with(&["--rds", "b"], 280, &our_client(), &server);
    written(&printed);
    assert_eq!(numbers(&printed.b, "requests"), [6]);
}

#[test]
fn zero_copy_server_runs_with_kernel_client() {
    let server = format!("{SERVER} --requests 4 $A:4000");
    let client = format!("{KERNEL} client $B:0 $A:4000 20001 && {KERNEL} client $B:0 $A:4000 1");
    let printed = run_with(&["--rds", "b"], 280, &server, &client);
    assert_eq!(numbers(&printed.b, "written"), [20_001]);
    assert!(
        printed.b.contains(&"written 1".to_owned()),
        "{:?}",
        printed.b
    );
    let done = printed.a.iter().filter(|line| line.ends_with("is done"));
    assert_eq!(done.count(), 4, "{:?}", printed.a);
}

/// `rds-info` queries the server, whose RDS state is in its own process.
#[test]
fn rds_info_queries_a_preloaded_program() {
    let info = env!("CARGO_BIN_EXE_rds-info");
    let b = format!(
        "{SERVER} --info-socket /tmp/info $B:4000 & server=$!; \
         until {info} --of /tmp/info -c 2>/dev/null | grep -Eq 'send_rdma +2$'; do sleep 0.2; done; \
         {info} --of /tmp/info -v; kill $server; wait $server; true"
    );
    let client = format!("{CLIENT} $B:4000 'hello, RDS'");
    let printed = run_with(&[], 200, &client, &b);
    println!("{:#?}", printed.b);
    let rows = |title: &str| -> Vec<Vec<&str>> {
        let start = printed.b.iter().position(|line| line == title);
        let start = start.unwrap_or_else(|| panic!("no `{title}` in {:?}", printed.b));
        let table = printed.b[start + 2..].iter();
        let table = table.take_while(|line| !line.is_empty());
        table.map(|row| row.split_whitespace().collect()).collect()
    };
    let sockets = rows("RDS Sockets:");
    let found: Vec<_> = sockets.iter().map(|row| (row[1], row[2], row[3])).collect();
    assert_eq!(found, [("4000", "0.0.0.0", "0")]);
    let [connection] = &rows("RDS Connections:")[..] else {
        panic!("{:?}", printed.b);
    };
    assert_eq!((connection[0], connection[2]), (sockets[0][0], "0"));
    assert_eq!(rows("RDS IB Connections:")[0][..3], connection[..3]);
    let bytes = ["send_rdma_bytes", "20"].map(str::to_owned).to_vec();
    assert!(rows("Counters:").contains(&bytes.iter().map(String::as_str).collect()));
    for title in ["Receive", "Send", "Retransmit"] {
        rows(&format!("{title} Message Queue:"));
    }
}
