//! There is one send half.

use verbs::{QueuePair, Rc, Rts};

fn misuse(qp: QueuePair<Rc, Rts>) {
    let (_one, _receive) = qp.split();
    let (_two, _receive) = qp.split();
}

fn main() {}
