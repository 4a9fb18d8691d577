//! An extended batch may hold a lock of its thread's.

use verbs::{QueuePair, Rc, Rts};

fn misuse(qp: &mut QueuePair<Rc, Rts>) {
    std::thread::scope(|threads| {
        let batch = qp.extended_batch();
        threads.spawn(move || drop(batch));
    });
}

fn main() {}
