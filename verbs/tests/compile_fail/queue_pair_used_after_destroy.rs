//! A queue pair that is destroyed is gone.

use verbs::{QueuePair, Rc, Rts};

fn misuse(qp: QueuePair<Rc, Rts>) {
    let _ = qp.destroy();
    println!("{}", qp.qp_num());
}

fn main() {}
