//! Memory of every kind, registered in every way, and pools.

use std::{
    io::ErrorKind,
    os::fd::AsFd,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use ibverbs_sys::ibv_access_flags as flag;
use softnic::Call;
use verbs::{
    Completed, CompletionQueue, QueuePair, RemoteAccess, Rts, WcStatus,
    mr::{Mapping, Memory, OwnedMemory, Prefix, SharedMemory, SharedPoolBuf},
    op,
    work::{Gather, Scatter},
};

use crate::{
    fixture::{Fixture, error_text},
    refused_posts::{SOFT_IWARP, of_vendor},
};

pub(crate) const LOCAL: u32 = flag::IBV_ACCESS_LOCAL_WRITE.0;

/// Sends from one work and receives into another; returns the sent bytes, and the second work.
pub(crate) fn traffic<W: Scatter + 'static, R: Scatter + 'static>(
    fixture: &Fixture,
    from: W,
    to: R,
    message: &[u8],
) -> (Vec<u8>, R) {
    let mut cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts, W, R> = fixture.rc(&cq, 2);
    qp.post(op::Send::new(from))
        .map_err(|refused| refused.error)
        .unwrap();
    qp.post_recv(to).map_err(|refused| refused.error).unwrap();
    let sent = fixture.fake.collect(&fixture.fake.sends(qp.qp_num())[0]);
    fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
    fixture.fake.complete_receive(qp.qp_num(), message);
    (sent, received(&mut cq, &mut qp))
}

fn received<W: Gather, R: Scatter>(
    cq: &mut CompletionQueue,
    qp: &mut QueuePair<verbs::Rc, Rts, W, R>,
) -> R {
    let mut received = None;
    for wc in cq.poll().unwrap() {
        wc.ok().unwrap();
        if let Ok(Completed::Receive(done)) = qp.complete(wc) {
            received = Some(done.into_work().unwrap());
        }
    }
    received.unwrap()
}

/// The allocator of these tests does not align bytes.
#[test]
fn remote_memory_of_any_length_is_word_aligned() {
    let fixture = Fixture::new();
    for len in 1..40 {
        for region in [
            fixture.pd.alloc_remote(len, RemoteAccess::WRITE).unwrap(),
            fixture.pd.alloc_for_windows(len).unwrap(),
        ] {
            assert_eq!((region.len(), region.token().len), (len, len as u64));
            for offset in (0..len.saturating_sub(7)).step_by(8) {
                region.store(offset, 7);
                assert_eq!(region.load(offset), 7);
            }
        }
    }
}

#[test]
fn peers_reach_no_more_than_the_registration() {
    let fixture = Fixture::new();
    for len in [1, 5, 8, 4095, 4096] {
        let region = fixture.pd.alloc_remote(len, RemoteAccess::WRITE).unwrap();
        assert_eq!(fixture.fake.region().1, len as u64);
        drop(region);
        let memory = Prefix::new(Mapping::new(4096).unwrap(), len).unwrap();
        let registration = fixture.pd.register(memory).remote(RemoteAccess::WRITE);
        let region = registration.create().unwrap();
        assert_eq!((fixture.fake.region().1, region.len()), (len as u64, len));
    }
    assert_eq!(Prefix::new(vec![0; 3], 4).unwrap_err(), [0; 3]);
}

#[test]
fn access_outside_of_a_region_panics_with_the_range() {
    let fixture = Fixture::new();
    let region = fixture.pd.alloc_remote(100, RemoteAccess::WRITE).unwrap();
    let panic_of = |act: &dyn Fn()| {
        let panic = catch_unwind(AssertUnwindSafe(act)).unwrap_err();
        panic.downcast_ref::<String>().unwrap().clone()
    };
    #[expect(clippy::reversed_empty_ranges, reason = "the point of the test")]
    let reversed = 50..10;
    let slice = |range| drop(region.slice(range));
    for (panic, text) in [
        (
            panic_of(&|| slice(reversed.clone())),
            "50..10 ends before its start",
        ),
        (
            panic_of(&|| slice(60..101)),
            "41 bytes from 60 are not inside of 100",
        ),
        (
            panic_of(&|| slice(usize::MAX..usize::MAX)),
            "are not inside of 100",
        ),
        (
            panic_of(&|| region.read(usize::MAX, &mut [0])),
            "are not inside of 100",
        ),
        (panic_of(&|| region.write(99, &[0; 2])), "2 bytes from 99"),
        (
            panic_of(&|| region.store(usize::MAX - 7, 0)),
            "are not inside of 100",
        ),
    ] {
        assert!(panic.contains(text), "{panic}");
    }
    assert_eq!(region.slice(100..100).len(), 0);
}

/// Memory with a flag set at its drop.
#[derive(Debug)]
pub(crate) struct Watched(Vec<u8>, Arc<AtomicBool>);

impl Watched {
    pub(crate) fn new(len: usize) -> (Self, Arc<AtomicBool>) {
        let dropped = Arc::new(AtomicBool::new(false));
        (Self(vec![7; len], Arc::clone(&dropped)), dropped)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
    }
}

// SAFETY: a vector is one.
unsafe impl Memory for Watched {
    fn range(&mut self) -> NonNull<[u8]> {
        self.0.range()
    }
}

// SAFETY: as above.
unsafe impl OwnedMemory for Watched {}

#[test]
fn registration_options_reach_the_device() {
    let fixture = Fixture::new();
    let registration = || fixture.pd.register(Mapping::new(8192).unwrap());
    let access = || fixture.fake.region().2;
    let buf = registration().create_buf().unwrap();
    assert_eq!(access(), LOCAL);
    drop(buf);
    let buf = registration()
        .relaxed_ordering()
        .on_demand()
        .huge_pages()
        .create_buf();
    let flags = flag::IBV_ACCESS_RELAXED_ORDERING.0
        | flag::IBV_ACCESS_ON_DEMAND.0
        | flag::IBV_ACCESS_HUGETLB.0;
    assert_eq!(access(), LOCAL | flags);
    drop(buf);
    let region = registration().remote(RemoteAccess::READ).windows().create();
    let flags = flag::IBV_ACCESS_REMOTE_READ.0 | flag::IBV_ACCESS_MW_BIND.0;
    assert_eq!(access(), LOCAL | flags);
    drop(region);
    let region = registration()
        .remote(RemoteAccess::empty())
        .iova(0x7000)
        .create()
        .unwrap();
    assert_eq!((fixture.fake.region().0, access()), (0x7000, LOCAL));
    let token = region.slice(16..20).token();
    assert_eq!((token.addr, token.len), (0x7010, 4));
    drop(region);
    let region = registration()
        .remote(RemoteAccess::empty())
        .zero_based()
        .create()
        .unwrap();
    assert_eq!(access(), LOCAL | flag::IBV_ACCESS_ZERO_BASED.0);
    assert_eq!(region.token().addr, 0);
}

#[test]
fn request_uses_the_regions_iova() {
    let fixture = Fixture::new();
    let memory = Mapping::new(4096).unwrap();
    let registration = fixture.pd.register(memory).remote(RemoteAccess::empty());
    let region = registration.zero_based().create().unwrap();
    region.write(100, b"zero");
    let (sent, work) = traffic(
        &fixture,
        region.slice(100..104),
        region.slice(0..8),
        b"based",
    );
    assert_eq!(sent, b"zero");
    let mut bytes = [0; 8];
    work.read(0, &mut bytes);
    assert_eq!(&bytes, b"based\0\0\0");
}

#[test]
fn failed_registration_returns_the_memory() {
    let fixture = Fixture::new();
    fixture.fake.fail(Call::RegMr, libc::ENOMEM);
    let refused = fixture
        .pd
        .register(b"precious".to_vec())
        .relaxed_ordering()
        .create_buf()
        .unwrap_err();
    assert_eq!(refused.value, b"precious");
    let text = error_text(&refused.error);
    let expected =
        "`ibv_reg_mr` failed (8 bytes, relaxed ordering): Cannot allocate memory (os error 12)";
    assert!(text.starts_with(expected), "{text}");
    let text = refused.error.to_string();
    assert!(text.contains("; this process may lock"), "{text}");
    let refused = fixture.pd.register(Vec::new()).create_buf().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
    let registration = || fixture.pd.register(vec![1; 3]).remote(RemoteAccess::READ);
    let refused = registration().iova(u64::MAX - 1).create().unwrap_err();
    assert_eq!(refused.value, [1; 3]);
    assert_eq!(
        refused.error.to_string(),
        "`ibv_reg_mr` failed (3 bytes, remote read, from 0xfffffffffffffffe): \
         it would end after the last address"
    );
    let memory = Mapping::new(10).unwrap();
    let refused = fixture
        .pd
        .register(memory)
        .remote(RemoteAccess::READ)
        .iova(3)
        .create();
    assert_eq!(
        refused.unwrap_err().error.raw_os_error(),
        Some(libc::EINVAL)
    );
    assert_eq!(fixture.fake.live(), ["ibv_pd", "verbs_context"]);
}

#[test]
fn memory_is_dropped_after_deregistration_or_never() {
    let fixture = Fixture::new();
    let (memory, dropped) = Watched::new(64);
    let mut buf = fixture.pd.register(memory).create_buf().unwrap();
    let rest = buf.split_off(32);
    drop(buf);
    assert!(!dropped.load(Ordering::Relaxed));
    drop(rest);
    assert!(dropped.load(Ordering::Relaxed));

    let (memory, dropped) = Watched::new(64);
    let region = fixture
        .pd
        .register(memory)
        .remote(RemoteAccess::WRITE)
        .create()
        .unwrap();
    fixture.fake.fail(Call::DeregMr, libc::EBUSY);
    drop(region);
    assert!(!dropped.load(Ordering::Relaxed));
}

#[test]
fn processes_share_a_region_by_its_file() {
    let fixture = Fixture::new();
    let memory = SharedMemory::create(4096).unwrap();
    // As in the other process, with the received descriptor.
    let other = SharedMemory::open(memory.as_fd().try_clone_to_owned().unwrap()).unwrap();
    let [ours, theirs] = [memory, other].map(|memory| {
        let registration = fixture.pd.register(memory).remote(RemoteAccess::WRITE);
        registration.create().unwrap()
    });
    assert_ne!(ours.token().addr, theirs.token().addr);
    theirs.write(100, b"from the other");
    let mut bytes = [0; 14];
    ours.read(100, &mut bytes);
    assert_eq!(&bytes, b"from the other");
}

#[test]
fn pool_gives_each_buffer_to_one_owner() {
    let fixture = Fixture::new();
    let pool = fixture.pd.alloc_pool(3, 100).unwrap();
    assert_eq!((pool.count(), pool.capacity()), (3, 100));
    let mut out: Vec<_> = std::iter::from_fn(|| pool.try_take()).collect();
    assert_eq!(out.len(), 3);
    for (i, buf) in (0..).zip(&mut out) {
        buf.fill(i);
    }
    for (i, buf) in (0..).zip(&out) {
        assert_eq!(buf[..], [i; 100]);
        assert_eq!(buf.as_ptr().align_offset(64), 0);
    }
    drop(out.remove(1));
    let mut again = pool.try_take().unwrap();
    assert!(pool.try_take().is_none());
    assert_eq!(again[..], [1; 100], "what its last owner left");
    again.set_len(5);
    again.copy_from_slice(b"hello");
    let (sent, received) = traffic(&fixture, again, out.remove(0), b"to the pool");
    assert_eq!(sent, b"hello");
    assert_eq!(received[..11], *b"to the pool");
    assert_eq!(pool.try_take().unwrap().len(), 100, "full again");
}

#[test]
fn pool_outlives_its_last_buffer() {
    let fixture = Fixture::new();
    let (memory, dropped) = Watched::new(200);
    let pool = fixture.pd.register(memory).create_pool(64).unwrap();
    assert_eq!(pool.count(), 3);
    let mut buf = pool.try_take().unwrap();
    drop(pool);
    buf[0] = 1;
    let pool = buf.pool();
    drop(pool);
    thread::spawn(move || drop(buf)).join().unwrap();
    assert!(dropped.load(Ordering::Relaxed));
    let refused = fixture
        .pd
        .register(vec![0; 10])
        .create_pool(64)
        .unwrap_err();
    assert_eq!(refused.value.len(), 10);
    assert_eq!(
        fixture.pd.alloc_pool(2, 0).unwrap_err().to_string(),
        "`ibv_reg_mr` failed (2 buffers of 0 bytes): a buffer has from 1 to 2147483647 bytes"
    );
    assert!(fixture.pd.alloc_pool(usize::MAX, 64).is_err());
}

#[test]
fn frozen_pool_buffer_returns_to_the_pool_with_its_last_handle() {
    let fixture = Fixture::new();
    let pool = fixture.pd.alloc_pool(2, 64).unwrap();
    let (mut page, other) = (pool.try_take().unwrap(), pool.try_take().unwrap());
    page.set_len(5);
    page.copy_from_slice(b"hello");
    let frozen = page.freeze();
    let mut cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts, SharedPoolBuf> = fixture.rc(&cq, 2);
    for _ in 0..2 {
        let post = qp.post(op::Send::new(frozen.clone()));
        post.map_err(|refused| refused.error).unwrap();
    }
    let sent: Vec<_> = fixture
        .fake
        .sends(qp.qp_num())
        .iter()
        .map(|wr| fixture.fake.collect(wr))
        .collect();
    assert_eq!(sent, [b"hello", b"hello"]);
    assert!(frozen.thaw().is_none(), "two requests have handles");
    for is_last in [false, true] {
        assert!(pool.try_take().is_none());
        fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
        let wc = cq.poll().unwrap().next().unwrap();
        let Ok(Completed::Send(done)) = qp.complete(wc) else {
            panic!("no send");
        };
        let handle = done.into_work().unwrap();
        assert_eq!(handle[..], *b"hello");
        let Some(mut thawed) = handle.thaw() else {
            assert!(!is_last);
            continue;
        };
        assert!(is_last);
        thawed[0] = b'j';
        assert_eq!(thawed[..], *b"jello");
    }
    assert_eq!(pool.try_take().unwrap()[..5], *b"jello");
    drop(pool);
    drop(other);
}

#[test]
fn store_of_one_thread_has_buffers_of_its_pool_only() {
    let fixture = Fixture::new();
    let (pool, other) = (
        fixture.pd.alloc_pool(3, 64).unwrap(),
        fixture.pd.alloc_pool(1, 64).unwrap(),
    );
    let mut store = pool.local(2);
    assert_eq!((store.capacity(), store.stored()), (2, 0));
    let mut taken: Vec<_> = std::iter::from_fn(|| store.try_take()).collect();
    assert_eq!(taken.len(), 3, "all of the pool");
    taken[2].set_len(1);
    taken.into_iter().rev().for_each(|buf| store.put(buf));
    assert_eq!(store.stored(), 2);
    assert!(
        pool.try_take().is_some(),
        "one buffer was beyond the capacity"
    );
    store.put(other.try_take().unwrap());
    assert!(other.try_take().is_some(), "back in its own pool");
    let again: Vec<_> = std::iter::from_fn(|| store.try_take()).collect();
    assert!(again.iter().all(|buf| buf.len() == 64), "full again");
    again.into_iter().for_each(|buf| store.put(buf));
    let rest: Vec<_> = std::iter::from_fn(|| pool.try_take()).collect();
    assert_eq!(rest.len(), 1);
    drop(rest);
    drop(store);
    assert_eq!(
        std::iter::from_fn(|| pool.try_take())
            .map(std::mem::forget)
            .count(),
        3
    );
    assert_eq!(pool.local(usize::MAX).capacity(), 3);
}

#[test]
fn pool_buffer_has_one_owner_in_any_order() {
    let fixture = Fixture::new();
    let pool = fixture.pd.alloc_pool(4, 64).unwrap();
    thread::scope(|scope| {
        for me in 0..4 {
            let pool = &pool;
            scope.spawn(move || {
                for round in 0..10_000_u64 {
                    let Some(mut buf) = pool.try_take() else {
                        continue;
                    };
                    let mark = (me << 32 | round).to_ne_bytes();
                    buf[..8].copy_from_slice(&mark);
                    thread::yield_now();
                    assert_eq!(buf[..8], mark);
                }
            });
        }
    });
    assert_eq!(
        std::iter::from_fn(|| pool.try_take().map(std::mem::forget)).count(),
        4
    );
    // A forgotten buffer's slot is lost to the pool for ever.
    drop(pool);
    assert!(fixture.fake.live().contains(&"ibv_mr"));
}

#[test]
#[cfg_attr(miri, ignore = "Miri ends a program without memory")]
fn memory_that_is_not_there_is_an_error() {
    let fixture = Fixture::new();
    let refusals = [
        fixture.pd.alloc_remote(1 << 60, RemoteAccess::WRITE),
        fixture.pd.alloc_for_windows(1 << 60),
    ];
    for refused in refusals {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        assert!(
            error.to_string().contains("1152921504606846976 bytes"),
            "{error}"
        );
    }
    assert!(fixture.pd.alloc_pool(1 << 20, 1 << 31).is_err());
}

/// Soft-iWARP may answer a peer's read after the end of the registration. Then no other memory of the process has the pages.
#[test]
fn heap_memory_for_peers_of_soft_iwarp_is_refused() {
    let fixture = of_vendor(Fixture::iwarp(), SOFT_IWARP);
    let register = |memory: Vec<u8>| fixture.pd.register(memory);
    for access in [RemoteAccess::READ, RemoteAccess::WRITE] {
        let refused = register(vec![7; 64]).remote(access).create().unwrap_err();
        assert_eq!(refused.error.kind(), ErrorKind::Unsupported);
        let text = refused.error.to_string();
        assert!(text.contains("such as a `Mapping`"), "{text}");
        assert_eq!(refused.value, [7; 64]);
        let prefix = Prefix::new(Mapping::new(64).unwrap(), 32).unwrap();
        fixture.pd.register(prefix).remote(access).create().unwrap();
        for len in [1, 64, 5000] {
            let regions: Vec<_> = (0..4)
                .map(|_| fixture.pd.alloc_remote(len, access).unwrap())
                .collect();
            for region in &regions {
                assert_eq!((region.token().addr % 4096, region.len()), (0, len));
            }
        }
    }
    // Memory without rights of peers is accessed for requests of this process alone.
    let none = RemoteAccess::empty();
    register(vec![7; 64]).remote(none).create().unwrap();
    register(vec![7; 64]).create_buf().unwrap();
    drop(fixture);
    let other_vendor = of_vendor(Fixture::iwarp(), 0x1425);
    let heap = other_vendor
        .pd
        .register(vec![7; 64])
        .remote(RemoteAccess::READ);
    heap.create().unwrap();
}
