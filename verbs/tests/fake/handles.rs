//! Memory with several registrations, and memory after the end of one.

use std::{io::ErrorKind, sync::atomic::Ordering};

use softnic::Call;
use verbs::{
    Buf, QueuePair, RemoteAccess, RemoteRegion, Rts,
    mr::{Mapping, Memory, MemoryHandle, Prefix, SharedMemory},
    op,
};

use crate::{
    fixture::Fixture,
    memory::{Watched, traffic},
    refused_posts::{SOFT_IWARP, of_vendor},
};

fn register(fixture: &Fixture, memory: impl Memory) -> RemoteRegion {
    let registration = fixture.pd.register(memory).remote(RemoteAccess::WRITE);
    registration.create().unwrap()
}

#[test]
fn memory_of_several_devices_is_freed_after_the_last_registration() {
    for failing in [false, true] {
        let (first, second) = (Fixture::new(), Fixture::second_device());
        let (memory, dropped) = Watched::new(64);
        let memory = MemoryHandle::new(memory);
        assert_eq!(memory.len(), 64);
        let one = register(&first, memory.clone());
        let other = register(&second, memory);
        assert_eq!(one.token().addr, other.token().addr);
        one.write(8, b"striped");
        let (sent, other) = traffic(&second, other.slice(8..15), other, &[9; 64]);
        assert_eq!(sent, b"striped");
        let mut received = [0; 64];
        one.read(0, &mut received);
        assert_eq!(received, [9; 64]);
        if failing {
            first.fake.fail(Call::DeregMr, libc::EIO);
        }
        drop(one);
        assert!(!dropped.load(Ordering::Relaxed));
        drop(other);
        assert_eq!(dropped.load(Ordering::Relaxed), !failing);
    }
}

#[test]
fn revoked_region_is_read_in_place_and_registered_again() {
    let fixture = Fixture::new();
    let region = fixture.pd.alloc_remote(64, RemoteAccess::WRITE).unwrap();
    region.write(0, b"from a peer");
    let mut page = region.revoke().unwrap();
    assert!(!fixture.fake.live().contains(&"ibv_mr"));
    assert_eq!(page[..11], *b"from a peer");
    page[0] = b'F';
    let region = register(&fixture, page);
    assert_eq!(region.words().len(), 8);
    let buf = fixture.pd.register(region.revoke().unwrap()).create_buf();
    assert_eq!(buf.unwrap()[..5], *b"From ");
}

#[test]
fn region_in_use_is_not_revoked() {
    let fixture = Fixture::new();
    let region = fixture.pd.alloc_remote(64, RemoteAccess::WRITE).unwrap();
    let cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts, RemoteRegion, Buf> = fixture.rc(&cq, 2);
    qp.post(op::Send::new(region.slice(0..8)))
        .map_err(|refused| refused.error)
        .unwrap();
    let refused = region.revoke().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::ResourceBusy);
    let region = refused.value;
    drop(qp);
    let part = region.slice(1..2);
    let region = region.revoke().unwrap_err().value;
    drop(region);
    assert_eq!(part.revoke().unwrap().len(), 64, "all of the memory");
}

#[test]
fn region_whose_end_fails_stays_registered() {
    let fixture = Fixture::new();
    let region = fixture.pd.alloc_remote(64, RemoteAccess::WRITE).unwrap();
    fixture.fake.fail(Call::DeregMr, libc::EBUSY);
    let refused = region.revoke().unwrap_err();
    assert_eq!(refused.error.raw_os_error(), Some(libc::EBUSY));
    assert!(fixture.fake.live().contains(&"ibv_mr"));
    refused.value.write(0, &[7]);
    assert_eq!(refused.value.revoke().unwrap()[0], 7);
}

/// Others may write the memory also when no peer can.
#[test]
fn memory_of_others_is_not_read_in_place() {
    let fixture = Fixture::new();
    let shared = register(&fixture, SharedMemory::create(64).unwrap());
    let refused = shared.revoke().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
    let handle = MemoryHandle::new(vec![7; 64]);
    let other = handle.clone();
    let refused = register(&fixture, handle).revoke().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
    drop(other);
    assert_eq!(refused.value.revoke().unwrap()[..], [7; 64]);
    let prefix = Prefix::new(MemoryHandle::new(vec![7; 64]), 3).unwrap();
    assert_eq!(register(&fixture, prefix).revoke().unwrap()[..], [7; 3]);
}

/// Soft-iWARP may write for a peer after the end of the registration.
#[test]
fn region_of_soft_iwarp_is_not_revoked() {
    let iwarp = of_vendor(Fixture::iwarp(), SOFT_IWARP);
    let region = iwarp.pd.alloc_remote(64, RemoteAccess::WRITE).unwrap();
    let refused = region.revoke().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Unsupported);
}

/// Two registrations of one memory access each byte in one size.
#[test]
fn prefix_of_memory_of_others_ends_between_words() {
    let handle = MemoryHandle::new(Mapping::new(4096).unwrap());
    let other = handle.clone();
    for len in [1, 7, 9, 4095, 4097] {
        assert!(Prefix::new(handle.clone(), len).is_err(), "{len}");
    }
    for len in [0, 8, 4088, 4096] {
        assert!(Prefix::new(handle.clone(), len).is_ok(), "{len}");
    }
    drop(other);
    assert!(Prefix::new(handle, 9).is_ok(), "the only handle");
    assert!(Prefix::new(SharedMemory::create(64).unwrap(), 9).is_err());
}

#[test]
fn words_of_a_region_are_its_aligned_ones() {
    let fixture = Fixture::new();
    let region = fixture.pd.alloc_remote(40, RemoteAccess::WRITE).unwrap();
    region.words()[1].store(7, Ordering::Relaxed);
    assert_eq!(region.load(8), 7);
    for (range, words) in [
        (0..40, 5),
        (1..40, 4),
        (1..39, 3),
        (1..15, 0),
        (3..5, 0),
        (8..16, 1),
        (40..40, 0),
    ] {
        let part = region.slice(range.clone());
        assert_eq!(part.words().len(), words, "{range:?}");
        assert_eq!(part.as_ptr().addr() as u64, part.token().addr);
    }
    assert_eq!(region.slice(1..16).words()[0].load(Ordering::Relaxed), 7);
}
