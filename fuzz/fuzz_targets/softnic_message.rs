//! Messages of the connection manager.
#![no_main]

#[path = "../../softnic/tests/fuzz/targets.rs"]
#[expect(dead_code, reason = "the other targets are programs of their own")]
mod targets;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    targets::message(input);
});
