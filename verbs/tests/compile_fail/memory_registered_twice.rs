//! A registration owns its memory, so memory has one registration.

use verbs::{ProtectionDomain, mr::ProviderMemory};

fn misuse(pd: &ProtectionDomain, memory: ProviderMemory) {
    let _one = pd.register(memory).create_buf();
    let _two = pd.register(memory).create_buf();
}

fn main() {}
