//! Memory that is only borrowed cannot be posted to a queue pair that no scope ends.

use verbs::{Init, ProtectionDomain, QueuePair, Reset, cq::CqHandle, qp::Attributes, scope::{ScopedBuf, ScopedSlice}};

fn misuse(pd: &ProtectionDomain, cq: &CqHandle, memory: &mut [u8]) {
    verbs::scope(pd, |scope| {
        let qp: QueuePair<verbs::Rc, Reset, ScopedSlice<'_>, ScopedBuf<'_>> =
            pd.qp_builder(cq, cq).create_for().unwrap();
        let mut qp = qp.to_init(&Attributes::<verbs::Rc, Init>::new(1)).unwrap();
        qp.post_recv(scope.register(memory).unwrap()).unwrap();
    });
}

fn main() {}
