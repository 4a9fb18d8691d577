//! Every decoder of peer input with arbitrary bytes. A fuzzer can call the entries directly; the tests run
//! inputs generated from seeds, ten million each with `LONG=1`. `SEED=…` runs a single one.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod targets;

use std::{env, iter, panic};

use fastrand::Rng;
use rsocket_proto::{
    ByteOrder, ConnectData, MAX_SCALED, Mapping, Target, decode_size, encode_size,
};
use targets::{connect_data, datagram, datagrams, entries, intake, messages, stream};

/// All sizes.
#[test]
fn sizes_round_trip_within_bounds() {
    for byte in 0..=u8::MAX {
        let size = decode_size(byte);
        assert!(size <= MAX_SCALED);
        assert_eq!(decode_size(encode_size(size)), size, "{byte:#x}");
    }
    for size in 0..=u16::MAX {
        assert!(decode_size(encode_size(size)) <= size);
    }
}

/// A decoder, with checks of its results.
type Entry = fn(&[u8]);

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
fn corpus_does_not_panic() {
    let all: [(Entry, &str); 5] = [
        (
            connect_data,
            include_str!("../../../../fuzz/corpus/rsocket_connect_data.txt"),
        ),
        (
            messages,
            include_str!("../../../../fuzz/corpus/rsocket_messages.txt"),
        ),
        (
            entries,
            include_str!("../../../../fuzz/corpus/rsocket_entries.txt"),
        ),
        (
            stream,
            include_str!("../../../../fuzz/corpus/rsocket_stream.txt"),
        ),
        (
            datagrams,
            include_str!("../../../../fuzz/corpus/rsocket_datagrams.txt"),
        ),
    ];
    for (target, text) in all {
        let inputs = corpus(text);
        assert!(!inputs.is_empty());
        inputs.iter().for_each(|input| target(input));
    }
}

/// Runs an entry with inputs from `make`; prints the seed of a failing input.
fn throw(entry: Entry, make: fn(&mut Rng) -> Vec<u8>) {
    let seeds = match env::var("SEED") {
        Ok(seed) => {
            let seed = seed.parse().unwrap();
            seed..seed + 1
        }
        Err(_) if env::var_os("LONG").is_some() => 0..10_000_000,
        Err(_) => 0..50_000,
    };
    for seed in seeds {
        let input = make(&mut Rng::with_seed(seed));
        let result = panic::catch_unwind(|| entry(&input));
        assert!(result.is_ok(), "SEED={seed} fails");
    }
}

fn noise(rng: &mut Rng, len: usize) -> Vec<u8> {
    iter::repeat_with(|| rng.u8(..)).take(len).collect()
}

/// Flips some bits or changes the length.
fn mutate(rng: &mut Rng, mut bytes: Vec<u8>) -> Vec<u8> {
    for _ in 0..rng.u8(0..4) {
        let at = rng.usize(0..bytes.len());
        bytes[at] ^= 1 << rng.u8(0..8);
    }
    match rng.u8(0..8) {
        0 => bytes.truncate(rng.usize(0..=bytes.len())),
        1 => bytes.extend(noise(rng, 200)),
        _ => {}
    }
    bytes
}

/// Connect data with mostly valid fields.
fn plausible(rng: &mut Rng) -> ConnectData {
    let some = |rng: &mut Rng| *rng.choice(&[0, 1, 2, 3, 7, 4096, 65536, u32::MAX]).unwrap();
    ConnectData {
        order: if rng.bool() {
            ByteOrder::Little
        } else {
            ByteOrder::Big
        },
        credits: *rng.choice(&[0, 1, 2, 16, 384, u16::MAX]).unwrap(),
        iomap_size: rng.bool().then(|| decode_size(rng.u8(..))),
        targets: Target {
            addr: rng.u64(..),
            rkey: rng.u32(..),
            len: some(rng),
        },
        first: Target {
            addr: *rng.choice(&[0, 1 << 40, u64::MAX]).unwrap(),
            rkey: rng.u32(..),
            len: some(rng),
        },
    }
}

#[test]
fn private_data_mutated_does_not_panic() {
    throw(connect_data, |rng| {
        let wire = plausible(rng).encode().to_vec();
        mutate(rng, wire)
    });
    throw(connect_data, |rng| {
        let len = rng.usize(0..60);
        noise(rng, len)
    });
}

#[test]
fn messages_of_noise_do_not_panic() {
    throw(messages, |rng| noise(rng, 8));
}

#[test]
fn table_entries_of_noise_do_not_panic() {
    throw(entries, |rng| noise(rng, Mapping::SIZE));
}

#[test]
fn receive_path_with_mutated_input_does_not_panic() {
    throw(stream, |rng| {
        let wire = plausible(rng).encode().to_vec();
        let mut input = if rng.u8(0..4) == 0 {
            mutate(rng, wire)
        } else {
            wire
        };
        // The rest is a sequence of steps with their arguments.
        input.resize(ConnectData::SIZE, 0);
        for _ in 0..rng.u8(1..40) {
            input.extend(intake::step(rng));
        }
        if rng.u8(0..4) == 0 {
            let rest = input.split_off(ConnectData::SIZE);
            input.extend(mutate(rng, rest));
        }
        input
    });
}

#[test]
fn datagrams_with_mutated_input_do_not_panic() {
    throw(datagrams, |rng| {
        let mut input = Vec::new();
        for _ in 0..rng.u8(1..40) {
            input.extend(datagram::step(rng));
        }
        if rng.bool() {
            mutate(rng, input)
        } else {
            input
        }
    });
    throw(datagrams, |rng| {
        let len = rng.usize(0..200);
        noise(rng, len)
    });
}
