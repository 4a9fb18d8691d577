//! A buffer that the device may write cannot be read.

use verbs::{Buf, QueuePair, Rts};

fn misuse(qp: &mut QueuePair<verbs::Rc, Rts>, buf: Buf) -> u8 {
    let _ = qp.post_recv(buf);
    buf[0]
}

fn main() {}
