//! Reading the peer's memory needs a transport that answers.

use verbs::{Buf, QueuePair, RemoteToken, Rts, Uc, op};

fn misuse(qp: &mut QueuePair<Uc, Rts>, buf: Buf, from: RemoteToken) {
    let _ = qp.post(op::Read::new(buf, from));
}

fn main() {}
