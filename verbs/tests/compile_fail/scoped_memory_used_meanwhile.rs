//! Memory that is registered for a scope cannot be used by anybody else meanwhile.

use verbs::ProtectionDomain;

fn misuse(pd: &ProtectionDomain, memory: &mut [u8]) {
    verbs::scope(pd, |scope| {
        let buf = scope.register(memory);
        std::mem::forget(buf);
        memory[0] = 1;
    });
}

fn main() {}
