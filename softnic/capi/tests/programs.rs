//! Debian's unmodified programs of libibverbs and librdmacm, two processes on the loopback interface.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "other tests use the rest")]
mod program;

use std::{
    fs,
    net::{IpAddr, Ipv6Addr, UdpSocket},
    path::PathBuf,
    process::Command,
    thread,
    time::Instant,
};

use program::{
    PAUSE, Program, TEST_TIMEOUT, addr, compile, exchange_between, exchange_by, free_port, len,
    source, with_server,
};

/// The folder with the files of the device at an address.
fn files_of(addr: IpAddr) -> Option<PathBuf> {
    let end = format!("-{addr}");
    let folders = fs::read_dir("/tmp").unwrap().flatten();
    let mut named = folders.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("softnic-") && name.ends_with(&end)
    });
    named.next()
}

/// Runs a server and a client at addresses of a test.
fn exchange(test: u8, options: &[&str], server: &str, client: &str) {
    exchange_between([addr(test, 2), addr(test, 3)], options, server, client);
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn rc_pingpong_runs() {
    exchange(
        1,
        &[],
        "ibv_rc_pingpong -g 0 -n 200 -p PORT",
        "ibv_rc_pingpong -g 0 -n 200 -p PORT SERVER",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn rc_pingpong_with_events_runs() {
    exchange(
        2,
        &[],
        "ibv_rc_pingpong -e -g 0 -n 200 -p PORT",
        "ibv_rc_pingpong -e -g 0 -n 200 -p PORT SERVER",
    );
}

/// Both sides end after a handshake over TCP: a process that ended earlier would not repeat a lost acknowledgement.
#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn send_latency_runs_despite_losses() {
    let options = ["--loss", "0.02", "--seed", "7"];
    exchange(
        3,
        &options,
        "ib_send_lat -F -x 0 -n 100 -p PORT",
        "ib_send_lat -F -x 0 -n 100 -p PORT SERVER",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn uc_pingpong_runs() {
    exchange(
        4,
        &[],
        "ibv_uc_pingpong -g 0 -n 200 -p PORT",
        "ibv_uc_pingpong -g 0 -n 200 -p PORT SERVER",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn ud_pingpong_runs() {
    exchange(
        5,
        &[],
        "ibv_ud_pingpong -g 0 -n 200 -p PORT",
        "ibv_ud_pingpong -g 0 -n 200 -p PORT SERVER",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn srq_pingpong_runs() {
    exchange(
        6,
        &[],
        "ibv_srq_pingpong -g 0 -n 200 -p PORT",
        "ibv_srq_pingpong -g 0 -n 200 -p PORT SERVER",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn xsrq_pingpong_runs() {
    exchange(
        7,
        &[],
        "ibv_xsrq_pingpong -g 0 -n 200 -p PORT",
        "ibv_xsrq_pingpong -g 0 -n 200 -p PORT SERVER",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn rping_runs_and_verifies_its_data() {
    exchange(
        8,
        &[],
        "rping -s -a SERVER -C 20 -V",
        "rping -c -a SERVER -C 20 -V",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn ucmatose_runs() {
    exchange(9, &[], "ucmatose -b SERVER", "ucmatose -s SERVER");
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn udaddy_runs() {
    let addrs = [addr(10, 2), addr(10, 3)];
    exchange_by("run", addrs, &[], "udaddy -b SERVER", "udaddy -s SERVER");
}

/// Both programs at the only loopback address of IPv6. The TCP connections of pingpongs and perftest are of IPv4.
#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn programs_run_over_ipv6() {
    for (server, client) in [
        (
            "rping -s -a SERVER -p PORT -C 20 -V",
            "rping -c -a SERVER -p PORT -C 20 -V",
        ),
        ("ucmatose -b SERVER -p PORT", "ucmatose -s SERVER -p PORT"),
        (
            "ibv_rc_pingpong -g 0 -n 200 -p PORT",
            "ibv_rc_pingpong -g 0 -n 200 -p PORT 127.0.0.1",
        ),
        (
            "ibv_ud_pingpong -g 0 -n 200 -p PORT",
            "ibv_ud_pingpong -g 0 -n 200 -p PORT 127.0.0.1",
        ),
        (
            "ib_write_bw -F -x 0 -n 100 -p PORT",
            "ib_write_bw -F -x 0 -n 100 -p PORT 127.0.0.1",
        ),
    ] {
        let addrs = [Ipv6Addr::LOCALHOST.into(); 2];
        exchange_between(addrs, &[], server, client);
    }
}

/// Runs a script of the shell in a network namespace, with the command `softnic` and another word as arguments, and returns its
/// output.
fn in_namespace(script: &str, word: &str) -> String {
    let user: &[&str] = match rustix::process::geteuid().is_root() {
        true => &[],
        false => &["--map-root-user"],
    };
    let mut command = Command::new("unshare");
    command
        .args(user)
        .args(["--net", "timeout", "60", "sh", "-c"]);
    command.args([script, env!("CARGO_BIN_EXE_softnic"), word]);
    let ended = Program::spawn(command).finish("the script");
    assert!(ended.status.success(), "{ended:?}");
    String::from_utf8(ended.stdout).unwrap()
}

/// The loopback interface has the MTU of an Ethernet: programs have the path MTU 1024, and no longer frame would pass.
#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn port_has_the_mtu_of_its_interface() {
    const SCRIPT: &str = "
        ip link set lo mtu 1500 up && run=\"$0 run --addr 127.0.0.2 --\" || exit
        $run ibv_devinfo -v | grep active_mtu
        $run rping -s -a 127.0.0.2 -C 5 -S 4000 -V & server=$!
        for i in $(seq 60); do
            $run rping -c -a 127.0.0.2 -C 5 -S 4000 -V && break
            sleep 0.1
        done
        wait $server";
    let output = in_namespace(SCRIPT, "");
    assert!(output.contains("1024 (3)"), "{output}");
    let devinfo = Program::start(addr(46, 2), &[], "ibv_devinfo -v").finish("ibv_devinfo");
    let output = String::from_utf8_lossy(&devinfo.stdout);
    let mut lines = output.lines();
    let active = lines.find(|line| line.contains("active_mtu")).unwrap();
    // The loopback interface of this machine.
    assert!(active.ends_with("4096 (5)"), "{active}");
}

#[cfg_attr(without_programs, ignore = "needs rdma-core's headers and libraries")]
#[test]
fn changes_of_the_interface_are_events() {
    // The program prints a line at the start and for each event.
    const SCRIPT: &str = "
        ip link set lo up && ip address add 10.9.8.7/32 dev lo || exit
        $0 run --addr 10.9.8.7 -- $1 > $1.out & program=$!
        wait_for() { until [ $(wc -l < $1.out) = $2 ]; do sleep 0.02; done; }
        wait_for $1 1 && ip link set lo mtu 1500 && ip link set lo down
        wait_for $1 2 && ip link set lo up
        wait_for $1 3 && ip address del 10.9.8.7/32 dev lo
        wait $program && cat $1.out";
    // With the link, the interface loses its IPv6 address.
    const SCRIPT_OF_IPV6: &str = "
        ip link set lo up && ip address add fd00:9::7/128 dev lo nodad || exit
        $0 run --addr fd00:9::7 -- $1 > $1.out & program=$!
        wait_for() { until [ $(wc -l < $1.out) = $2 ]; do sleep 0.02; done; }
        wait_for $1 1 && ip link set lo down
        wait $program && cat $1.out";
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), &source("events"), &["-Wall"]);
    let lines = |script| {
        let output = in_namespace(script, program.to_str().unwrap());
        output.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let expected = [
        "event -1: MTU 5, state 4, GID 7",
        "event 10: MTU 3, state 1, GID 7",
        "event 9: MTU 3, state 4, GID 7",
        "event 18: MTU 3, state 4, GID 0",
    ];
    assert_eq!(lines(SCRIPT), expected);
    let expected = [
        "event -1: MTU 5, state 4, GID 7",
        "event 10: MTU 5, state 1, GID 0",
        "event 18: MTU 5, state 1, GID 0",
    ];
    assert_eq!(lines(SCRIPT_OF_IPV6), expected);
}

/// Runs a client by `softnic check` beside a server, until one report contains all of `expected`.
fn report(test: u8, server: &str, client: &str, expected: &[&str]) {
    let (server_addr, client_addr) = (addr(test, 2), addr(test, 3));
    let port = free_port();
    let words = |words| with_server(words, &port, server_addr);
    let serve = || Program::start(server_addr, &[], &words(server));
    let deadline = Instant::now() + TEST_TIMEOUT;
    let mut serving = serve();
    loop {
        // A server serves one client, and the first ones may come too early.
        if !serving.is_running() {
            serving = serve();
        }
        let client = Program::start_by("check", client_addr, &[], &words(client));
        let client = client.finish("the client");
        let errors = String::from_utf8_lossy(&client.stderr);
        if expected.iter().all(|part| errors.contains(part)) {
            assert_eq!(client.status.code(), Some(99), "{client:?}");
            assert_eq!(errors.matches("softnic: ").count(), 1, "{errors}");
            return;
        }
        assert!(Instant::now() < deadline, "{client:?}");
        thread::sleep(PAUSE);
    }
}

/// The client destroys its address handle before the completions of its last sends, against `ibv_post_send(3)`.
#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn udaddy_is_reported_for_its_address_handle() {
    report(
        30,
        "udaddy -b SERVER",
        "udaddy -s SERVER",
        &[
            "address handle destroyed before its request",
            "made by udaddy+0x",
        ],
    );
}

/// With `-c`, the client writes the message into its buffer after it has posted the buffer for receives.
#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn pingpong_is_reported_once_for_the_memory_of_its_receives() {
    report(
        31,
        "ibv_rc_pingpong -c -g 0 -n 50 -p PORT",
        "ibv_rc_pingpong -c -g 0 -n 50 -p PORT SERVER",
        &["target memory changed while posted", "request 1, a receive"],
    );
}

/// The client posts 16 inline bytes to a queue pair for which it has requested none.
#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn xclient_is_reported_for_its_inline_data() {
    report(
        32,
        "rdma_xserver -p PORT -c r",
        "rdma_xclient -s SERVER -p PORT -c r",
        &["has 16 bytes of inline data, and the creation returned max_inline_data 0"],
    );
}

/// The cards round up inline data, so that the same program runs there.
#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn xclient_runs_on_a_card_that_grants_more_inline_data() {
    exchange(
        33,
        &["--card", "connectx-5"],
        "rdma_xserver -p PORT -c r",
        "rdma_xclient -s SERVER -p PORT -c r",
    );
}

/// Transports, events, shared queues and both directions of perftest, by `softnic check` without a report.
#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn perftest_with_its_options_has_no_report() {
    let all = [
        "ib_read_lat",
        "ib_atomic_lat",
        "ib_send_bw -c UD",
        "ib_send_bw --use-srq -q 2",
        "ib_send_bw -e -b",
        "ib_write_bw -l 4 -q 2",
        "ib_write_bw -c XRC",
        "ib_send_lat -c XRC",
    ];
    thread::scope(|scope| {
        for (host, program) in (1..).zip(all) {
            scope.spawn(move || {
                let addrs = [addr(34, 2 * host), addr(34, 2 * host + 1)];
                let server = format!("{program} -F -x 0 -n 48 -p PORT");
                let client = format!("{server} SERVER");
                exchange_by("check", addrs, &[], &server, &client);
            });
        }
    });
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn write_bandwidth_runs() {
    exchange(
        11,
        &[],
        "ib_write_bw -F -x 0 -n 100 -p PORT",
        "ib_write_bw -F -x 0 -n 100 -p PORT SERVER",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn send_latency_runs() {
    exchange(
        13,
        &[],
        "ib_send_lat -F -x 0 -n 100 -p PORT",
        "ib_send_lat -F -x 0 -n 100 -p PORT SERVER",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn endpoints_without_event_channels_connect() {
    exchange(
        16,
        &[],
        "rdma_server -p PORT",
        "rdma_client -s SERVER -p PORT",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdma-core's headers and libraries")]
#[test]
fn endpoints_with_shared_receive_queues_exchange_messages() {
    let folder = tempfile::tempdir().unwrap();
    let warnings = ["-Wall", "-Werror"];
    let program = compile(folder.path(), &source("shared_queue"), &warnings);
    let program = program.display();
    exchange(
        20,
        &[],
        &format!("{program} server SERVER PORT"),
        &format!("{program} client SERVER PORT"),
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn read_bandwidth_runs() {
    exchange(
        18,
        &[],
        "ib_read_bw -F -x 0 -n 50 -p PORT",
        "ib_read_bw -F -x 0 -n 50 -p PORT SERVER",
    );
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn atomic_bandwidth_runs() {
    exchange(
        19,
        &[],
        "ib_atomic_bw -F -x 0 -n 50 -p PORT",
        "ib_atomic_bw -F -x 0 -n 50 -p PORT SERVER",
    );
}

/// Once without, and once with the C library's functions for fortified programs. The keeper removes the files.
#[cfg_attr(without_programs, ignore = "needs rdma-core's headers and libraries")]
#[test]
fn device_files_are_found_by_each_function_and_removed_with_the_last_program() {
    let addr = addr(25, 2);
    let folder = tempfile::tempdir().unwrap();
    for level in ["-O0", "-O2"] {
        let fortified = format!("-D_FORTIFY_SOURCE={}", if level == "-O0" { 0 } else { 2 });
        let options = ["-Wall", "-Werror", level, &fortified];
        let program = compile(folder.path(), &source("device_files"), &options);
        let file = folder.path().join(format!("new{level}"));
        let words = format!("{} {}", program.display(), file.display());
        let ended = Program::start(addr, &[], &words).finish("the program");
        assert!(ended.status.success(), "{options:?}: {ended:?}");
    }
    let deadline = Instant::now() + TEST_TIMEOUT;
    while let Some(files) = files_of(addr) {
        assert!(Instant::now() < deadline, "{} stays", files.display());
        thread::sleep(PAUSE);
    }
}

/// The words of UCX's program, on one transport of the device.
fn ucx(transport: &str, options: &str) -> String {
    format!("env UCX_TLS={transport},self UCX_NET_DEVICES=softnic0:1 ucx_perftest -p PORT{options}")
}

/// Without `softnic check`: UCX's datagrams, which set up each transport, change a message before the completion of its send, against
/// `ibv_post_send(3)`.
fn exchange_by_ucx(test: u8, transport: &str, client: &str) {
    let addrs = [addr(test, 2), addr(test, 3)];
    exchange_by("run", addrs, &[], &ucx(transport, ""), client);
}

#[cfg_attr(without_ucx, ignore = "needs ucx-utils")]
#[test]
fn ucx_lists_the_transports_of_the_device() {
    let addr = addr(21, 2);
    let listed = Program::start(addr, &[], "ucx_info -d").finish("ucx_info");
    let text = String::from_utf8_lossy(&listed.stdout);
    for transport in ["rc_verbs", "ud_verbs"] {
        let expected = format!("Transport: {transport}\n#         Device: softnic0:1");
        assert!(text.contains(&expected), "{listed:?}");
    }
}

#[cfg_attr(without_ucx, ignore = "needs ucx-utils")]
#[test]
fn ucx_exchanges_tagged_messages_over_rc() {
    let client = ucx("rc_v", " 127.0.0.1 -t tag_lat -n 100 -w 10");
    exchange_by_ucx(22, "rc_v", &client);
}

#[cfg_attr(without_ucx, ignore = "needs ucx-utils")]
#[test]
fn ucx_exchanges_tagged_messages_over_ud() {
    let client = ucx("ud_v", " 127.0.0.1 -t tag_bw -s 10000 -n 100 -w 10");
    exchange_by_ucx(23, "ud_v", &client);
}

#[cfg_attr(without_ucx, ignore = "needs ucx-utils")]
#[test]
fn ucx_writes_memory_of_its_peer() {
    let client = ucx("rc_v", " 127.0.0.1 -t ucp_put_bw -s 100000 -n 100 -w 10");
    exchange_by_ucx(24, "rc_v", &client);
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn writes_to_a_killed_server_fail() {
    let (server_addr, client_addr) = (addr(14, 2), addr(14, 3));
    let port = free_port();
    let folder = tempfile::tempdir().unwrap();
    let pcap = folder.path().join("frames.pcap");
    let words = format!("ib_write_bw -F -x 0 -s 64 -D 60 -p {port}");
    let mut server = Program::start(server_addr, &[], &words);
    let options = ["--pcap", pcap.to_str().unwrap()];
    let client_words = format!("{words} {server_addr}");
    let deadline = Instant::now() + TEST_TIMEOUT;
    let mut client = Program::start(client_addr, &options, &client_words);
    // Frames flow once the recording is longer than those of the set-up.
    while len(&pcap) < 100_000 {
        assert!(
            server.is_running() && Instant::now() < deadline,
            "no frames"
        );
        if !client.is_running() {
            client = Program::start(client_addr, &options, &client_words);
        }
        thread::sleep(PAUSE);
    }
    server.0.kill().unwrap();
    let ended = client.finish("the client");
    assert!(!ended.status.success(), "{ended:?}");
    assert_ne!(ended.status.code(), None, "the client ends by itself");
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn process_at_a_taken_port_has_no_device_and_reports_the_cause() {
    let server_addr = addr(15, 2);
    let _taken = UdpSocket::bind((server_addr, 4791)).unwrap();
    let listed = Program::start(server_addr, &[], "ibv_devinfo").finish("ibv_devinfo");
    assert!(!listed.status.success());
    let errors = String::from_utf8_lossy(&listed.stderr);
    let expected = format!("UDP port 4791 of {server_addr}");
    assert!(errors.contains(&expected), "{errors}");
    assert!(errors.contains("another process"), "{errors}");
}
