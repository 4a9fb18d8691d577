//! The kernel's limit of locked memory.

use std::thread;

use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::{CapabilitySet, capabilities, set_capabilities},
};

use crate::loopback::Fixture;

/// The limit holds for the process. Root is exempt by `CAP_IPC_LOCK`, which only the spawned thread drops.
#[test]
fn registration_beyond_the_limit_names_the_limit() {
    let fixture = Fixture::new();
    let before = getrlimit(Resource::Memlock);
    let limit = Rlimit {
        current: Some(64 << 10),
        maximum: before.maximum,
    };
    setrlimit(Resource::Memlock, limit).unwrap();
    let registered = thread::scope(|scope| {
        let without_right = scope.spawn(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::IPC_LOCK);
            set_capabilities(None, sets).unwrap();
            let registered = fixture.pd.alloc_buf(1 << 20).map(drop);
            // The hint reads the limit when the error is formatted, so before the limit is restored.
            registered.map_err(|err| (err.raw_os_error(), err.to_string()))
        });
        without_right.join().unwrap()
    });
    setrlimit(Resource::Memlock, before).unwrap();
    let (errno, text) = registered.unwrap_err();
    assert_eq!(errno, Some(libc::ENOMEM));
    for name in ["64 KiB", "ulimit -l", "limits.conf"] {
        assert!(text.contains(name), "{text} does not name {name}");
    }
    // With the capability it is possible.
    fixture.pd.alloc_buf(1 << 20).unwrap();
}
