//! A send on a datagram queue pair requires a destination address.

use verbs::{Buf, QueuePair, Rts, Ud, op};

fn misuse(qp: &mut QueuePair<Ud, Rts>, buf: Buf) {
    let _ = qp.post(op::Send::new(buf));
}

fn main() {}
