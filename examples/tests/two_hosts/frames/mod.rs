//! Frames of Soft-RoCE are those of softnic: each frame between two guests decodes, and encodes to the same bytes.
//!
//! `XTASK=$PWD/target/debug/xtask RECORD_FRAMES=1 cargo test -p examples --test two_hosts frames` also writes the first
//! frame of each kind to `softnic/tests/wire/rxe.txt`.

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
            transport != Transport::Xrc
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

/// The IP packets of a capture that are frames.
fn packets(pcap: &[u8]) -> Vec<&[u8]> {
    let mut packets = Vec::new();
    let mut rest = &pcap[24..];
    while let Some((header, records)) = rest.split_first_chunk::<16>() {
        let [.., a, b, c, d, _, _, _, _] = *header;
        let len = usize::try_from(u32::from_le_bytes([a, b, c, d])).expect("64 bits");
        let (record, next) = records.split_at(len);
        rest = next;
        let packet = &record[14..];
        let (protocol, udp) = match record[12..14] {
            [0x08, 0x00] => (packet[9], 20),
            [0x86, 0xdd] => (packet[6], 40),
            _ => continue,
        };
        if protocol == 17 && packet[udp + 2..udp + 4] == PORT.to_be_bytes() {
            packets.push(packet);
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
    for packet in packets(&pcap) {
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
