//! A datagram needs to be told where it goes.

use verbs::{Buf, QueuePair, Rts, Ud, op};

fn misuse(qp: &mut QueuePair<Ud, Rts>, buf: Buf) {
    let _ = qp.post(op::Send::new(buf));
}

fn main() {}
