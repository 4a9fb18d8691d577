//! A flush is posted in an extended batch only, not with `QueuePair::post`.

use verbs::{Buf, QueuePair, RemoteToken, Rts, op};

fn misuse(qp: &mut QueuePair<verbs::Rc, Rts>, buf: Buf, remote: RemoteToken) {
    let _ = qp.post(op::Flush::new(buf, remote, op::Placement::GLOBAL));
}

fn main() {}
