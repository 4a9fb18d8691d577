//! A buffer that others may be reading is no target for a receive.

use verbs::{QueuePair, Rts, SharedBuf};

fn misuse(qp: &mut QueuePair<verbs::Rc, Rts, SharedBuf, SharedBuf>, buf: SharedBuf) {
    let _ = qp.post_recv(buf);
}

fn main() {}
