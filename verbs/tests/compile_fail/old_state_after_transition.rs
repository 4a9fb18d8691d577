//! A transition leaves nothing of the queue pair in its old state.

use verbs::{Buf, Init, QueuePair, Rtr, qp::Attributes};

fn misuse(mut qp: QueuePair<verbs::Rc, Init>, attributes: &Attributes<verbs::Rc, Rtr>, buf: Buf) {
    let _ = qp.to_rtr(attributes);
    let _ = qp.post_recv(buf);
}

fn main() {}
