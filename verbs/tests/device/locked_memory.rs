//! The kernel's limit of locked memory, and registered pages.

use std::{
    fs,
    ptr::{self, NonNull},
    slice, thread,
};

use libc::c_void;
use rustix::{
    param::page_size,
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::{CapabilitySet, capabilities, set_capabilities},
};
use verbs::{RemoteAccess, WcStatus, mr::RawMemory};

use crate::{
    limited_calls::{self, CALLS},
    loopback::Fixture,
    memory::write,
};

/// Makes a call with a limit of locked memory in bytes, which holds for the process. Root is exempt by `CAP_IPC_LOCK`,
/// which only the spawned thread drops.
fn with_locked_memory<T: Send>(bytes: u64, call: impl FnOnce() -> T + Send) -> T {
    let before = getrlimit(Resource::Memlock);
    let limit = Rlimit {
        current: Some(bytes),
        maximum: before.maximum,
    };
    setrlimit(Resource::Memlock, limit).unwrap();
    let result = thread::scope(|scope| {
        let without_right = scope.spawn(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::IPC_LOCK);
            set_capabilities(None, sets).unwrap();
            call()
        });
        without_right.join().unwrap()
    });
    setrlimit(Resource::Memlock, before).unwrap();
    result
}

#[test]
fn registration_beyond_the_limit_names_the_limit() {
    let fixture = Fixture::new();
    let registered = with_locked_memory(64 << 10, || {
        let registered = fixture.pd.alloc_buf(1 << 20).map(drop);
        // The hint reads the limit when the error is formatted, so before the limit is restored.
        registered.map_err(|err| (err.raw_os_error(), err.to_string()))
    });
    let (errno, text) = registered.unwrap_err();
    assert_eq!(errno, Some(libc::ENOMEM));
    for name in ["64 KiB", "ulimit -l", "limits.conf"] {
        assert!(text.contains(name), "{text} does not name {name}");
    }
    // With the capability it is possible.
    fixture.pd.alloc_buf(1 << 20).unwrap();
}

/// The memory that the kernel counts as locked for devices, in bytes.
fn pinned() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() << 10
}

#[test]
fn calls_under_a_shrinking_limit_of_locked_memory_leave_the_objects_working() {
    let fixture = Fixture::new();
    for pages in [1000, 50, 40, 39, 38, 33, 32, 8, 7, 6, 5, 3, 2, 1, 0] {
        let succeeded = limited_calls::make(&fixture, |calls| {
            with_locked_memory(pinned() + pages * page_size() as u64, calls)
        });
        // Soft-RoCE's queues are not counted: only registrations fail.
        assert_eq!(succeeded[..CALLS - 4], [true; CALLS - 4], "{pages} pages");
        match pages {
            1000 => assert_eq!(succeeded, [true; CALLS]),
            1 => assert_eq!(succeeded[CALLS - 4..], [true, false, false, false]),
            0 => assert_eq!(succeeded[CALLS - 4..], [false; 4]),
            _ => {}
        }
    }
}

/// Maps a page, at an address if it is not null, in place of the page that is there.
///
/// # Safety
/// Nothing uses the page that is there.
unsafe fn map(at: *mut c_void) -> NonNull<u8> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    // SAFETY: unused addresses picked by the kernel, or those of the caller.
    let start = unsafe { libc::mmap(at, page_size(), access, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    NonNull::new(start.cast()).unwrap()
}

/// As a program of C's sockets may unmap memory while it is exported.
#[test]
fn memory_mapped_at_the_address_of_registered_pages_is_not_accessed() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    // SAFETY: a new page.
    let start = unsafe { map(ptr::null_mut()) };
    // SAFETY: nothing else uses the page.
    let memory = unsafe { RawMemory::new(NonNull::slice_from_raw_parts(start, page_size())) };
    let region = fixture.pd.register(memory).remote(RemoteAccess::WRITE);
    let region = region.create().unwrap();
    // SAFETY: this process does not access the region any more.
    let other = unsafe { map(start.as_ptr().cast()) };
    assert_eq!(write(&fixture, &mut cq, &region), WcStatus::SUCCESS);
    // SAFETY: mapped above, and used by nothing else.
    let bytes = unsafe { slice::from_raw_parts(other.as_ptr(), page_size()) };
    assert!(bytes.iter().all(|byte| *byte == 0));
    drop(region);
    // SAFETY: mapped above, without references.
    let unmapped = unsafe { libc::munmap(other.as_ptr().cast(), page_size()) };
    assert_eq!(unmapped, 0);
}
