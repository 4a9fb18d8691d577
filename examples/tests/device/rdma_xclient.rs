//! `rdma_xclient` over an extended reliable connection, unsupported by Soft-RoCE: the output must match the C
//! program's.

use std::{env, process::Command};

#[test]
fn rdma_xclient_without_xrc_fails() {
    let addr = env::var("A").expect("the guest has an address");
    for (program, call) in [
        ("rdma_xclient", "rdma_create_ep: "),
        (env!("CARGO_BIN_EXE_rdma_xclient"), "`ibv_create_qp` failed"),
    ] {
        let output = Command::new(program)
            .args(["-c", "x", "-s", &addr, "-p", "9"])
            .output()
            .unwrap();
        assert_ne!(output.status.code(), Some(0), "{program}");
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(
            said.contains("start\n") && said.contains("end -1\n"),
            "{said}"
        );
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert!(complaint.starts_with(call), "{complaint}");
        assert!(complaint.contains("Operation not supported"), "{complaint}");
    }
}
