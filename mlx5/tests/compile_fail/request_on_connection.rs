//! Only an initiator has the requests of its transport.

use mlx5::{Request, Target};
use verbs::{Buf, QueuePair, Rts, ah::Addressed};

fn send(mut qp: QueuePair<verbs::Rc, Rts, Addressed<Buf>>, work: Addressed<Buf>, target: Target) {
    let mut batch = qp.extended_batch().unwrap();
    let _pushed = batch.push_vendor(Request::send(work, target));
}

fn main() {}
