//! No state can be left out on the way up.

use verbs::{Attributes, QueuePair, Rc, Reset, Rts};

fn misuse(qp: QueuePair<Rc, Reset>, attributes: &Attributes<Rc, Rts>) {
    let _ = qp.to_rts(attributes);
}

fn main() {}
