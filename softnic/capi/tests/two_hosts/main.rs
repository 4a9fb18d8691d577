//! Unmodified programs on softnic beside the same programs on Linux's Soft-RoCE, on two guests. `cargo xtask test` runs
//! these tests.

#[expect(dead_code, reason = "the file belongs to the tests of the examples")]
#[path = "../../../../examples/tests/two_hosts/guests.rs"]
mod guests;

use guests::{by_link, lines_of, run_for, run_with};

/// Time-out of a run of all programs, in seconds, on a busy machine.
const SECONDS: u32 = 300;

/// Index of the GID with the address of a device of softnic.
const SOFTNIC_GID: &str = "0";

/// Addresses of the devices.
#[derive(Clone, Copy)]
enum Family {
    V4,
    V6,
}

impl Family {
    /// Variable with a host's address of this family.
    fn variable(self, host: &str) -> String {
        match self {
            Self::V4 => format!("${host}"),
            Self::V6 => format!("${host}6"),
        }
    }

    /// Index of the GID with the address of Soft-RoCE, after that of the link-local address.
    fn linux_gid(self) -> &'static str {
        match self {
            Self::V4 => "1",
            Self::V6 => "2",
        }
    }
}

/// A program with a server and a client. In the words, `GID` stands for the index of the device's GID, `SERVER` for
/// the server's address, and `HOST` for its IPv4 address, for TCP.
struct Program {
    server: &'static str,
    client: &'static str,
    /// Part of the client's output after a success; empty if the exit code suffices.
    printed: &'static str,
}

const fn program(server: &'static str, client: &'static str, printed: &'static str) -> Program {
    Program {
        server,
        client,
        printed,
    }
}

/// Programs that end their reliable connections by a disconnect, for lossy links too. Each makes one connection: a program
/// refused for one of several, before its server listens, withdraws the others from the server.
const DISCONNECTED: [Program; 2] = [
    program(
        "rping -s -a SERVER -V -C 10",
        "rping -c -a SERVER -V -C 10",
        "",
    ),
    program("ucmatose -b SERVER", "ucmatose -s SERVER", ""),
];

/// Programs that end without a disconnect: if the last acknowledgement of one is lost, the other one's request is repeated
/// without an answer. On softnic it fails. On Linux the pingpongs wait for ever: their retry count is 7, with which rxe does not
/// count the retries (`rxe_completer` in `rxe_comp.c`).
const NOT_DISCONNECTED: [Program; 2] = [
    program(
        "ibv_rc_pingpong -g GID -c -n 40",
        "ibv_rc_pingpong -g GID -c -n 40 HOST",
        "40 iters",
    ),
    program(
        "ibv_srq_pingpong -g GID -n 40 -q 4",
        "ibv_srq_pingpong -g GID -n 40 -q 4 HOST",
        "40 iters",
    ),
];

/// A program whose server listens at the wildcard address of IPv4.
const OVER_V4: Program = program("rdma_server", "rdma_client -s SERVER", "");

/// Programs of rsockets.
const RSOCKETS: [Program; 3] = [
    program(
        "rstream -b SERVER -S 5000 -C 20 -I 3 -T b -T v",
        "rstream -s SERVER -S 5000 -C 20 -I 3 -T b -T v",
        "custom",
    ),
    program(
        "rstream -b SERVER -S 100 -C 500 -I 2 -T n -T v",
        "rstream -s SERVER -S 100 -C 500 -I 2 -T n -T v",
        "custom",
    ),
    program(
        "riostream -b SERVER -S 4096 -C 5 -I 3 -T b -T v",
        "riostream -s SERVER -S 4096 -C 5 -I 3 -T b -T v",
        "custom",
    ),
];

/// Programs that load vendors' libraries. Those of the newest rdma-core need functions of its version (`IBVERBS_PRIVATE_65`).
const PERFTEST: [Program; 4] = [
    program(
        "ib_write_bw -F -x GID -s 20000 -n 40",
        "ib_write_bw -F -x GID -s 20000 -n 40 HOST",
        "20000      40",
    ),
    program(
        "ib_read_bw -F -x GID -s 20000 -n 40",
        "ib_read_bw -F -x GID -s 20000 -n 40 HOST",
        "20000      40",
    ),
    program(
        "ib_send_lat -F -x GID -s 20000 -n 40",
        "ib_send_lat -F -x GID -s 20000 -n 40 HOST",
        "20000   40",
    ),
    program(
        "ib_atomic_bw -F -x GID -n 40",
        "ib_atomic_bw -F -x GID -n 40 HOST",
        "8          40",
    ),
];

/// Programs that wait for ever if a datagram is lost.
const UNRELIABLE: [Program; 3] = [
    program(
        "ibv_uc_pingpong -g GID -n 40",
        "ibv_uc_pingpong -g GID -n 40 HOST",
        "40 iters",
    ),
    program(
        "ibv_ud_pingpong -g GID -n 40",
        "ibv_ud_pingpong -g GID -n 40 HOST",
        "40 iters",
    ),
    program("udaddy -b SERVER", "udaddy -s SERVER", ""),
];

/// The side of softnic: a host without the drivers of Linux, whose Soft-RoCE has the port in each address.
fn softnic_side(options: &str, commands: &str) -> String {
    let softnic = by_link(env!("CARGO_BIN_EXE_softnic"));
    format!(
        "rdma link delete rxe0; rmmod rdma_ucm rdma_cm iw_cm ib_cm rdma_rxe || exit\n\
         run=\"{softnic} run {options} --\"\n{commands}"
    )
}

/// The commands of the servers, one after another. `prefix` is the word before each command.
fn servers(programs: &[&Program], prefix: &str, gid: &str, server: &str) -> String {
    programs
        .iter()
        .enumerate()
        .map(|(number, program)| {
            let words = program.server.replace("GID", gid);
            let words = words.replace("SERVER", server);
            format!("timeout 60 {prefix} {words} > server 2>&1; code=$?; sed 's/^/{number}: /' server; echo \"{number}: exit $code\"\n")
        })
        .collect()
}

/// The commands of the clients, one after another, each repeated while its server does not listen.
fn clients(programs: &[&Program], prefix: &str, gid: &str, server: &str) -> String {
    programs
        .iter()
        .enumerate()
        .map(|(number, program)| {
            let words = program.client.replace("GID", gid);
            let words = words.replace("SERVER", server).replace("HOST", "$A");
            format!(
                "for i in $(seq 40); do timeout 20 {prefix} {words} > client 2>&1; code=$?; \
                 [ $code = 0 ] && break; sed 's/^/attempt of {number}: /' client; sleep 0.25; done\n\
                 sed 's/^/{number}: /' client; echo \"{number}: exit $code\"\n"
            )
        })
        .collect()
}

/// Checks both sides of each program.
fn check(programs: &[&Program], servers: &[String], clients: &[String]) {
    for (number, program) in programs.iter().enumerate() {
        let [server, client] = [servers, clients].map(|lines| lines_of(lines, number));
        let what = format!("{}:\n{server:#?}\n{client:#?}", program.client);
        assert_eq!(server.last(), Some(&"exit 0"), "{what}");
        assert_eq!(client.last(), Some(&"exit 0"), "{what}");
        let is_printed = client.iter().any(|line| line.contains(program.printed));
        assert!(is_printed, "{what}");
    }
}

/// Runs the servers' commands and the clients' on a guest each.
fn play(programs: &[&Program], servers: &str, clients: &str) {
    let [a, b] = [servers, clients].map(|commands| format!("cd /tmp\n{commands}"));
    let printed = run_for(SECONDS, "rxe", &a, &b);
    check(programs, &printed.a, &printed.b);
}

/// Runs a test over a lossy link, and once more after a failure. One of 60 runs failed for a cause not known: a client gave up after
/// its server had accepted it, and servers accept one client. The output of a first failure has the client's attempts.
#[expect(clippy::print_stdout, reason = "the output of the test")]
fn over_lossy_link(run: impl Fn(&str) + std::panic::RefUnwindSafe) {
    const LOSSES: &str = "--loss 0.03";
    if std::panic::catch_unwind(|| run(LOSSES)).is_err() {
        println!("once more over a lossy link");
        run(LOSSES);
    }
}

/// Servers on softnic, clients on Linux.
fn softnic_serves(programs: &[&Program], family: Family, options: &str) {
    let server = family.variable("A");
    let options = format!("--addr {server} {options}");
    let a = softnic_side(&options, &servers(programs, "$run", SOFTNIC_GID, &server));
    let b = clients(programs, "", family.linux_gid(), &server);
    play(programs, &a, &b);
}

/// Servers on Linux, clients on softnic.
fn softnic_connects(programs: &[&Program], family: Family, options: &str) {
    let server = family.variable("A");
    let options = format!("--addr {} {options}", family.variable("B"));
    let a = servers(programs, "", family.linux_gid(), &server);
    let b = softnic_side(&options, &clients(programs, "$run", SOFTNIC_GID, &server));
    play(programs, &a, &b);
}

/// The programs of rdma-core that run over both families.
fn rdma_core() -> impl Iterator<Item = &'static Program> {
    let reliable = DISCONNECTED.iter().chain(&NOT_DISCONNECTED);
    reliable.chain(&UNRELIABLE)
}

/// The programs of rdma-core over IPv4.
fn over_v4() -> Vec<&'static Program> {
    rdma_core().chain([&OVER_V4]).chain(&RSOCKETS).collect()
}

/// The programs of rdma-core over IPv6.
fn over_v6() -> Vec<&'static Program> {
    rdma_core().collect()
}

#[test]
fn servers_on_softnic_serve_programs_on_linux() {
    softnic_serves(&over_v4(), Family::V4, "");
}

#[test]
fn programs_on_softnic_reach_servers_on_linux() {
    softnic_connects(&over_v4(), Family::V4, "");
}

#[test]
fn servers_on_softnic_serve_programs_on_linux_over_ipv6() {
    softnic_serves(&over_v6(), Family::V6, "");
}

#[test]
fn programs_on_softnic_reach_servers_on_linux_over_ipv6() {
    softnic_connects(&over_v6(), Family::V6, "");
}

#[test]
fn servers_on_softnic_serve_programs_on_linux_with_losses() {
    over_lossy_link(|losses| softnic_serves(&DISCONNECTED.each_ref(), Family::V4, losses));
}

#[test]
fn programs_on_softnic_reach_servers_on_linux_with_losses() {
    over_lossy_link(|losses| softnic_connects(&DISCONNECTED.each_ref(), Family::V4, losses));
}

#[test]
fn perftest_on_softnic_serves_linux() {
    for family in [Family::V4, Family::V6] {
        softnic_serves(&PERFTEST.each_ref(), family, "");
    }
    over_lossy_link(|losses| softnic_serves(&PERFTEST.each_ref(), Family::V4, losses));
}

#[test]
fn perftest_on_softnic_reaches_linux() {
    for family in [Family::V4, Family::V6] {
        softnic_connects(&PERFTEST.each_ref(), family, "");
    }
    over_lossy_link(|losses| softnic_connects(&PERFTEST.each_ref(), Family::V4, losses));
}

/// Sets the MTU of a host's link.
const OF_ETHERNET: &str = "ip link set eth0 mtu 1500\n";

/// Programs with messages longer than the MTU.
const LONG: [Program; 2] = [
    program(
        "rping -s -a SERVER -V -C 10 -S 4000",
        "rping -c -a SERVER -V -C 10 -S 4000",
        "",
    ),
    program(
        "ucmatose -b SERVER -S 4000",
        "ucmatose -s SERVER -S 4000",
        "",
    ),
];

#[test]
fn frames_fit_an_ethernet_between_softnic_and_programs_on_linux() {
    let programs = LONG.each_ref();
    let servers = servers(&programs, "", Family::V4.linux_gid(), "$A");
    // The side that connects names the path MTU.
    let clients = clients(&programs, "$run", SOFTNIC_GID, "$A");
    let clients = softnic_side("--addr $B", &clients);
    let [servers, clients] = [servers, clients].map(|side| format!("{OF_ETHERNET}{side}"));
    play(&programs, &servers, &clients);
}

#[test]
fn active_mtu_is_that_of_programs_on_linux() {
    const PRINT: &str = "ibv_devinfo -v | grep -o 'active_mtu:.*'\n";
    let a = format!(
        "{PRINT}{}",
        softnic_side("--addr $A", &format!("$run {PRINT}"))
    );
    for (mtu, active) in [
        ("1280", "1024 (3)"),
        ("1500", "1024 (3)"),
        ("2300", "2048 (4)"),
        ("4200", "4096 (5)"),
    ] {
        let options = ["--device", "rxe", "--mtu", mtu];
        let printed = run_with(&options, SECONDS, &a, "true").a.join("\n");
        let active = format!("active_mtu:\t\t{active}");
        assert_eq!(printed, format!("{active}\n{active}"), "{mtu}");
    }
}
