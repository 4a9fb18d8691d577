//! Frames of Soft-RoCE are those of softnic: each frame between two guests decodes, and encodes to the same bytes.
//!
//! `XTASK=$PWD/target/debug/xtask RECORD_FRAMES=1 cargo test -p examples --test two_hosts frames` also writes the first
//! frame of each kind to `softnic/tests/wire/rxe.txt`, and the exchanges of the connection manager and of reliable connections
//! to `softnic/tests/recorded/rxe-6.12.txt`, by the version of Linux; `SOFT_ROCE_KERNEL=newest` chooses the newest one.

#[path = "../../../../softnic/tests/wire/kind.rs"]
mod kind;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::Path,
};

use softnic::wire::{Frame, Opcode, Operation, PORT, Transport};

use crate::guests::{Printed, run_with};
use kind::kind;

const PEER: &str = env!("CARGO_BIN_EXE_frame-peer");

/// The checked-in frames.
const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../softnic/tests/wire/rxe.txt");

/// Folder of the checked-in exchanges.
const EXCHANGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../softnic/tests/recorded");

/// Port of the markers between exchanges.
const MARKER_PORT: u16 = 9;

/// Marker after a recorded exchange, before frames that are not recorded.
const END: &str = "End";

/// Timeout of the exchange, on a busy machine.
const SECONDS: u32 = 240;

/// Length from which frames over IPv6 are not written to the file: those over IPv4 have the same headers.
const MAX_LEN_V6: usize = 300;

/// Kinds of acknowledgements and of messages of the connection manager, beside the opcodes.
const NAKS: [&str; 4] = [
    "RNR NAK",
    "NAK SequenceError",
    "NAK InvalidRequest",
    "NAK RemoteAccess",
];
const MESSAGES: [&str; 8] = [
    "REQ", "REP", "RTU", "REJ", "DREQ", "DREP", "SIDR REQ", "SIDR REP",
];

/// The kinds that Soft-RoCE sends, with the distribution's rdma-core. Its provider flushes since rdma-core 45.
fn expected(has_atomic_write: bool) -> BTreeSet<String> {
    let opcodes = (0..=u8::MAX).map(Opcode).filter(|opcode| {
        opcode.parse().is_some_and(|(transport, operation)| {
            !matches!(transport, Transport::Xrc | Transport::Srd | Transport::Dc)
                && operation != Operation::Flush
                && (operation != Operation::AtomicWrite || has_atomic_write)
        })
    });
    let naks = NAKS.map(|nak| format!("{}, {nak}", Opcode::RC_ACKNOWLEDGE));
    let messages = MESSAGES.map(|message| format!("UD SEND Only, {message}"));
    let names = opcodes.map(|opcode| opcode.to_string());
    let names: Vec<_> = names.chain(naks).chain(messages).collect();
    [4, 6]
        .iter()
        .flat_map(|version| {
            names
                .iter()
                .map(move |name| format!("IPv{version}, {name}"))
        })
        .collect()
}

/// A frame or a marker of a capture.
enum Captured<'a> {
    /// Time in microseconds, and the IP packet.
    Frame(u64, &'a [u8]),
    /// Name of the exchange that follows.
    Marker(String),
}

/// The frames and markers of a capture.
fn captured(pcap: &[u8]) -> Vec<Captured<'_>> {
    let mut packets = Vec::new();
    let mut rest = &pcap[24..];
    while let Some((header, records)) = rest.split_first_chunk::<16>() {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
        let time = u64::from(word(0)) * 1_000_000 + u64::from(word(4));
        let len = usize::try_from(word(8)).expect("64 bits");
        let (record, next) = records.split_at(len);
        rest = next;
        let packet = &record[14..];
        let (protocol, udp) = match record[12..14] {
            [0x08, 0x00] => (packet[9], 20),
            [0x86, 0xdd] => (packet[6], 40),
            _ => continue,
        };
        if protocol != 17 {
            continue;
        }
        match u16::from_be_bytes([packet[udp + 2], packet[udp + 3]]) {
            PORT => packets.push(Captured::Frame(time, packet)),
            MARKER_PORT => {
                let end = udp + usize::from(u16::from_be_bytes([packet[udp + 4], packet[udp + 5]]));
                let text = String::from_utf8_lossy(&packet[udp + 8..end]);
                packets.push(Captured::Marker(text.into_owned()));
            }
            _ => {}
        }
    }
    packets
}

#[test]
fn frames_of_soft_roce_encode_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let pcap = folder.path().join("frames.pcap");
    let side = |role: &str| format!("uname -r && {PEER} {role} $B $B && {PEER} {role} $B $B6");
    let options = ["--pcap", pcap.to_str().unwrap()];
    let printed = run_with(&options, SECONDS, &side("active"), &side("passive"));
    let pcap = fs::read(&pcap).unwrap();
    let mut kinds = BTreeMap::new();
    let captured = captured(&pcap);
    for item in &captured {
        let Captured::Frame(_, packet) = *item else {
            continue;
        };
        let frame = Frame::decode(packet).unwrap_or_else(|error| panic!("{error}: {packet:02x?}"));
        let mut again = Vec::new();
        frame.encode(&mut again).unwrap();
        let packet = &packet[..again.len()];
        assert_eq!(again, packet, "{frame:?}");
        kinds.entry(kind(&frame)).or_insert(packet);
    }
    let has_atomic_write = printed.a.iter().any(|line| line == "atomic write");
    for kind in expected(has_atomic_write) {
        assert!(kinds.contains_key(&kind), "no {kind}");
    }
    if env::var_os("RECORD_FRAMES").is_some() {
        write(&printed, &kinds);
        write_exchanges(&printed, &captured);
    }
}

/// Writes the checked-in frames.
fn write(printed: &Printed, kinds: &BTreeMap<String, &[u8]>) {
    let mut text = format!(
        "# IP packets sent by rxe of Linux {} between two guests, each whole from the first byte of the IP header\n\
         # to the last byte of the ICRC: the first frame of each kind, over IPv6 only the short ones.\n\
         # Written by `RECORD_FRAMES=1`: see examples/tests/two_hosts/frames/mod.rs.\n",
        printed.a[0]
    );
    for (name, packet) in kinds {
        if name.starts_with("IPv4") || packet.len() < MAX_LEN_V6 || name.ends_with("REQ") {
            let digits: String = packet.iter().map(|byte| format!("{byte:02x}")).collect();
            text += &format!("# {name}\n{digits}\n");
        }
    }
    fs::write(Path::new(VECTORS), text).expect("the file cannot be written");
}

/// Writes the exchanges over IPv4.
fn write_exchanges(printed: &Printed, captured: &[Captured<'_>]) {
    let release = &printed.a[0];
    let mut text = format!(
        "# Frames between two hosts with rxe of Linux {release}: for each exchange, the sender (a is the active side), the\n\
         # time in microseconds since the first frame, and the IP packet up to the last byte of the ICRC.\n\
         # Written by `RECORD_FRAMES=1`: see examples/tests/two_hosts/frames/mod.rs.\n"
    );
    // Time and sender of the first frame of the exchange.
    let mut start = None;
    let mut is_recorded = false;
    let mut names = BTreeSet::new();
    for item in captured {
        match item {
            Captured::Marker(name) if name == END => is_recorded = false,
            // The same exchanges over IPv6.
            Captured::Marker(name) if !names.insert(name) => break,
            Captured::Marker(name) => {
                is_recorded = true;
                start = None;
                text += &format!("## {name}\n");
            }
            Captured::Frame(..) if !is_recorded => {}
            Captured::Frame(time, packet) => {
                let frame = Frame::decode(packet).expect("decoded before");
                let mut bytes = Vec::new();
                frame.encode(&mut bytes).expect("encoded before");
                let (first, active) = *start.get_or_insert((*time, frame.ip.src()));
                let side = if frame.ip.src() == active { "a" } else { "b" };
                let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                text += &format!("{side} {} {digits}\n", time - first);
            }
        }
    }
    let mut version = release.split(['.', '-']);
    let version = [version.next(), version.next()].map(|part| part.expect("a release"));
    let file = Path::new(EXCHANGES).join(format!("rxe-{}.txt", version.join(".")));
    fs::write(file, text).expect("the file cannot be written");
}
