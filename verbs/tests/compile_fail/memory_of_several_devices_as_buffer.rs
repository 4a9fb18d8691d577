//! Memory with several registrations has no single owner, so it is not read in place.

use verbs::{
    ProtectionDomain,
    mr::{Mapping, MemoryHandle},
};

fn misuse(pd: &ProtectionDomain, memory: MemoryHandle<Mapping>) {
    let _ = pd.register(memory.clone()).create_buf();
}

fn main() {}
