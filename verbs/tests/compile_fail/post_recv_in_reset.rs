//! A queue pair that has just been made takes no receives.

use verbs::{Buf, QueuePair, Reset};

fn misuse(qp: &mut QueuePair<verbs::Rc, Reset>, buf: Buf) {
    let _ = qp.post_recv(buf);
}

fn main() {}
