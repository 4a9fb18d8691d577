//! Programs that must not compile. Each case is a file in `compile_fail`, beside its expected error.

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
