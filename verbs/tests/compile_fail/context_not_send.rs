//! Work that may not change threads keeps its queue pair in one.

use verbs::{Buf, QueuePair, Rts, work::With};

type Work = With<Buf, std::rc::Rc<()>>;

fn misuse(qp: QueuePair<verbs::Rc, Rts, Work, Buf>) {
    std::thread::spawn(move || drop(qp));
}

fn main() {}
