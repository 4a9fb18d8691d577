//! A completion cannot be held while the queue is polled again, so it cannot become stale.

use verbs::CompletionQueue;

fn misuse(cq: &mut CompletionQueue) {
    let completion = cq.poll().unwrap().next();
    let _ = cq.poll();
    drop(completion);
}

fn main() {}
