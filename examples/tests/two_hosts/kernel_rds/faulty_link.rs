//! The conditions of the kernel's own test of RDS (`tools/testing/selftests/net/rds`): 50,000 hashed messages over a link with
//! faults.

use super::{in_turn, numbers, roles};
use crate::guests::run_with;

/// Number of messages in each direction.
const COUNT: u64 = 25_000;

#[test]
fn interop_faulty_link_loses_and_changes_no_message() {
    let ours = in_turn(
        env!("CARGO_BIN_EXE_rds-peer"),
        &[format!("hashes $A:4500 $B:4500 {COUNT}")],
    );
    let kernels = roles(&[format!("hashes $B:4500 $A:4500 {COUNT}")]);
    let faults = "a-b:loss=0.01,duplication=0.01,corruption=0.01";
    let options = ["--rds", "b", "--link", faults];
    let printed = run_with(&options, 500, &ours, &kernels);
    let [a, b] = [&printed.a, &printed.b].map(|lines| numbers(lines, "hashed"));
    println!("{a:?} {b:?}");
    assert_eq!((a[0], a[2]), (COUNT, COUNT));
    assert_eq!((&a[..2], &a[2..]), (&b[2..], &b[..2]));
}
