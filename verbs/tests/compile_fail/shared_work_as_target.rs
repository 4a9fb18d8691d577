//! Work with several owners is no target for a receive, in an `Arc` or in a type of the program.

use std::sync::Arc;

use verbs::{Buf, QueuePair, Rts, SharedBuf};

struct Page(SharedBuf);
verbs::scatter_fields!(Page { 0 });

fn misuse(qp: &mut QueuePair<verbs::Rc, Rts, Buf, Arc<Buf>>, buf: Arc<Buf>) {
    let _ = qp.post_recv(buf);
}

fn main() {}
