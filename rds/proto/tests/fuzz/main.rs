//! Fuzz targets for all input from peers. The tests run each target with 100,000 inputs generated
//! from seeds.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{iter, num::NonZero, panic, time::Duration};

use fastrand::Rng;
use rds_proto::{
    SocketId,
    connection::{Completion, Connection, Draft, Message, Received, Settings, Violation},
    wire::{
        BadHeader, CongestionMap, ConnectData, Cookie, Extension, Extensions, Family, Flags,
        Header, HostPair, MAX_MESSAGE, Version,
    },
};

/// Headers: encoding restores the input, except for padding and checksum.
fn header(input: &[u8]) {
    match Header::decode(input, true) {
        Ok(header) => {
            let again = header.encode();
            assert_eq!(again[..26], input[..26]);
            assert_eq!(again[32..], input[32..48]);
            assert_eq!(Header::decode(&again, false), Ok(header));
        }
        Err(BadHeader::Short(len)) => assert!(len == input.len() && len < Header::SIZE),
        Err(_) => assert!(input.len() >= Header::SIZE),
    }
}

/// Extensions: the decoded ones fit into the area.
fn extensions(input: &[u8]) {
    let mut area = Extensions::NONE;
    let len = input.len().min(Extensions::SIZE);
    area.0[..len].copy_from_slice(&input[..len]);
    let size = |extension: Extension| match extension {
        Extension::PortIndex(_) => 2,
        Extension::Paths(_) => 3,
        Extension::Version(_)
        | Extension::Rdma(_)
        | Extension::Generation(_)
        | Extension::Capabilities(_) => 5,
        _ => 9,
    };
    let sizes: usize = area.iter().map(size).sum();
    assert!(sizes <= Extensions::SIZE);
}

/// Private data: the reply is addressed to the sender, with a proposed version.
fn connect_data(input: &[u8]) {
    for family in [Family::V4, Family::V6] {
        let Ok(data) = ConnectData::decode(input, family) else {
            assert!(input.len() < family.size());
            continue;
        };
        assert_eq!(ConnectData::decode(&data.encode(), family), Ok(data));
        if let Ok(answer) = data.answer(data.hosts) {
            assert_eq!(answer.hosts.to(), data.hosts.from());
            assert_eq!(answer.version.major, data.version.major);
            assert!(Version::adopt(&answer).is_some());
        }
    }
}

/// Congestion maps, in two pieces.
fn map(input: &[u8]) {
    let (first, second) = input.split_at(input.len() / 2);
    let map = CongestionMap::decode(&[first, second]);
    assert_eq!(map.is_some(), input.len() == CongestionMap::SIZE);
    if let Some(map) = map {
        assert_eq!(map.as_bytes()[..], *input);
        assert_eq!(map.released(&map), 0);
    }
}

/// Sequences of frames, each with a 2-byte length. The connection is reset after a violation.
fn frames(mut input: &[u8]) {
    let mut settings = Settings::default();
    settings.max_pongs = 4;
    let mut connection: Connection<(), Vec<u8>> = Connection::new(&settings, NonZero::<u64>::MIN);
    let mut now = Duration::ZERO;
    connection.established(now, 0);
    let message = Message {
        owner: SocketId(0),
        from: 2,
        to: 3,
        draft: Draft::new(0, ()),
    };
    connection.send(message, false).unwrap();
    while let Some((len, rest)) = input.split_first_chunk() {
        let len = usize::from(u16::from_be_bytes(*len)).min(rest.len());
        let (frame, rest) = rest.split_at(len);
        input = rest;
        now += Duration::from_millis(1);
        let (header, body) = frame.split_at(frame.len().min(Header::SIZE));
        match connection.received(now, header, body.to_vec()) {
            Ok(Some(Received::Message(incoming))) => {
                let bodies = incoming.bodies.as_slice().iter();
                let len: usize = bodies.map(Vec::len).sum();
                assert_eq!(len, incoming.len as usize);
                connection.take(now, &incoming);
            }
            Ok(Some(Received::Ping(from))) => connection.pong(from),
            Ok(Some(Received::Map(_)) | None) => {}
            Err(Violation::MessageLen(len)) => {
                assert!(len > MAX_MESSAGE);
                reconnect(&mut connection, now);
            }
            Err(_) => reconnect(&mut connection, now),
        }
        let map = CongestionMap::default();
        while let Some(work) = connection.transmit(1, || &map) {
            let tag = work.tag;
            connection.completed(tag, Completion::Success);
        }
        if let Some((tag, _)) = connection.acknowledge(now) {
            connection.completed(tag, Completion::Success);
        }
    }
}

fn reconnect(connection: &mut Connection<(), Vec<u8>>, now: Duration) {
    let ignored = connection.received(now, &[], vec![]);
    assert!(matches!(ignored, Ok(None)));
    connection.reset();
    connection.established(now, 0);
}

/// Runs a target with generated inputs; prints the seed of a failure.
fn fuzz(target: fn(&[u8]), make: fn(&mut Rng) -> Vec<u8>) {
    let seeds = match std::env::var("SEED") {
        Ok(seed) => {
            let seed = seed.parse().unwrap();
            seed..seed + 1
        }
        Err(_) => 0..100_000,
    };
    for seed in seeds {
        let input = make(&mut Rng::with_seed(seed));
        let result = panic::catch_unwind(|| target(&input));
        assert!(result.is_ok(), "SEED={seed} fails");
    }
}

fn noise(rng: &mut Rng, len: usize) -> Vec<u8> {
    iter::repeat_with(|| rng.u8(..)).take(len).collect()
}

/// Flips bits or changes the length.
fn mutate(rng: &mut Rng, mut bytes: Vec<u8>) -> Vec<u8> {
    for _ in 0..rng.u8(0..4) {
        if !bytes.is_empty() {
            let at = rng.usize(0..bytes.len());
            bytes[at] ^= 1 << rng.u8(0..8);
        }
    }
    match rng.u8(0..8) {
        0 => bytes.truncate(rng.usize(0..=bytes.len())),
        1 => bytes.extend(noise(rng, 9)),
        _ => {}
    }
    bytes
}

/// A header with plausible fields.
fn plausible(rng: &mut Rng) -> Header {
    let cookie = Cookie {
        rkey: rng.u32(..),
        offset: rng.u32(..),
    };
    let mut extensions = Extensions::NONE;
    if rng.bool() {
        extensions.add(Extension::Destination(cookie)).unwrap();
    }
    Header {
        sequence: rng.u64(0..10),
        ack: rng.u64(0..5),
        len: *rng
            .choice(&[0, 1, 63, 4096, 4097, 8192, MAX_MESSAGE, 1 << 21])
            .unwrap(),
        from: rng.u16(0..4),
        to: rng.u16(0..4),
        flags: Flags::from_bits_retain(rng.u8(0..8)),
        credit: rng.u8(..),
        extensions,
    }
}

/// Case U-P16
#[test]
fn header_fuzz_round_trips() {
    fuzz(header, |rng| {
        let wire = plausible(rng).encode().to_vec();
        mutate(rng, wire)
    });
    fuzz(header, |rng| {
        let len = rng.usize(0..60);
        noise(rng, len)
    });
}

/// Cases U-W04, U-P16
#[test]
fn extensions_fuzz_stays_in_the_area() {
    fuzz(extensions, |rng| {
        let types = iter::repeat_with(|| rng.u8(0..11)).take(16);
        types.collect()
    });
    fuzz(extensions, |rng| noise(rng, 16));
}

/// Cases U-W06, U-P16
#[test]
fn connect_data_fuzz_round_trips() {
    fuzz(connect_data, |rng| {
        let hosts = if rng.bool() {
            HostPair::new([10, 9, 0, 1].into(), [10, 9, 0, 2].into())
        } else {
            HostPair::new([1_u16; 8].into(), [2_u16; 8].into())
        };
        let mut data = ConnectData::proposal(hosts.unwrap(), rng.u8(..));
        data.version.major = rng.u8(0..6);
        data.minors = rng.u16(0..8);
        let mut wire = data.encode();
        if rng.bool() {
            wire.resize(196, 0);
        }
        mutate(rng, wire)
    });
}

/// Cases U-W12, U-P16
#[test]
fn congestion_map_fuzz_round_trips() {
    fuzz(map, |rng| {
        let len = *rng.choice(&[0, 1, 4096, 8191, 8192, 8193, 12_288]).unwrap();
        vec![rng.u8(..); len]
    });
}

/// Case U-P16
#[test]
fn frame_sequence_fuzz_never_panics() {
    fuzz(frames, |rng| {
        let mut input = Vec::new();
        for _ in 0..rng.u8(1..10) {
            let header = plausible(rng);
            for _ in 0..rng.u8(1..4) {
                let len = if rng.u8(0..4) == 0 {
                    rng.u16(0..5000)
                } else {
                    header.len.min(4096).try_into().unwrap()
                };
                let mut frame = header.encode().to_vec();
                frame.resize(Header::SIZE + usize::from(len), 7);
                if rng.u8(0..8) == 0 {
                    frame = mutate(rng, frame);
                }
                input.extend(u16::try_from(frame.len()).unwrap().to_be_bytes());
                input.extend(frame);
            }
        }
        input
    });
}
