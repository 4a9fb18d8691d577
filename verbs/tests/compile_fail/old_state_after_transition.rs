//! A transition leaves nothing of the queue pair in its old state.

use verbs::{Attributes, Buf, Init, QueuePair, Rc, Rtr};

fn misuse(mut qp: QueuePair<Rc, Init>, attributes: &Attributes<Rc, Rtr>, buf: Buf) {
    let _ = qp.to_rtr(attributes);
    let _ = qp.post_recv(buf);
}

fn main() {}
