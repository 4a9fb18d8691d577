//! A queue pair that has just been made, or was taken out of another object, does not send.

use verbs::{Buf, QueuePair, Rc, Reset, op::Send};

fn misuse(qp: &mut QueuePair<Rc, Reset>, buf: Buf) {
    let _ = qp.post(Send::new(buf));
}

fn main() {}
