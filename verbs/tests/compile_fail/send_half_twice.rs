//! There is one send half.

use verbs::{QueuePair, Rts};

fn misuse(qp: QueuePair<verbs::Rc, Rts>) {
    let (_one, _receive) = qp.split();
    let (_two, _receive) = qp.split();
}

fn main() {}
