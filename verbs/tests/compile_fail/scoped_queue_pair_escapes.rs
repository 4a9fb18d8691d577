//! A queue pair that a scope ends cannot leave the scope, even if it carries nothing borrowed.

use verbs::{Buf, ProtectionDomain, QueuePair, Reset, cq::CqHandle, scope::Scoped};

fn misuse(pd: &ProtectionDomain, cq: &CqHandle) {
    let mut escaped: Option<QueuePair<verbs::Rc, Reset, Scoped<'_, Buf>, Scoped<'_, Buf>>> = None;
    verbs::scope(pd, |scope| {
        escaped = scope.create_qp(pd.qp_builder(cq, cq)).ok();
    });
    drop(escaped);
}

fn main() {}
