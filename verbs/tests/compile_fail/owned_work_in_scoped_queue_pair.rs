//! A queue pair of a scope names the scope in the types of its work, or it could leave the scope.

use verbs::{Buf, CqHandle, ProtectionDomain, QueuePair, Rc, Reset};

fn misuse(pd: &ProtectionDomain, cq: &CqHandle) -> QueuePair<Rc, Reset, Buf, Buf> {
    verbs::scope(pd, |scope| scope.create_qp(pd.qp_builder(cq, cq)).unwrap())
}

fn main() {}
