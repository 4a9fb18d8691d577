//! A completion gives work back once.

use verbs::{CompletionQueue, QueuePair, Rc, Rts};

fn misuse(cq: &mut CompletionQueue, qp: &mut QueuePair<Rc, Rts>) {
    for wc in cq.poll().unwrap() {
        let _ = qp.complete(wc);
        let _ = qp.complete(wc);
    }
}

fn main() {}
