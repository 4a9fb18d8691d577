//! A queue pair has one owner, so it is destroyed once.

use verbs::{QueuePair, Rts};

fn misuse(qp: &QueuePair<verbs::Rc, Rts>) -> QueuePair<verbs::Rc, Rts> {
    QueuePair::clone(qp)
}

fn main() {}
