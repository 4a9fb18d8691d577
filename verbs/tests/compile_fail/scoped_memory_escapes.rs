//! Memory that is registered for a scope cannot leave it.

use verbs::{ProtectionDomain, scope::ScopedBuf};

fn misuse(pd: &ProtectionDomain, memory: &mut [u8]) {
    let mut escaped: Option<ScopedBuf<'_>> = None;
    verbs::scope(pd, |scope| {
        escaped = scope.register(memory).ok();
    });
    drop(escaped);
}

fn main() {}
