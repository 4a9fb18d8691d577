//! A completion gives work back once.

use verbs::{CompletionQueue, QueuePair, Rts};

fn misuse(cq: &mut CompletionQueue, qp: &mut QueuePair<verbs::Rc, Rts>) {
    for wc in cq.poll().unwrap() {
        let _ = qp.complete(wc);
        let _ = qp.complete(wc);
    }
}

fn main() {}
