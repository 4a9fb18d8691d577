//! Work that may not change threads keeps its queue pair in one.

use verbs::{Buf, QueuePair, Rc, Rts, With};

type Work = With<Buf, std::rc::Rc<()>>;

fn misuse(qp: QueuePair<Rc, Rts, Work, Buf>) {
    std::thread::spawn(move || drop(qp));
}

fn main() {}
