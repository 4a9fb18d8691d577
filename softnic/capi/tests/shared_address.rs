//! Several programs at one address: the keeper routes connections, and the kernel frames, each to its program.
#![cfg(not(without_programs))]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "other tests use the rest")]
mod program;

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, UdpSocket},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Instant,
};

use rustix::process::{Pid, Signal, kill_process};

use program::{PAUSE, Program, TEST_TIMEOUT, addr, exchange_between, exchange_by, len};

/// Length of a recording, in bytes, whose frames are more than those of a set-up.
const FLOWING: u64 = 100_000;

/// A server and a client of one address, each with a recording.
struct Pair {
    programs: [Program; 2],
    recordings: [PathBuf; 2],
}

impl Pair {
    /// Starts `rping` with a number of messages, and waits until frames flow.
    fn start(addr: IpAddr, port: u16, count: u32, folder: &Path) -> Self {
        let recordings = ["server", "client"].map(|side| folder.join(format!("{port}.{side}")));
        let [server, client] = recordings.each_ref().map(|file| file.to_str().unwrap());
        let words = format!("-V -a {addr} -p {port} -C {count}");
        let serve = || Program::start(addr, &["--pcap", server], &format!("rping -s {words}"));
        let ask = || Program::start(addr, &["--pcap", client], &format!("rping -c {words}"));
        let mut programs = [serve(), ask()];
        let deadline = Instant::now() + TEST_TIMEOUT;
        while len(&recordings[1]) < FLOWING {
            assert!(Instant::now() < deadline, "no frames at port {port}");
            assert!(programs[0].is_running(), "the server has ended");
            if !programs[1].is_running() {
                // The server does not listen yet.
                programs[1] = ask();
            }
            thread::sleep(PAUSE);
        }
        Self {
            programs,
            recordings,
        }
    }

    /// Waits until the recording of the client has more bytes than now.
    fn wait_for_frames(&self, more: u64) {
        let len = || len(&self.recordings[1]);
        let end = len() + more;
        let deadline = Instant::now() + TEST_TIMEOUT;
        while len() < end {
            assert!(Instant::now() < deadline, "no frames");
            thread::sleep(PAUSE);
        }
    }

    /// Kills one of the programs, and checks that its peer gets a disconnect.
    fn kill_program(mut self) {
        let killed = fastrand::usize(..2);
        self.programs[killed].0.kill().unwrap();
        let [server, client] = self.programs;
        let peer = if killed == 0 { client } else { server };
        let ended = peer.finish("the peer of a killed program");
        let printed = [ended.stdout, ended.stderr].concat();
        let printed = String::from_utf8_lossy(&printed);
        assert!(printed.contains("DISCONNECT EVENT"), "{killed}: {printed}");
    }
}

/// Slots of the queue pairs to which frames in a recording were sent. Slot 0 is that of queue pair 1.
fn slots(recording: &Path) -> BTreeSet<u8> {
    /// Lengths of the header of the file, of the header of a frame in the file, and of the frame's IP and UDP headers.
    const FILE: usize = 24;
    const RECORD: usize = 16;
    const SOCKET: usize = 28;
    let bytes = fs::read(recording).unwrap();
    let mut slots = BTreeSet::new();
    let mut rest = &bytes[FILE..];
    while let Some((header, frames)) = rest.split_at_checked(RECORD) {
        let len = u32::from_le_bytes(header[8..12].try_into().unwrap());
        // The last frame of a killed program may be incomplete.
        let Some((frame, next)) = frames.split_at_checked(usize::try_from(len).unwrap()) else {
            break;
        };
        slots.insert(frame[SOCKET + 5]);
        rest = next;
    }
    slots.remove(&0);
    slots
}

#[test]
fn programs_of_each_kind_exchange_messages_at_one_address() {
    let both = [addr(40, 2); 2];
    let pairs = [
        (
            "rping -s -a SERVER -p 7101 -C 20 -V",
            "rping -c -a SERVER -p 7101 -C 20 -V",
        ),
        ("ucmatose -b SERVER -p 7102", "ucmatose -s SERVER -p 7102"),
        (
            "ibv_rc_pingpong -g 0 -n 200 -p PORT",
            "ibv_rc_pingpong -g 0 -n 200 -p PORT SERVER",
        ),
    ];
    thread::scope(|scope| {
        for (server, client) in pairs {
            scope.spawn(move || exchange_between(both, &[], server, client));
        }
        // Without checks, which report its client.
        scope.spawn(|| exchange_by("run", both, &[], "udaddy -b SERVER", "udaddy -s SERVER"));
    });
}

/// Eight programs. Of two pairs, one program is killed: its peer ends by itself, as the kernel of a killed program would
/// disconnect it, and the other pairs exchange all messages. No frame reaches a program of another pair.
#[test]
fn killed_programs_harm_no_other() {
    let addr = addr(41, 2);
    let folder = tempfile::tempdir().unwrap();
    let start = |port, count| Pair::start(addr, port, count, folder.path());
    let victims = [start(7201, 1 << 20), start(7202, 1 << 20)];
    let survivors = [start(7203, 1000), start(7204, 1000)];
    let pairs = victims.iter().chain(&survivors);
    let recordings: Vec<_> = pairs.map(|pair| pair.recordings.clone()).collect();
    for pair in victims {
        pair.kill_program();
    }
    for pair in survivors {
        for program in pair.programs {
            let ended = program.finish("a program of another pair");
            assert!(ended.status.success(), "{ended:?}");
        }
    }
    assert_slots_of_pairs(recordings);
}

/// The process of the keeper of an address, and the number of its descriptors: the same with the same programs.
fn keeper_of(addr: IpAddr) -> Option<(Pid, usize)> {
    let words = format!("keeper\0--detached\0{addr}\0");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut keepers = processes.filter_map(|process| {
        let command = fs::read_to_string(process.path().join("cmdline")).ok()?;
        command.ends_with(&words).then_some(())?;
        let fds = fs::read_dir(process.path().join("fd")).ok()?.count();
        let pid = process.file_name().to_str()?.parse().ok()?;
        Some((Pid::from_raw(pid)?, fds))
    });
    keepers.next()
}

/// Kills the keeper of an address, and waits until all programs have returned to another one.
fn kill_keeper(addr: IpAddr) {
    let (killed, fds) = keeper_of(addr).unwrap();
    kill_process(killed, Signal::KILL).unwrap();
    let deadline = Instant::now() + TEST_TIMEOUT;
    let is_complete = |(pid, count)| pid != killed && count >= fds;
    while !keeper_of(addr).is_some_and(is_complete) {
        assert!(Instant::now() < deadline, "a program does not return");
        thread::sleep(PAUSE);
    }
}

/// Nine programs, whose keeper is killed twice: connections and listeners go on, and further programs start. With the
/// later keeper, the end of a killed program is reported to its peer, and no frame reaches a program of another pair.
#[test]
fn killed_keeper_harms_no_program() {
    let addr = addr(45, 2);
    let folder = tempfile::tempdir().unwrap();
    let start = |port, count| Pair::start(addr, port, count, folder.path());
    let victims = [start(7501, 1 << 20), start(7502, 1 << 20)];
    // Not the first program, which gets requests to no listener.
    let mut listening = Program::start(addr, &[], &format!("rping -s -P -a {addr} -p 7500"));
    let survivors = [start(7503, 1 << 20), start(7504, 1 << 20)];
    kill_keeper(addr);
    let words = format!("rping -c -V -a {addr} -p 7500 -C 20");
    let client = Program::start(addr, &[], &words).finish("a client of an earlier listener");
    assert!(client.status.success(), "{client:?}");
    let later = start(7505, 1 << 20);
    kill_keeper(addr);
    let pairs = victims.iter().chain(&survivors).chain([&later]);
    let recordings: Vec<_> = pairs.map(|pair| pair.recordings.clone()).collect();
    for pair in victims {
        pair.kill_program();
    }
    for mut pair in survivors.into_iter().chain([later]) {
        pair.wait_for_frames(FLOWING);
        assert!(
            pair.programs
                .each_mut()
                .into_iter()
                .all(Program::is_running)
        );
    }
    assert!(listening.is_running());
    assert_slots_of_pairs(recordings);
}

/// Each pair has frames of its own two slots alone, in the recordings of both programs.
fn assert_slots_of_pairs(recordings: Vec<[PathBuf; 2]>) {
    let mut all = BTreeSet::new();
    for [server, client] in recordings {
        let (server, client) = (slots(&server), slots(&client));
        assert_eq!((server.len(), &server), (2, &client));
        for slot in server {
            assert!(all.insert(slot), "two pairs have frames of slot {slot}");
        }
    }
}

/// The parent, and a child made by `fork`, have a device each, at one address: a port of one is taken for the other.
const FORK: &str = r#"
import ctypes, os, socket, struct, sys, time
verbs = ctypes.CDLL("libibverbs.so.1")
cm = ctypes.CDLL("librdmacm.so.1", use_errno=True)
cm.rdma_create_event_channel.restype = ctypes.c_void_p
for function in ("rdma_create_id", "rdma_bind_addr"):
    getattr(cm, function).argtypes = [ctypes.c_void_p] * 4 if function == "rdma_create_id" else [ctypes.c_void_p] * 2

def device_count():
    count = ctypes.c_int()
    verbs.ibv_get_device_list(ctypes.byref(count))
    return count.value

def bind(port):
    channel = cm.rdma_create_event_channel()
    id = ctypes.c_void_p()
    assert cm.rdma_create_id(channel, ctypes.byref(id), None, 0x106) == 0
    addr = struct.pack("=HHI8x", socket.AF_INET, socket.htons(port), 0)
    return ctypes.get_errno() if cm.rdma_bind_addr(id, addr) else 0

assert device_count() == 1
assert bind(7301) == 0
child = os.fork()
if child == 0:
    results = device_count(), bind(7301), bind(7302)
    print(*results)
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
print(bind(7302), bind(7301))
"#;

/// A child binds a port and ends, while a child of its own lives: the port is free.
const ORPHAN: &str = r#"
held, to_grandchild = os.pipe()
child = os.fork()
if child == 0:
    assert bind(7303) == 0
    if os.fork() == 0:
        os.close(to_grandchild)
        os.close(1)
        os.read(held, 1)
    os._exit(0)
os.waitpid(child, 0)
deadline = time.monotonic() + 30
while (result := bind(7303)) != 0 and time.monotonic() < deadline:
    time.sleep(0.02)
print(result)
"#;

#[test]
fn child_made_by_fork_has_a_device_beside_its_parents() {
    // `EADDRINUSE` is 98. The child's port is free after its end.
    assert_eq!(printed_by(42, FORK), "1 98 0\n0 98\n");
}

#[test]
fn ended_parent_of_a_living_child_has_no_port() {
    assert_eq!(
        printed_by(44, &[FORK, ORPHAN].concat()),
        "1 98 0\n0 98\n0\n"
    );
}

/// The output of a program of Python at an address.
fn printed_by(test: u8, program: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("fork.py");
    fs::write(&script, program).unwrap();
    let words = format!("/usr/bin/python3 {}", script.display());
    let ended = Program::start(addr(test, 2), &[], &words).finish("the program");
    assert!(ended.status.success(), "{ended:?}");
    String::from_utf8(ended.stdout).unwrap()
}

/// The port is free for a process without a keeper after the end of all programs, also of a killed one.
#[test]
fn keeper_ends_with_the_last_program() {
    let addr = addr(43, 2);
    let folder = tempfile::tempdir().unwrap();
    let mut pair = Pair::start(addr, 7401, 1 << 20, folder.path());
    assert!(UdpSocket::bind((addr, 4791)).is_err());
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_softnic"));
    let seen = doctor
        .args(["doctor", "--addr", &addr.to_string()])
        .output();
    let seen = seen.unwrap();
    let printed = String::from_utf8_lossy(&seen.stdout);
    assert!(seen.status.success(), "{printed}");
    assert!(
        printed.contains("is shared by programs on softnic"),
        "{printed}"
    );
    pair.programs[0].0.kill().unwrap();
    for program in pair.programs {
        program.finish("a program");
    }
    let deadline = Instant::now() + TEST_TIMEOUT;
    while UdpSocket::bind((addr, 4791)).is_err() {
        assert!(Instant::now() < deadline, "the keeper does not end");
        thread::sleep(PAUSE);
    }
}
