//! Streams of rsocket.
#![no_main]

#[path = "../../rsocket/proto/tests/fuzz/targets.rs"]
#[expect(dead_code, unused_imports, reason = "the other targets are programs of their own")]
mod targets;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    targets::stream(input);
});
