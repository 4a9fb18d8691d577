//! A queue pair that is destroyed is gone.

use verbs::{QueuePair, Rts};

fn misuse(qp: QueuePair<verbs::Rc, Rts>) {
    let _ = qp.destroy();
    println!("{}", qp.qp_num());
}

fn main() {}
