//! Memory that is not registered cannot be posted.

use verbs::{QueuePair, Rts, op};

fn misuse(qp: &mut QueuePair<verbs::Rc, Rts, Vec<u8>, Vec<u8>>) {
    let _ = qp.post(op::Send::new(vec![1, 2, 3]));
}

fn main() {}
