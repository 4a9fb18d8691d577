//! Each request of an initiator has a target.

use mlx5::Dci;
use verbs::{Buf, QueuePair, Rts, op};

fn send(mut initiator: QueuePair<Dci, Rts>, buf: Buf) {
    let _posted = initiator.post(op::Send::new(buf));
}

fn main() {}
