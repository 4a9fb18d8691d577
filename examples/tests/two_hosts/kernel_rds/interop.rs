//! Sockets of this crate on host a, and the kernel's on host b.

#![expect(clippy::print_stdout, reason = "the output of both sides")]

use std::{collections::HashSet, env, fmt::Display, path::Path};

use rds::proto::wire::{Extension, Flags};

use super::{
    PEER, answered, answers,
    capture::{Frame, Kind, cut_off, frames},
    flowed, in_turn, numbers, outages, questions, roles,
};
use crate::{
    guests::{Printed, run_unless_kernel_dies, run_with},
    link::{CUT, PREPARE, RESTORE},
};

const OURS: &str = env!("CARGO_BIN_EXE_rds-peer");

/// Commands for roles of this crate, in sequence.
fn ours(roles: &[impl Display]) -> String {
    in_turn(OURS, roles)
}

fn run(seconds: u32, a: &str, b: &str) -> Printed {
    run_with(&["--rds", "b"], seconds, a, b)
}

/// Runs both sides, and checks for connect requests of the kernel while it has a connection.
fn run_calmly(options: &[&str], a: &str, b: &str) -> Printed {
    let b = format!("{b} && {}", roles(&["stale $B"]));
    let options = [&["--rds", "b"], options].concat();
    let printed = run_with(&options, 280, a, &b);
    assert_eq!(numbers(&printed.b, "stale"), [0]);
    printed
}

/// The first request precedes the server.
#[test]
fn interop_user_dials_kernel() {
    let (a, b) = (questions("$A", "$B"), answers("$B", "$A"));
    let folder = tempfile::tempdir().expect("a folder for the packets");
    let file = folder.path().join("packets");
    let options = ["--pcap", file.to_str().expect("a path")];
    let printed = run_calmly(&options, &ours(&a), &roles(&b));
    answered(&printed.a, &printed.b);
    let frames = frames(&file);
    check_solicited(&frames);
    check_operations(&frames);
}

/// The kernel's message after each RDMA operation has the key of the memory, and from newer kernels, whose headers then have a
/// flag, the length and the direction too.
fn check_operations(frames: &[Frame]) {
    let (mut operations, mut lens, mut directions) =
        (HashSet::new(), HashSet::new(), HashSet::new());
    for frame in frames.iter().filter(|frame| frame.kind == Kind::Message) {
        let extensions: Vec<_> = frame.header.extensions.iter().collect();
        let has_two = frame.header.flags.contains(Flags::SECOND_EXTENSION);
        match extensions[..] {
            [] | [Extension::Destination(_)] if !has_two => continue,
            [Extension::Rdma(_)] if !has_two => {}
            [Extension::Rdma(_), Extension::RdmaBytes(len, direction)] if has_two => {
                lens.insert(len);
                directions.insert(direction);
            }
            _ => unreachable!("{frame:?}"),
        }
        operations.insert((frame.from, frame.header.sequence));
    }
    println!("{} operations, lengths {lens:?}", operations.len());
    assert_eq!(operations.len(), 24);
    if !lens.is_empty() {
        assert_eq!(lens, HashSet::from([1, 4096, 20_000, 1 << 20]));
        assert_eq!(directions, HashSet::from([1, 2]));
    }
}

/// Each type of service has a connection, and in newer kernels a work queue, of its own.
#[test]
fn interop_services_have_their_connections() {
    let a = ours(&["services $A:4600 $B:4000 8", "stop $A:4000 $B:4000"]);
    let printed = run(200, &a, &roles(&["serve $B:4000", "services $B"]));
    let echoed = printed.a.iter().filter(|line| *line == "echoed 11");
    assert_eq!(echoed.count(), 8, "{:?}", printed.a);
    assert_eq!(numbers(&printed.b, "services"), [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// Exactly the last frame of each message or map is solicited, in both directions.
fn check_solicited(frames: &[Frame]) {
    let wrong: Vec<_> = frames
        .iter()
        .filter(|one| one.solicited != one.last)
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    let hosts: HashSet<_> = frames.iter().map(|frame| frame.from).collect();
    assert_eq!(hosts.len(), 2, "{hosts:?}");
    for host in hosts {
        for (kind, last) in [
            (Kind::Map, false),
            (Kind::Map, true),
            (Kind::Acknowledgement, true),
            (Kind::Message, false),
            (Kind::Message, true),
        ] {
            let some = frames
                .iter()
                .any(|frame| (frame.from, frame.kind, frame.last) == (host, kind, last));
            assert!(some, "{host} has sent no {kind:?}, {last}");
        }
    }
}

#[test]
fn interop_kernel_dials_user() {
    let (a, mut b) = (answers("$A", "$B"), questions("$B", "$A"));
    let stop = b.iter().position(|question| question.starts_with("stop"));
    let stop = stop.expect("a question that is the last for a server");
    let more = ["sink", "stall"].map(|role| format!("{role} $B:4000 $A:4000 {MANY}"));
    b.splice(stop..stop, more);
    let printed = run_calmly(&[], &ours(&a), &roles(&b));
    answered(&printed.b, &printed.a);
    let [count, acks, resets] = numbers(&printed.b, "sunk")[..] else {
        panic!("{:?}", printed.b);
    };
    // The exact number is tested without a device; here messages may arrive late.
    assert!(
        acks * 2 < count && acks > 0 && resets == 0,
        "{acks} of {count}"
    );
    let stalled = numbers(&printed.b, "stalled");
    assert_eq!((stalled[0], stalled[2]), (MANY, 0));
}

/// More messages than there are receives.
const MANY: u64 = 1500;

/// Both sides send for `seconds`, while the link of a host is disturbed: on b, with the kernel's
/// RDS, or on a. Each host runs its `before` first.
fn flow_after(options: &[&str], before: [&str; 2], seconds: u32, a: &str, b: &str) -> Printed {
    let ours = ours(&[&format!("flow $A:4100 $B:4100 {seconds} 0.01")]);
    let flow = roles(&[&format!("flow $B:4100 $A:4100 {seconds} 0.01")]);
    let options = [&["--rds", "b"], options].concat();
    let a = format!("{} && {{ ({a}) & {ours}; }}", before[0]);
    let b = format!("{} && {{ ({b}) & {flow}; }}", before[1]);
    let printed = run_with(&options, 280, &a, &b);
    flowed(&printed.a, &printed.b);
    printed
}

/// As [`flow_after`], without commands before.
fn flow_while(seconds: u32, a: &str, b: &str) -> Printed {
    flow_after(&[], ["true", "true"], seconds, a, b)
}

/// Checks the output of kernel and crate after operations on the same exports,
/// with long messages in both directions, while the link was cut; and the capture.
fn link_down(printed: &Printed, packets: &Path) {
    let [ours, kernels] = [&printed.a, &printed.b].map(|lines| numbers(lines, "link_down"));
    println!("{ours:?} {kernels:?}");
    // Successful operations have their message, and failed ones may have it.
    let (done, dropped) = (kernels[0], kernels[1]);
    assert!(done > 0 && dropped > 0 && ours[1] == dropped);
    assert!((done..=done + dropped).contains(&ours[0]));
    assert!(ours[2] >= kernels[3] && kernels[2] == ours[3]);
    let cut_off = cut_off(&frames(packets), 1 << 20);
    println!("cut off: {cut_off:?}");
    assert!(!cut_off.is_empty(), "no long message was cut off");
}

/// The link is cut during operations of the
/// kernel; for 4 seconds; and, in the long test, for 30. It is cut on the way: with a cut at the
/// interface of the host, Linux 6.1 may never recover, see `DESIGN.md`. After the cut for 4
/// seconds, the device is removed and added again. The kernel waits until this crate has closed it;
/// librdmacm closes it only if there is another.
#[test]
fn interop_link_cuts_lose_nothing() {
    let long = env::var_os("LONG").is_some();
    let folder = tempfile::tempdir().expect("a folder for the packets");
    let file = folder.path().join("packets");
    let options = ["--pcap", file.to_str().expect("a path")];
    // One cut in ten on a busy host falls between two long messages.
    let kernel = roles(&[format!("link_down $B:4400 '{CUT}' '{RESTORE}' 3")]);
    let before = [
        &ours(&["link-down $A:4400 $B:4400"]),
        &format!("{PREPARE} && {kernel}"),
    ];
    let cut = |down: u32| format!("sleep 8; {CUT}; sleep {down}; {RESTORE}");
    let remove = "rdma link add other type rxe netdev lo && sleep 18 && rdma link delete rxe0 && \
                  rdma link add rxe0 type rxe netdev eth0 && echo made anew";
    let printed = flow_after(&options, before.map(String::as_str), 28, remove, &cut(4));
    link_down(&printed, &file);
    assert!(
        printed.a.contains(&"made anew".to_owned()),
        "{:?}",
        printed.a
    );
    if long {
        let cut = |down: u32| format!("{PREPARE}; {}", cut(down));
        flow_while(45, "true", &cut(30));
        flow_while(45, &cut(30), "true");
        // Ten cuts of 1 to 6 seconds, on one host.
        let cuts = format!(
            "{PREPARE}; for down in 3 1 6 2 5 4 1 6 2 3; do \
             sleep 4; {CUT}; sleep $down; {RESTORE}; done"
        );
        flow_while(90, "true", &cuts);
        outages::idle();
        outages::soak();
    }
}

/// Requests unanswered by one process are answered by the next. Then this side is killed
/// during messages in both directions, and restarted, in the long test.
#[test]
fn interop_killed_process_is_replaced() {
    let (local, peer) = ("$A:4200", "$B:4200");
    let a = format!(
        "{OURS} serve --die $A:4000; {} && {{ {OURS} load {local} {peer} 1 0; {}; }}",
        ours(&["serve $A:4000", "flow $A:4100 $B:4100 3 0.05"]),
        ours(&[&format!("load {local} {peer} 2 1")]),
    );
    // The message with the kill may be acknowledged, and lost.
    let b = roles(&["sizes $B:4000 $A:4000"])
        + &format!("&& ({0} || {0}) &&", roles(&["stop $B:4000 $A:4000"]))
        + &roles(&[
            "flow $B:4100 $A:4100 3 0.05",
            &format!("load {peer} {local} 1 2"),
        ]);
    let printed = run(280, &a, &b);
    assert_eq!(numbers(&printed.b, "echoed"), [11]);
    assert!(printed.b.contains(&"stopped".to_owned()));
    flowed(&printed.a, &printed.b);
    assert_ne!(replaced(&printed.a, &printed.b), 0);
    if env::var_os("LONG").is_some() {
        outages::powered_off();
    }
}

/// One process was killed and restarted. Number of resets of the survivor's connection.
fn replaced(killed: &[String], survivor: &[String]) -> u64 {
    let lived = |side: &[String]| numbers(side, "lived");
    assert_eq!(lived(killed).len(), 3, "{killed:?}");
    let [_, _, resets] = lived(survivor)[..] else {
        unreachable!("{survivor:?}");
    };
    let deaths = killed.iter().filter(|line| *line == "dies");
    assert_eq!(deaths.count(), 1, "{killed:?}");
    resets
}

/// Kernel's message about a module that is unloaded with connections left.
const LEFT: &str = "still has objects when called from rds_ib_exit";

/// Whether the kernel's RDS ends all of its connections when `rds_rdma` is unloaded: of two kernels, without this crate.
///
/// Linux 7.2 leaves some. Its communication manager calls the unloaded module for them (`cma_ib_handler`): the kernel
/// crashes or hangs, or the reloaded module receives nothing.
fn unloads_cleanly() -> bool {
    // Life 2 of the other host never comes, so both sides send until they are stopped.
    let traffic = |local, peer| format!("timeout 10 {PEER} load {local} {peer} 1 2");
    let a = traffic("$A:4300", "$B:4300") + "; true";
    let b = format!(
        "{}; rmmod rds_rdma && {{ dmesg | grep -q '{LEFT}' && echo left || echo clean; }}",
        traffic("$B:4300", "$A:4300")
    );
    let printed = run_unless_kernel_dies(&["--rds", "a,b"], 60, &a, &b, "left");
    printed.is_some_and(|printed| match printed.b.last().map(String::as_str) {
        Some("clean") => true,
        Some("left") => false,
        other => unreachable!("{other:?}"),
    })
}

/// The kernel's process is killed during messages in both directions, and restarted. The kernel's RDS is
/// reloaded in between, if it can be.
#[test]
fn interop_reloaded_kernel_is_replaced() {
    let is_reloaded = unloads_cleanly();
    let reload = if is_reloaded {
        "rmmod rds_rdma && insmod $(find /lib/modules/$(uname -r) -name 'rds_rdma.ko*')"
    } else {
        println!("not reloaded: this kernel's module leaves connections when it is unloaded");
        "true"
    };
    let b = format!(
        "{}; {reload} && {}",
        roles(&["load $B:4300 $A:4300 1 0"]),
        roles(&["load $B:4300 $A:4300 2 1"])
    );
    let printed = run(280, &ours(&["load $A:4300 $B:4300 1 2"]), &b);
    // A connection of the kernel outlives the process, but not the module.
    let is_reset = replaced(&printed.b, &printed.a) > 0;
    assert_eq!(is_reset, is_reloaded, "{:?}", printed.a);
}

/// Two processes at a time, each with an address; one with a type of service.
#[test]
fn interop_two_processes_share_a_device() {
    let alias = "10.9.0.77";
    let wait =
        "until grep -qis ffff:0a09:004d /sys/class/infiniband/*/ports/1/gids/*; do sleep 0.1; done";
    let first = ours(&["sizes $A:4000 $B:4000"]);
    let second = ours(&[&format!("sizes --tos 3 {alias}:4000 $B:4000")]);
    let stop = ours(&["stop $A:4000 $B:4000"]);
    let a = format!(
        "ip address add {alias}/24 dev eth0 && {wait} && {first} & first=$!; \
         {wait}; {second} && wait $first && {stop}"
    );
    let printed = run_calmly(&[], &a, &roles(&["serve $B:4000"]));
    let echoed = printed.a.iter().filter(|line| *line == "echoed 11");
    assert_eq!(echoed.count(), 2, "{:?}", printed.a);
}

#[test]
fn interop_kernel_over_ipv6() {
    let a = ours(&["sizes [$A6]:4000 [$B6]:4000", "stop [$A6]:4000 [$B6]:4000"])
        + " && "
        + &ours(&["serve [$A6]:4000"]);
    let b = roles(&[
        "serve [$B6]:4000",
        "sizes [$B6]:4000 [$A6]:4000",
        "stop [$B6]:4000 [$A6]:4000",
    ]);
    let printed = run_calmly(&[], &a, &b);
    assert_eq!(numbers(&printed.a, "echoed"), [11]);
    assert_eq!(numbers(&printed.b, "echoed"), [11]);
}
