//! A queue pair has one owner, who destroys it once.

use verbs::{QueuePair, Rc, Rts};

fn misuse(qp: &QueuePair<Rc, Rts>) -> QueuePair<Rc, Rts> {
    QueuePair::clone(qp)
}

fn main() {}
