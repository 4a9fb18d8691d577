//! Memory that is not registered cannot be posted.

use verbs::{QueuePair, Rc, Rts, op::Send};

fn misuse(qp: &mut QueuePair<Rc, Rts, Vec<u8>, Vec<u8>>) {
    let _ = qp.post(Send::new(vec![1, 2, 3]));
}

fn main() {}
