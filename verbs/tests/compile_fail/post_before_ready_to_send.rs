//! A queue pair that is ready to receive does not send.

use verbs::{Buf, QueuePair, Rc, Rtr, op::Send};

fn misuse(qp: &mut QueuePair<Rc, Rtr>, buf: Buf) {
    let _ = qp.post(Send::new(buf));
}

fn main() {}
