//! A queue pair of a scope names the scope in the types of its work, or it could leave the scope.

use verbs::{Buf, ProtectionDomain, QueuePair, Reset, cq::CqHandle};

fn misuse(pd: &ProtectionDomain, cq: &CqHandle) -> QueuePair<verbs::Rc, Reset, Buf, Buf> {
    verbs::scope(pd, |scope| scope.create_qp(pd.qp_builder(cq, cq)).unwrap())
}

fn main() {}
