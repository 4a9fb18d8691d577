//! The memory of a scope cannot be posted to a queue pair of a scope around it, which ends later.

use verbs::{ProtectionDomain, QueuePair, Rts, scope::{ScopedBuf, ScopedSlice}};

fn misuse<'s>(
    pd: &ProtectionDomain,
    mut qp: QueuePair<verbs::Rc, Rts, ScopedSlice<'s>, ScopedBuf<'s>>,
    memory: &mut [u8],
) {
    verbs::scope(pd, |inner| {
        qp.post_recv(inner.register(memory).unwrap()).unwrap();
    });
}

fn main() {}
