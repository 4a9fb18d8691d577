//! What must not compile. Each case is a file in `compile_fail`, beside the error it must cause.

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
