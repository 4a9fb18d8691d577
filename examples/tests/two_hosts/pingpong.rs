//! The pingpongs: programs of this crate against themselves, and against the C programs in both roles.

#![expect(clippy::print_stdout, reason = "the table of pairings")]

use crate::guests::{lines_of, run_for};

/// Timeout of one test, on a busy machine.
const SECONDS: u32 = 300;

/// Succeeds on a device with paging on demand.
macro_rules! has_on_demand {
    () => {
        "ibv_devinfo -v | grep -qw ODP_SUPPORT"
    };
}

/// The option for memory paged on demand, where the device has it. For messages of one packet: Soft-RoCE of Linux 7.2 writes
/// each packet to the start of its page.
macro_rules! or_on_demand {
    () => {
        concat!("$(", has_on_demand!(), " && echo -o)")
    };
}

/// A program of this crate, and the corresponding C program.
struct Program {
    name: &'static str,
    ours: &'static str,
    c: &'static str,
    /// Options of every run.
    options: &'static str,
    /// Last lines of both sides, up to the elapsed time.
    bytes: &'static str,
    /// Number of addresses printed by each side.
    queue_pairs: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Ours,
    C,
}

use Origin::{C, Ours};

/// Server program, client program, address, and options.
const PAIRS: [(Origin, Origin, &str, &str); 6] = [
    (Ours, Ours, "$A", ""),
    (C, Ours, "$A", ""),
    (Ours, C, "$A", ""),
    (Ours, Ours, "$A6", "-e"),
    (C, Ours, "$A", "-e"),
    (Ours, C, "$A6", "-e"),
];

impl Program {
    fn path(&self, origin: Origin) -> &str {
        match origin {
            Ours => self.ours,
            C => self.c,
        }
    }

    /// Command for one side of a pair. A client without a server retries. All lines, and the exit code, start
    /// with the number of the pair.
    fn command(&self, pair: usize, origin: Origin, host: &str) -> String {
        let (path, options) = (self.path(origin), self.options);
        let (_, _, _, more) = PAIRS[pair];
        let port = 18515 + pair;
        format!(
            "{{ for i in $(seq 20); do \
             out=$(timeout 45 {path} -g 1 -c -p {port} {options} {more} {host} 2>&1); code=$?; \
             case $out in *\"ouldn't connect to {host}:\"*) sleep 0.5;; *) break;; esac; \
             done; echo \"$out\"; echo \"exit $code\"; }} | sed 's/^/{pair}: /'"
        )
    }

    /// Runs every pair: all servers at once, the clients in turn.
    fn play(&self) {
        let sides = |f: &dyn Fn(usize) -> String, separator: &str| {
            let commands: Vec<_> = (0..PAIRS.len()).map(f).collect();
            commands.join(separator)
        };
        let servers = sides(&|pair| self.command(pair, PAIRS[pair].0, ""), " & ");
        let clients = sides(
            &|pair| self.command(pair, PAIRS[pair].1, PAIRS[pair].2),
            "; ",
        );
        let printed = run_for(SECONDS, "rxe", &format!("{servers} & wait"), &clients);

        let mut failures = Vec::new();
        println!("{}_pingpong", self.name);
        for (pair, (server, client, address, more)) in PAIRS.into_iter().enumerate() {
            let sides = [lines_of(&printed.a, pair), lines_of(&printed.b, pair)];
            let outcome = match sides.iter().all(|lines| self.is_complete(lines)) {
                true => "ok",
                false => "FAILED",
            };
            println!("  server {server:?}, client {client:?}, {address} {more}: {outcome}");
            if outcome != "ok" {
                failures.push((server, client, sides));
            }
        }
        assert!(failures.is_empty(), "{failures:#?}");
    }

    fn is_complete(&self, lines: &[&str]) -> bool {
        let local = |line: &&str| line.starts_with("  local address:  LID 0x0000, QPN 0x");
        let remote = |line: &&str| line.starts_with("  remote address: LID 0x0000, QPN 0x");
        let count = self.queue_pairs;
        lines.len() == 2 * count + 3
            && lines[..count].iter().all(local)
            && lines[count..2 * count].iter().all(remote)
            && lines[..2 * count]
                .iter()
                .all(|line| line.contains("GID ::ffff:10.9.0."))
            && lines[2 * count].starts_with(&format!("{} bytes in ", self.bytes))
            && lines[2 * count + 1].starts_with("100 iters in ")
            && lines[2 * count + 2] == "exit 0"
    }
}

#[test]
fn rc_pingpong_interoperates_with_itself_and_with_c() {
    Program {
        name: "rc",
        ours: env!("CARGO_BIN_EXE_rc_pingpong"),
        c: "ibv_rc_pingpong",
        options: concat!("-n 100 -s 1024 ", or_on_demand!()),
        bytes: "204800",
        queue_pairs: 1,
    }
    .play();
}

#[test]
fn rc_pingpong_with_new_post_api_interoperates() {
    Program {
        name: "rc",
        ours: env!("CARGO_BIN_EXE_rc_pingpong"),
        c: "ibv_rc_pingpong",
        options: "-n 100 -N",
        bytes: "819200",
        queue_pairs: 1,
    }
    .play();
}

#[test]
fn uc_pingpong_interoperates_with_itself_and_with_c() {
    Program {
        name: "uc",
        ours: env!("CARGO_BIN_EXE_uc_pingpong"),
        c: "ibv_uc_pingpong",
        options: "-n 100",
        bytes: "819200",
        queue_pairs: 1,
    }
    .play();
}

#[test]
fn ud_pingpong_interoperates_with_itself_and_with_c() {
    Program {
        name: "ud",
        ours: env!("CARGO_BIN_EXE_ud_pingpong"),
        c: "ibv_ud_pingpong",
        options: "-n 100 -s 1024",
        bytes: "204800",
        queue_pairs: 1,
    }
    .play();
}

#[test]
fn srq_pingpong_interoperates_with_itself_and_with_c() {
    Program {
        name: "srq",
        ours: env!("CARGO_BIN_EXE_srq_pingpong"),
        c: "ibv_srq_pingpong",
        options: concat!("-n 100 -s 1024 -q 5 ", or_on_demand!()),
        bytes: "204800",
        queue_pairs: 5,
    }
    .play();
}

/// A program, its option, and the error, which the C program prints as well.
type Absent = (&'static str, &'static str, &'static str);

/// Features absent from Soft-RoCE, or in conflict.
const ABSENT_FEATURES: [Absent; 4] = [
    (
        "rc",
        "-P",
        "prefetch is valid only with on-demand memory region",
    ),
    ("rc", "-t", "the device isn't completion timestamp capable"),
    ("rc", "-j", "device doesn't support dm allocation"),
    ("rc", "-j -o", "DM memory region can't be on demand"),
];

/// Features absent from devices without paging on demand.
const WITHOUT_ON_DEMAND: [Absent; 3] = [
    ("rc", "-o", NO_ODP),
    ("rc", "-O", NO_ODP),
    (
        "srq",
        "-o",
        "the device isn't ODP capable or does not support RC send, receive and srq with ODP",
    ),
];

/// The feature absent from Soft-RoCE with paging on demand.
const WITH_ON_DEMAND: [Absent; 1] = [("rc", "-O", "the device doesn't support implicit ODP")];

const NO_ODP: &str =
    "the device isn't ODP capable or does not support RC send and receive with ODP";

/// Printed by a guest whose device has paging on demand.
const PAGES: &str = "has paging on demand";

/// A command with its output, errors among it, and its exit code.
fn reported(command: String) -> String {
    format!("{command} 2>&1; echo \"exit $?\"; ")
}

/// Commands of our programs `rc` and `srq`, and of C's, that need features.
fn absent(rc: &str, srq: &str, features: &[Absent]) -> String {
    let programs = features.iter().flat_map(|(program, option, _)| {
        let ours = if *program == "rc" { rc } else { srq };
        [
            format!("{ours} {option}"),
            format!("ibv_{program}_pingpong {option}"),
        ]
    });
    programs.map(reported).collect()
}

/// Lines of our program without a feature, and of C's.
fn reported_by_both(reason: &str) -> [String; 4] {
    let of_c = match reason.strip_prefix('t') {
        Some(rest) => format!("T{rest}"),
        None => reason.replacen("device", "Device", reason.starts_with('d').into()),
    };
    let exit = "exit 1".to_owned();
    [reason.to_owned(), exit.clone(), of_c, exit]
}

#[test]
fn pingpong_with_invalid_setup_reports_the_reason() {
    let rc = env!("CARGO_BIN_EXE_rc_pingpong");
    let srq = env!("CARGO_BIN_EXE_srq_pingpong");
    let ud = env!("CARGO_BIN_EXE_ud_pingpong");
    // Failing commands, and then a client sending invalid data to a server.
    let server = format!("timeout 45 {rc} -g 1 2>&1; echo \"exit $?\"");
    let stranger = "for i in $(seq 20); do \
        bash -c \"printf %052d 7 > /dev/tcp/$A/18515\" 2> /dev/null && break; sleep 0.5; done";
    let commands = [
        reported(format!("{rc} -g 1 -p 9999 $A")),
        absent(rc, srq, &ABSENT_FEATURES),
        format!("if {}; then echo {PAGES}; ", has_on_demand!()),
        absent(rc, srq, &WITH_ON_DEMAND),
        format!("else {}fi; ", absent(rc, srq, &WITHOUT_ON_DEMAND)),
        reported(format!("{rc} -d none")),
        reported(format!("{rc} -i 2")),
        reported(format!("{rc} -g 200")),
        reported(format!("{ud} -g 1 -s 5000")),
        stranger.to_owned(),
    ];
    let printed = run_for(SECONDS, "rxe", &server, &commands.concat());
    let without_addresses = |lines: &[String]| -> Vec<String> {
        let local = |line: &&String| !line.starts_with("  local address:  LID 0x0000, QPN ");
        lines.iter().filter(local).cloned().collect()
    };
    let garbage = "0".repeat(51);
    assert_eq!(
        without_addresses(&printed.a),
        [
            &format!("the peer has sent no address, but \"{garbage}7\""),
            "exit 1"
        ]
    );
    let mut expected = vec![
        "couldn't connect to 10.9.0.1:9999: Connection refused (os error 111)".to_owned(),
        "exit 1".to_owned(),
    ];
    let mut features = ABSENT_FEATURES.to_vec();
    let mut errors = without_addresses(&printed.b);
    if errors.iter().any(|line| line == PAGES) {
        errors.retain(|line| line != PAGES);
        features.extend(WITH_ON_DEMAND);
    } else {
        features.extend(WITHOUT_ON_DEMAND);
    }
    expected.extend(
        features
            .iter()
            .flat_map(|(_, _, reason)| reported_by_both(reason)),
    );
    for reason in [
        "IB device none not found: `ibv_open_device` failed (none): no RDMA device has this name; \
         the devices of this machine are: rxe0",
        "couldn't get port info: `ibv_query_port` failed (port 2 of rxe0): \
         Invalid argument (os error 22)",
        "the GID table of port 1 has nothing at 200",
        "requested size larger than port MTU (4096)",
    ] {
        expected.extend([reason.to_owned(), "exit 1".to_owned()]);
    }
    assert_eq!(errors, expected);
}
