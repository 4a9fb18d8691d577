//! Recordings of softnic read by Wireshark's dissectors: each frame is a frame of `RoCEv2` without a complaint.
//!
//! The tests need the program `tshark`, so `cargo xtask test` runs them, and a plain `cargo test` does not.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../verbs/end.rs"]
mod end;

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{IpAddr, SocketAddr},
    process::Command,
    time::{Duration, Instant},
};

use end::Connected;
use softnic::Fabric;
use verbs::{RemoteAccess, WcStatus, op};

/// Fields printed of each frame: the opcode, the management datagram's attribute, complaints, and the protocols.
const FIELDS: [&str; 6] = [
    "infiniband.bth.opcode",
    "infiniband.mad.attributeid",
    "_ws.malformed",
    "_ws.expert.severity",
    "_ws.expert.message",
    "frame.protocols",
];

/// Severity of remarks below warnings, such as one about a hop limit of 1.
const NOTE: u32 = 0x40_0000;

/// A frame as read by tshark.
#[derive(Debug)]
struct Dissected {
    opcode: u8,
    /// Attribute of a management datagram.
    attribute: Option<u16>,
}

/// Reads a recording by tshark. Fails on a complaint, and on a frame that is not of `RoCEv2`.
fn dissect(fabric: &Fabric) -> Vec<Dissected> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.pcap");
    let recorded = || fabric.recorded_frames().unwrap().len();
    let before = recorded();
    fabric.write_pcap(&file).unwrap();
    let after = recorded();
    let mut tshark = Command::new("tshark");
    // RoCEv2 allows a UDP checksum of zero over IPv6 too.
    let options = [
        "ip.check_checksum:TRUE",
        "udp.ignore_ipv6_zero_checksum:TRUE",
    ];
    tshark.args(options.iter().flat_map(|option| ["-o", option]));
    tshark.args(["-n", "-T", "fields", "-E", "separator=|", "-r"]);
    tshark
        .arg(&file)
        .args(FIELDS.iter().flat_map(|field| ["-e", field]));
    let output = tshark
        .output()
        .expect("tshark is installed by `cargo xtask setup`");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let frames: Vec<_> = text.lines().map(parse).collect();
    assert!((before..=after).contains(&frames.len()));
    frames
}

fn parse(line: &str) -> Dissected {
    let fields: Vec<&str> = line.split('|').collect();
    let [
        opcode,
        attribute,
        malformed,
        severities,
        _messages,
        protocols,
    ] = fields[..]
    else {
        unreachable!("another number of fields: {line}");
    };
    let mut severities = severities
        .split(',')
        .filter(|severity| !severity.is_empty());
    let is_harmless = severities.all(|severity| severity.parse::<u32>().unwrap() <= NOTE);
    assert!(malformed.is_empty() && is_harmless, "{line}");
    assert!(protocols.contains("infiniband"), "{line}");
    Dissected {
        opcode: opcode.parse().unwrap(),
        attribute: attribute
            .strip_prefix("0x")
            .map(|hex| u16::from_str_radix(hex, 16).unwrap()),
    }
}

fn opcodes(frames: &[Dissected]) -> BTreeSet<u8> {
    frames.iter().map(|frame| frame.opcode).collect()
}

#[test]
fn tshark_reads_operations_of_reliable_connections() {
    let mut this = Connected::new(Fabric::new().record());
    let access = RemoteAccess::WRITE | RemoteAccess::READ | RemoteAccess::ATOMIC;
    let region = this.b.pd.alloc_remote(10_000, access).unwrap();
    let number = region.token().slice(0..8).unwrap();
    for len in [1, 10_000] {
        let buf = this.b.pd.alloc_buf(10_000).unwrap();
        this.qp_b.post_recv(buf).unwrap();
        let work = this.a.filled(&vec![7; len]);
        this.qp_a.post(op::Send::new(work).imm_data(5)).unwrap();
        let work = this.a.filled(&vec![7; len]);
        let target = region.token().slice(0..len as u64).unwrap();
        this.qp_a.post(op::Write::new(work, target)).unwrap();
        let buf = this.a.pd.alloc_buf(len).unwrap();
        this.qp_a.post(op::Read::new(buf, target)).unwrap();
        for done in this.a.reap(&mut this.qp_a, 3) {
            assert_eq!(done.status, WcStatus::SUCCESS);
        }
    }
    let buf = this.a.pd.alloc_buf(8).unwrap();
    this.qp_a.post(op::FetchAdd::new(buf, number, 2)).unwrap();
    let buf = this.a.pd.alloc_buf(8).unwrap();
    this.qp_a
        .post(op::CompareSwap::new(buf, number, 42, 7))
        .unwrap();
    this.a.reap(&mut this.qp_a, 2);
    let expected: BTreeSet<u8> = [
        0, 1, 3, 5, // SEND: first, middle, last and only with immediate data
        6, 7, 8, 10, // WRITE: first, middle, last, only
        12, 13, 14, 15, 16, // READ: request, and responses
        17, 18, 19, 20, // acknowledgements and atomics
    ]
    .into();
    assert_eq!(opcodes(&dissect(&this.fabric)), expected);
}

/// Exchanges bytes over a stream of `rsocket`, so that the recording has the connection manager's messages.
fn stream(addrs: [IpAddr; 2]) -> Fabric {
    let fabric = Fabric::new().keep_objects().record();
    let [a, b] = addrs.map(|addr| fabric.host(addr));
    let addr = SocketAddr::new(b.addr(), 0);
    let listener = b.run(|| rsocket::Listener::bind(addr).unwrap());
    let addr = listener.local_addr().unwrap();
    let echo = b.spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
    });
    let mut stream = a.run(|| rsocket::Stream::connect(addr).unwrap());
    stream.write_all(b"hello").unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"hello");
    drop(stream);
    echo.join().unwrap();
    fabric
}

#[test]
fn tshark_reads_connection_management_over_ipv4_and_ipv6() {
    for addrs in [["10.9.0.1", "10.9.0.2"], ["fd00:9::1", "fd00:9::2"]] {
        let fabric = stream(addrs.map(|addr| addr.parse().unwrap()));
        let deadline = Instant::now() + Duration::from_secs(60);
        let frames = loop {
            let frames = dissect(&fabric);
            let attributes: BTreeSet<u16> =
                frames.iter().filter_map(|frame| frame.attribute).collect();
            // ConnectRequest, ConnectReply, ReadyToUse and DisconnectRequest.
            if attributes.is_superset(&[0x10, 0x13, 0x14, 0x15].into()) {
                break frames;
            }
            // The engine's threads end the connection after `drop`.
            assert!(Instant::now() < deadline, "{attributes:x?}");
        };
        assert!(opcodes(&frames).contains(&100), "UD SEND only");
    }
}
