//! A queue pair that has just been made, or was taken out of another object, does not send.

use verbs::{Buf, QueuePair, Reset, op};

fn misuse(qp: &mut QueuePair<verbs::Rc, Reset>, buf: Buf) {
    let _ = qp.post(op::Send::new(buf));
}

fn main() {}
