//! Fuzz targets for the decoders. The tests run each target with 100,000 inputs generated from seeds, a million with
//! `LONG=1`. Engines and managers with live connections are fuzzed in `engine/hostile.rs` and `manager/hostile.rs`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod targets;

use std::{env, iter, ops::Range, panic};

use fastrand::Rng;
use softnic::{
    cm::MAD_LEN,
    wire::{Frame, WireError},
};
use targets::{frame, message};

/// Frames recorded from Linux's rxe.
const RECORDED: &str = include_str!("../wire/rxe.txt");

/// Seeds of a target: the one in `SEED`, or else the first ones.
fn seeds() -> Range<u64> {
    if let Ok(seed) = env::var("SEED") {
        let seed = seed.parse().unwrap();
        return seed..seed + 1;
    }
    match env::var_os("LONG") {
        Some(_) => 0..1_000_000,
        None => 0..100_000,
    }
}

/// Runs a target with generated inputs. Returns the number of accepted inputs.
///
/// # Panics
/// If the target panics; the message has the seed.
fn fuzz(target: fn(&[u8]) -> bool, make: impl Fn(&mut Rng) -> Vec<u8>) -> u64 {
    let accepted = seeds().map(|seed| {
        let input = make(&mut Rng::with_seed(seed));
        let outcome = panic::catch_unwind(|| target(&input));
        assert!(outcome.is_ok(), "SEED={seed} fails");
        u64::from(outcome.is_ok_and(|is_accepted| is_accepted))
    });
    accepted.sum()
}

/// Inputs, one a line in hexadecimal digits.
fn inputs(text: &str) -> Vec<Vec<u8>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let inputs = lines.map(|line| {
        let digits = |at: usize| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
        (0..line.len()).step_by(2).map(digits).collect()
    });
    inputs.collect()
}

/// Each input of the corpus, to which inputs found by a fuzzer are added.
#[test]
fn corpus_survives_encoding() {
    let frames = inputs(include_str!("../../../fuzz/corpus/softnic_frame.txt"));
    assert!(frames.iter().filter(|input| frame(input)).count() > 20);
    let messages = inputs(include_str!("../../../fuzz/corpus/softnic_message.txt"));
    assert!(messages.iter().filter(|input| message(input)).count() > 3);
}

/// Changes bytes from `start` on, or the length.
fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>, start: usize) {
    for _ in 0..rng.usize(..6) {
        let end = bytes.len().min(start + 80);
        if start < end {
            bytes[rng.usize(start..end)] ^= 1 << rng.u8(..8);
        }
    }
    match rng.u8(..8) {
        0 => bytes.truncate(rng.usize(..=bytes.len())),
        1 => bytes.extend(iter::repeat_with(|| rng.u8(..)).take(9)),
        _ => {}
    }
}

#[test]
fn noise_is_decoded_without_panic() {
    fuzz(frame, |rng| {
        let len = rng.usize(..200);
        iter::repeat_with(|| rng.u8(..)).take(len).collect()
    });
    fuzz(message, |rng| {
        iter::repeat_with(|| rng.u8(..)).take(MAD_LEN).collect()
    });
}

/// The right checksum lets mutants reach the decoders of the inner headers.
#[test]
fn mutants_of_recorded_frames_survive_encoding() {
    let recorded = inputs(RECORDED);
    let accepted = fuzz(frame, |rng| {
        let mut bytes = rng.choice(&recorded).unwrap().clone();
        let udp = if bytes[0] >> 4 == 4 { 20 } else { 40 };
        let transport = udp + 8;
        mutate(rng, &mut bytes, transport);
        if rng.u8(..4) == 0 && bytes.len() > transport {
            bytes[transport] = rng.u8(..);
        }
        seal(&mut bytes, udp);
        bytes
    });
    assert!(accepted * 4 > seeds().count() as u64, "{accepted}");
}

/// Corrects the lengths and the checksums of a frame.
fn seal(bytes: &mut [u8], udp: usize) {
    if bytes.len() < udp + 8 {
        return;
    }
    let len = |from: usize| u16::try_from(bytes.len() - from).unwrap().to_be_bytes();
    let (total, payload) = (len(0), len(udp));
    bytes[udp + 4..udp + 6].copy_from_slice(&payload);
    if udp == 20 {
        bytes[2..4].copy_from_slice(&total);
        bytes[10..12].fill(0);
        let words = bytes[..20].chunks(2);
        let sum: u32 = words
            .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
            .sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        bytes[4..6].copy_from_slice(&payload);
    }
    if let Err(WireError::Icrc(icrc)) = Frame::decode(bytes) {
        let end = bytes.len() - 4;
        bytes[end..].copy_from_slice(&icrc.to_le_bytes());
    }
}

#[test]
fn mutants_of_recorded_messages_survive_encoding() {
    let recorded = inputs(RECORDED);
    let messages: Vec<_> = recorded
        .iter()
        .filter_map(|bytes| {
            let payload = Frame::decode(bytes).unwrap().payload;
            (payload.len() == MAD_LEN).then(|| payload.to_vec())
        })
        .collect();
    let accepted = fuzz(message, |rng| {
        let mut bytes = rng.choice(&messages).unwrap().clone();
        for _ in 0..rng.usize(..20) {
            bytes[rng.usize(24..MAD_LEN)] = rng.u8(..);
        }
        bytes[17] = rng.u8(0x10..0x1b);
        bytes
    });
    assert!(accepted * 4 > seeds().count() as u64, "{accepted}");
}
