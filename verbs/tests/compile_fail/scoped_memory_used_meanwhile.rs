//! Memory registered in a scope stays borrowed until the scope ends, even if the buffer is forgotten.

use verbs::ProtectionDomain;

fn misuse(pd: &ProtectionDomain, memory: &mut [u8]) {
    verbs::scope(pd, |scope| {
        let buf = scope.register(memory);
        std::mem::forget(buf);
        memory[0] = 1;
    });
}

fn main() {}
