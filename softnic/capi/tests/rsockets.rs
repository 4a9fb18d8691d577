//! Unmodified programs of rsockets, two processes on the loopback interface.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "other tests use the rest")]
mod program;

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    thread,
    time::Instant,
};

use program::{
    PAUSE, Program, TEST_TIMEOUT, addr, compile, exchange_between, free_port, source, with_server,
};

/// Runs a program of rdmacm-utils with verified data: in each of the modes of the server and of the client.
fn exchange(test: u8, program: &str, modes: &[[&str; 2]]) {
    thread::scope(|scope| {
        for (host, modes) in (1..).zip(modes) {
            let addrs = [addr(test, 2 * host), addr(test, 2 * host + 1)];
            scope.spawn(move || exchange_at(addrs, program, *modes));
        }
    });
}

fn exchange_at(addrs: [IpAddr; 2], program: &str, [server, client]: [&str; 2]) {
    let server = format!("{program} {server} -T v -p PORT -b SERVER");
    let client = format!("{program} {client} -T v -p PORT -s SERVER");
    exchange_between(addrs, &[], &server, &client);
}

/// No asynchronous client: `rstream` takes the end beside the last data, `POLLIN | POLLHUP`, for an error, with librdmacm too.
#[cfg_attr(without_programs, ignore = "needs rdmacm-utils")]
#[test]
fn rstream_runs_in_each_mode() {
    let modes = [
        ["-S 5000 -C 20 -I 3 -T b"; 2],
        ["-S 100 -C 500 -I 2 -T n -i 0"; 2],
        ["-S 200000 -C 5 -I 2 -T a", "-S 200000 -C 5 -I 2 -T n"],
        ["-S 1000 -C 100 -I 2 -T b -T r"; 2],
        ["-S 1000 -C 100 -I 2 -k 1 -B 4096 -T b"; 2],
    ];
    exchange(50, "rstream", &modes);
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils")]
#[test]
fn riostream_runs_in_each_mode() {
    let modes = [
        ["-S 4096 -C 5 -I 3 -T b"; 2],
        ["-S 4096 -C 5 -I 3 -T n"; 2],
        ["-S 4096 -C 5 -I 3 -T a", "-S 4096 -C 5 -I 3 -T n"],
    ];
    exchange(51, "riostream", &modes);
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils")]
#[test]
fn rstream_runs_over_ipv6() {
    let addrs = [Ipv6Addr::LOCALHOST.into(); 2];
    let mode = "-f ipv6 -S 5000 -C 20 -I 3 -T b";
    exchange_at(addrs, "rstream", [mode; 2]);
}

/// Runs a client until it succeeds, beside a server that does not end.
fn reach([server_addr, client_addr]: [IpAddr; 2], server: &str, client: &str) {
    let port = free_port();
    let words = |words| with_server(words, &port, server_addr);
    let mut serving = Program::start(server_addr, &[], &words(server));
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let done = Program::start(client_addr, &[], &words(client)).finish(client);
        if done.status.success() {
            break;
        }
        let may_listen_later = serving.is_running() && Instant::now() < deadline;
        assert!(may_listen_later, "{client}: {done:?}");
        thread::sleep(PAUSE);
    }
}

/// Both at one address: the kernel's route chooses the source of the client's datagrams.
#[cfg_attr(without_programs, ignore = "needs rdmacm-utils")]
#[test]
fn udpong_receives_its_datagrams_again() {
    for mode in ["b", "n", "a"] {
        let server = format!("udpong -S 512 -C 50 -T e -T {mode} -p PORT -b SERVER");
        let client = server.replace("-b SERVER", "-s SERVER");
        reach([Ipv4Addr::LOCALHOST.into(); 2], &server, &client);
    }
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils")]
#[test]
fn rcopy_copies_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
    let content: Vec<u8> = (0..700_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(&from, &content).unwrap();
    let client = format!("rcopy {} SERVER:{} -p PORT", from.display(), to.display());
    reach([addr(55, 2), addr(55, 3)], "rcopy -p PORT", &client);
    assert!(fs::read(&to).unwrap() == content, "the copy differs");
}

/// The children use sockets of their own beside the listener of their parent, at one address.
#[cfg_attr(without_programs, ignore = "needs rdma-core's headers and libraries")]
#[test]
fn children_made_by_fork_exchange_streams_with_their_parent() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), &source("streams"), &["-Wall", "-Werror"]);
    let addr = addr(56, 2);
    for action in ["run", "check"] {
        let words = format!("{} {addr}", program.display());
        let ended = Program::start_by(action, addr, &[], &words).finish(&words);
        assert!(ended.status.success(), "{action}: {ended:?}");
    }
}
