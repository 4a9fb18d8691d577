//! Changing registrations, with and without failures. Some are twins of pyverbs' cases (`MRTest` of
//! `test_mr.py`), by their names.

use std::{
    io::ErrorKind,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use ibverbs_sys::ibv_access_flags as flag;
use softnic::Call;
use verbs::{QueuePair, RemoteAccess, RemoteRegion, Rts, mr::NotReregistered, op};

use crate::{
    fixture::Fixture,
    memory::{LOCAL, Watched, traffic},
    provider::Fake,
};

fn region(fixture: &Fixture) -> RemoteRegion {
    fixture.pd.alloc_remote(64, RemoteAccess::WRITE).unwrap()
}

#[test]
fn mr_rereg_access() {
    let fixture = Fixture::new();
    let region = fixture.pd.alloc_remote(64, RemoteAccess::empty()).unwrap();
    let old = region.token();
    let region = region.rereg().access(RemoteAccess::WRITE).apply().unwrap();
    assert_eq!(
        fixture.fake.region().2,
        LOCAL | flag::IBV_ACCESS_REMOTE_WRITE.0
    );
    assert_ne!(region.token().rkey, old.rkey, "the new key is asked for");
    assert_eq!(region.token().addr, old.addr);
}

/// Remote access is gone, so a device refuses requests.
#[test]
fn mr_rereg_access_bad_flow() {
    let fixture = Fixture::new();
    let region = region(&fixture);
    let _region = region
        .rereg()
        .access(RemoteAccess::empty())
        .apply()
        .unwrap();
    assert_eq!(fixture.fake.region().2, LOCAL);
}

/// A device refuses atomics while the right is gone.
#[test]
fn mr_rereg_atomic() {
    let fixture = Fixture::new();
    let mut region = fixture.pd.alloc_remote(64, RemoteAccess::ATOMIC).unwrap();
    for access in [RemoteAccess::empty(), RemoteAccess::ATOMIC] {
        region = region.rereg().access(access).apply().unwrap();
        assert_eq!(fixture.fake.region().2, LOCAL | access.bits());
    }
    let token = region.token().slice(8..16).unwrap();
    let work = fixture.pd.alloc_buf(8).unwrap();
    fixture.perform(token, |qp| {
        qp.post(op::FetchAdd::new(work, token, 1)).unwrap();
    });
}

#[test]
fn mr_rereg_pd() {
    let fixture = Fixture::new();
    let other = fixture.ctx.alloc_pd().unwrap();
    let region = region(&fixture).rereg().pd(&other).apply().unwrap();
    assert_eq!(region.pd(), &other);
    let region = region.rereg().pd(&fixture.pd).apply().unwrap();
    let (sent, _) = traffic(&fixture, region.slice(0..3), region.clone(), b"back");
    assert_eq!(sent.len(), 3);
    // The domain is not destroyed before the region.
    let region = region.rereg().pd(&other).apply().unwrap();
    drop(other);
    assert_eq!(
        fixture
            .fake
            .live()
            .iter()
            .filter(|kind| **kind == "ibv_pd")
            .count(),
        2
    );
    drop(region);
    assert_eq!(
        fixture
            .fake
            .live()
            .iter()
            .filter(|kind| **kind == "ibv_pd")
            .count(),
        1
    );
}

/// Unlike in C, memory in flight cannot be replaced.
#[test]
fn mr_rereg_addr() {
    let fixture = Fixture::new();
    let cq = fixture.cq(4);
    let mut qp: QueuePair<verbs::Rc, Rts, RemoteRegion, RemoteRegion> = fixture.rc(&cq, 1);
    let region = region(&fixture);
    qp.post_recv(region.clone()).unwrap();
    let (memory, dropped) = Watched::new(100);
    let refused = region.rereg().memory(memory).apply().unwrap_err();
    assert!(
        refused.error.to_string().contains("in use"),
        "{}",
        refused.error
    );
    let NotReregistered::Unchanged {
        region,
        memory: Some(memory),
    } = refused.value
    else {
        panic!("{:?}", refused.value);
    };
    drop(qp);
    assert!(!dropped.load(Ordering::Relaxed));
    let region = region.rereg().memory(memory).apply().unwrap();
    assert_eq!(region.len(), 100);
    assert_eq!(fixture.fake.region().0, region.token().addr);
    let mut bytes = [0; 2];
    region.read(98, &mut bytes);
    assert_eq!(bytes, [7, 7]);
    let (_, region) = traffic(&fixture, region.slice(0..4), region, b"new memory");
    region.read(0, &mut bytes);
    assert_eq!(&bytes, b"ne");
    drop(region);
    assert!(dropped.load(Ordering::Relaxed));
}

#[test]
fn impossible_rereg_is_refused_without_a_device_call() {
    let fixture = Fixture::new();
    let other = Fake::named("fake1").open().alloc_pd().unwrap();
    let reason = |refused: verbs::error::Refused<NotReregistered>| {
        assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
        assert!(matches!(refused.value, NotReregistered::Unchanged { .. }));
        refused.error.to_string()
    };
    let rereg = || region(&fixture).rereg();
    let text = reason(rereg().apply().unwrap_err());
    assert!(text.contains("nothing is to be changed"), "{text}");
    let text = reason(rereg().pd(&other).apply().unwrap_err());
    assert!(text.contains("another device"), "{text}");
    let text = reason(rereg().memory(Vec::new()).apply().unwrap_err());
    assert!(text.contains("at least one byte"), "{text}");
    assert!(!fixture.fake.calls().contains(&Call::ReregMr));
}

/// Changes everything, with a failure. Returns the rest, and whether the old and the new memory
/// have been dropped.
fn fail_rereg(fixture: &Fixture, errno: i32) -> (Option<NotReregistered>, [Arc<AtomicBool>; 2]) {
    let (old, old_dropped) = Watched::new(64);
    let region = fixture
        .pd
        .register(old)
        .remote(RemoteAccess::WRITE)
        .create()
        .unwrap();
    region.write(0, b"old");
    let (new, new_dropped) = Watched::new(32);
    fixture.fake.fail(Call::ReregMr, errno);
    let changes = region
        .rereg()
        .memory(new)
        .pd(&fixture.pd)
        .access(RemoteAccess::READ);
    let outcome = match changes.apply() {
        Ok(region) => {
            assert_eq!(region.len(), 32);
            None
        }
        Err(refused) => {
            assert_eq!(refused.error.raw_os_error(), Some(errno));
            Some(refused.value)
        }
    };
    (outcome, [old_dropped, new_dropped])
}

#[test]
fn failed_rereg_leaves_the_region_unchanged() {
    for errno in [libc::EINVAL, libc::ENOMEM, libc::EOPNOTSUPP] {
        let fixture = Fixture::new();
        let (outcome, dropped) = fail_rereg(&fixture, errno);
        let Some(NotReregistered::Unchanged { region, memory }) = outcome else {
            panic!("{outcome:?}");
        };
        assert!(memory.is_some());
        assert!(
            dropped
                .iter()
                .all(|dropped| !dropped.load(Ordering::Relaxed))
        );
        let (sent, _) = traffic(&fixture, region.slice(0..3), region, b"new");
        assert_eq!(sent, b"old");
    }
}

#[test]
fn rereg_ending_the_region_returns_the_memory() {
    for errno in [libc::EIO, libc::EFAULT] {
        let fixture = Fixture::new();
        let (outcome, dropped) = fail_rereg(&fixture, errno);
        assert!(!fixture.fake.live().contains(&"ibv_mr"));
        let Some(NotReregistered::Ended {
            old,
            new: Some(new),
        }) = outcome
        else {
            panic!("{outcome:?}");
        };
        assert!(
            dropped
                .iter()
                .all(|dropped| !dropped.load(Ordering::Relaxed))
        );
        drop(new);
        assert!(dropped[1].load(Ordering::Relaxed));
        let region = fixture
            .pd
            .register(old)
            .remote(RemoteAccess::empty())
            .create()
            .unwrap();
        let mut bytes = [0; 3];
        region.read(0, &mut bytes);
        assert_eq!(&bytes, b"old");
    }
}

#[test]
fn rereg_with_a_failed_dereg_leaks_the_memory() {
    let fixture = Fixture::new();
    fixture.fake.fail(Call::DeregMr, libc::EIO);
    let (outcome, dropped) = fail_rereg(&fixture, libc::EIO);
    assert!(
        matches!(outcome, Some(NotReregistered::Lost)),
        "{outcome:?}"
    );
    assert!(
        dropped
            .iter()
            .all(|dropped| !dropped.load(Ordering::Relaxed))
    );
}

#[test]
fn rereg_with_uninheritable_memory_leaks_the_old_memory() {
    let fixture = Fixture::new();
    let (outcome, dropped) = fail_rereg(&fixture, libc::ENOSPC);
    assert!(outcome.is_none(), "{outcome:?}");
    let dropped = dropped
        .each_ref()
        .map(|dropped| dropped.load(Ordering::Relaxed));
    assert_eq!(
        dropped,
        [false, true],
        "the new memory was dropped with its region"
    );
}
