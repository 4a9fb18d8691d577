//! The pingpongs on one host: errors for features absent from Soft-RoCE.

use std::process::Command;

/// Output of a failing program on standard error; standard output must be empty.
fn complaint(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn xsrq_pingpong_without_xrc_fails() {
    // The failure comes before connecting to a peer.
    for args in [&["-g", "1"][..], &["-g", "1", "-c", "2", "-e"]] {
        let said = complaint(env!("CARGO_BIN_EXE_xsrq_pingpong"), args);
        assert!(
            said.starts_with(
                "couldn't open the XRC domain: the device may lack extended reliable connections \
                 (XRC): `ibv_open_xrcd` failed"
            ),
            "{said}"
        );
    }
}
