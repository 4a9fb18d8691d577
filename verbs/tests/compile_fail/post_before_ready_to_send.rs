//! A queue pair that is ready to receive does not send.

use verbs::{Buf, QueuePair, Rtr, op};

fn misuse(qp: &mut QueuePair<verbs::Rc, Rtr>, buf: Buf) {
    let _ = qp.post(op::Send::new(buf));
}

fn main() {}
