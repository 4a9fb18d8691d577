//! Fuzz targets for all input from peers. The tests run each target with 100,000 inputs generated
//! from seeds.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod targets;

use std::{iter, panic};

use fastrand::Rng;
use rds_proto::wire::{
    ConnectData, Cookie, Extension, Extensions, Flags, Header, HostPair, MAX_MESSAGE,
};
use targets::{connect_data, extensions, frames, header, map};

/// A decoder, with checks of its results.
type Target = fn(&[u8]);

/// Inputs of the corpus, one a line in hexadecimal digits. Inputs that a fuzzer has found are added there.
fn corpus(text: &str) -> Vec<Vec<u8>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let inputs = lines.map(|line| {
        let digits = |at: usize| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
        (0..line.len()).step_by(2).map(digits).collect()
    });
    inputs.collect()
}

/// Each input of the corpus of a target.
#[test]
fn corpus_fuzz_never_panics() {
    let all: [(Target, &str); 5] = [
        (
            header,
            include_str!("../../../../fuzz/corpus/rds_header.txt"),
        ),
        (
            extensions,
            include_str!("../../../../fuzz/corpus/rds_extensions.txt"),
        ),
        (
            connect_data,
            include_str!("../../../../fuzz/corpus/rds_connect_data.txt"),
        ),
        (map, include_str!("../../../../fuzz/corpus/rds_map.txt")),
        (
            frames,
            include_str!("../../../../fuzz/corpus/rds_frames.txt"),
        ),
    ];
    for (target, text) in all {
        let inputs = corpus(text);
        assert!(!inputs.is_empty());
        inputs.iter().for_each(|input| target(input));
    }
}

/// Runs a target with generated inputs; prints the seed of a failure.
fn fuzz(target: Target, make: fn(&mut Rng) -> Vec<u8>) {
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

#[test]
fn extensions_fuzz_stays_in_the_area() {
    fuzz(extensions, |rng| {
        let types = iter::repeat_with(|| rng.u8(0..11)).take(16);
        types.collect()
    });
    fuzz(extensions, |rng| noise(rng, 16));
}

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

#[test]
fn congestion_map_fuzz_round_trips() {
    fuzz(map, |rng| {
        let len = *rng.choice(&[0, 1, 4096, 8191, 8192, 8193, 12_288]).unwrap();
        vec![rng.u8(..); len]
    });
}

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
