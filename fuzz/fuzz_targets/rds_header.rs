//! Headers of RDS.
#![no_main]

#[path = "../../rds/proto/tests/fuzz/targets.rs"]
#[expect(dead_code, reason = "the other targets are programs of their own")]
mod targets;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    targets::header(input);
});
