//! No state can be left out on the way up.

use verbs::{QueuePair, Reset, Rts, qp::Attributes};

fn misuse(qp: QueuePair<verbs::Rc, Reset>, attributes: &Attributes<verbs::Rc, Rts>) {
    let _ = qp.to_rts(attributes);
}

fn main() {}
