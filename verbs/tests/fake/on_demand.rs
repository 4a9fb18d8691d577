//! Paging on demand. Most are twins of pyverbs' cases (`test_odp.py`), by their names.

use std::{ptr::NonNull, sync::atomic::Ordering};

use ibverbs_sys::ibv_access_flags as flag;
use softnic::Call;
use verbs::{
    RemoteAccess,
    mr::{Advice, HugePage, Mapping, Memory, OwnedMemory},
    work::MAX_SGE,
};

use crate::{
    fixture::{Fixture, error_text},
    memory::{LOCAL, Watched, traffic},
};

fn on_demand(fixture: &Fixture) -> verbs::Buf {
    let buf = fixture
        .pd
        .register(b"on demand".to_vec())
        .on_demand()
        .create_buf()
        .unwrap();
    assert_eq!(
        fixture.fake.region().2,
        LOCAL | flag::IBV_ACCESS_ON_DEMAND.0
    );
    buf
}

#[test]
fn odp_rc_traffic() {
    let fixture = Fixture::new();
    let mut from = on_demand(&fixture);
    let to = from.split_off(2);
    let (sent, received) = traffic(&fixture, from, to, b"message");
    assert_eq!((&sent[..], &received[..]), (&b"on"[..], &b"message"[..]));
}

#[test]
fn odp_implicit_rc_traffic() {
    let fixture = Fixture::new();
    let everything = fixture.pd.register_everything().unwrap();
    let (start, len, access, _) = fixture.fake.region();
    assert_eq!((start, len), (0, u64::MAX));
    assert_eq!(access, LOCAL | flag::IBV_ACCESS_ON_DEMAND.0);
    let (memory, dropped) = Watched::new(4);
    let from = everything.buf(b"implicit".to_vec()).unwrap();
    let to = everything.buf(memory).unwrap();
    assert_eq!(everything.buf(Vec::new()).unwrap_err().value.len(), 0);
    drop(everything);
    let (sent, received) = traffic(&fixture, from, to, b"here");
    assert_eq!((&sent[..], &received[..]), (&b"implicit"[..], &b"here"[..]));
    drop(received);
    assert!(dropped.load(Ordering::Relaxed));
    assert!(!fixture.fake.live().contains(&"ibv_mr"));
    let registered = fixture.fake.calls();
    assert_eq!(
        registered
            .iter()
            .filter(|call| **call == Call::RegMr)
            .count(),
        1
    );
}

/// Ends with a registration of huge pages, or with the error that names their pool.
#[test]
fn odp_rc_huge_traffic() {
    let fixture = Fixture::new();
    match Mapping::huge(1 << 21, HugePage::MIB_2) {
        Ok(memory) => {
            let buf = fixture
                .pd
                .register(memory)
                .on_demand()
                .huge_pages()
                .create_buf()
                .unwrap();
            assert_eq!(buf.len(), 1 << 21);
        }
        Err(err) => assert!(err.to_string().contains("nr_hugepages"), "{err}"),
    }
}

fn prefetch(wait: bool, advice: Advice) {
    let fixture = Fixture::new();
    let mut from = on_demand(&fixture);
    let to = from.split_off(2);
    fixture.pd.advise(&(), advice, wait).unwrap();
    let both = (from, to);
    fixture.pd.advise(&both, advice, wait).unwrap();
    let flags = u32::from(wait);
    assert_eq!(
        fixture.fake.advised(),
        [(advice.0, flags, 2), (advice.0, flags, 7)]
    );
    let (sent, _) = traffic(&fixture, both.0, both.1, b"");
    assert_eq!(sent, b"on");
}

#[test]
fn odp_sync_prefetch_rc_traffic() {
    prefetch(true, Advice::PREFETCH);
    prefetch(true, Advice::PREFETCH_WRITE);
}

#[test]
fn odp_async_prefetch_rc_traffic() {
    prefetch(false, Advice::PREFETCH);
    prefetch(false, Advice::PREFETCH_WRITE);
}

#[test]
fn odp_prefetch_sync_no_page_fault_rc_traffic() {
    prefetch(true, Advice::PREFETCH_NO_FAULT);
}

#[test]
fn odp_prefetch_async_no_page_fault_rc_traffic() {
    prefetch(false, Advice::PREFETCH_NO_FAULT);
}

#[test]
fn everything_region_refuses_reregistration() {
    let fixture = Fixture::new();
    let everything = fixture.pd.register_everything().unwrap();
    assert!(everything.region(Vec::new()).is_err());
    let (memory, dropped) = Watched::new(4);
    let region = everything.region(memory).unwrap();
    drop(everything);
    let (sent, received) = traffic(&fixture, region.clone(), region.clone(), b"here");
    assert_eq!(sent.len(), 4);
    drop(received);
    let mut bytes = [0; 4];
    region.read(0, &mut bytes);
    assert_eq!(&bytes, b"here");
    let refused = region.rereg().access(RemoteAccess::READ).apply();
    let err = refused.unwrap_err();
    assert!(
        err.error.to_string().contains("all memory"),
        "{}",
        err.error
    );
    assert!(!dropped.load(Ordering::Relaxed));
    drop(err);
    assert!(dropped.load(Ordering::Relaxed));
    assert!(!fixture.fake.live().contains(&"ibv_mr"));
}

#[test]
fn odp_implicit_sync_prefetch_rc_traffic() {
    let fixture = Fixture::new();
    let everything = fixture.pd.register_everything().unwrap();
    let buf = everything.buf(vec![1; 5]).unwrap();
    everything
        .pd()
        .advise(&buf, Advice::PREFETCH, true)
        .unwrap();
    assert_eq!(fixture.fake.advised(), [(0, 1, 5)]);
}

#[test]
fn bad_advice_is_an_error() {
    let fixture = Fixture::new();
    let buf = fixture.pd.alloc_buf(8).unwrap();
    let err = fixture.pd.advise(&buf, Advice::PREFETCH, true).unwrap_err();
    assert_eq!(
        error_text(&err),
        "`ibv_advise_mr` failed (PREFETCH): Invalid argument (os error 22)"
    );
    let bufs = (0..=MAX_SGE).map(|_| fixture.pd.alloc_buf(1).unwrap());
    let bufs: Vec<_> = bufs.collect();
    let err = fixture
        .pd
        .advise(&bufs, Advice::PREFETCH, true)
        .unwrap_err();
    assert!(err.to_string().contains("more than 128 elements"), "{err}");
}

/// Soft-RoCE, which accesses the start of a page at any offset.
fn soft_roce() -> Fixture {
    let fixture = Fixture::new();
    let fake = &fixture.fake;
    fake.describe(|device| device.attr.orig_attr.vendor_id = 0xff_ffff);
    fixture
}

/// A page's length of bytes that begin inside of a page.
#[derive(Debug)]
struct Behind(Mapping);

// SAFETY: a part of the mapping.
unsafe impl Memory for Behind {
    fn range(&mut self) -> NonNull<[u8]> {
        let start: NonNull<u8> = self.0.range().cast();
        // SAFETY: inside of two pages.
        NonNull::slice_from_raw_parts(unsafe { start.add(64) }, 4096)
    }
}

// SAFETY: as above.
unsafe impl OwnedMemory for Behind {}

#[test]
fn memory_that_shares_a_page_is_not_paged_by_soft_roce() {
    let fixture = soft_roce();
    let Fixture { pd, fake, .. } = &fixture;
    let none = RemoteAccess::empty();
    let map = |len| Mapping::new(len).unwrap();
    // No whole pages, by the length and by the start.
    let short = pd.register(map(100)).on_demand().create_buf();
    let short = short.map(drop).map_err(|refused| refused.error);
    let offset = pd.register(Behind(map(8192))).on_demand().create_buf();
    let offset = offset.map(drop).map_err(|refused| refused.error);
    let remote = || pd.register(map(8192)).on_demand().remote(none);
    let error = |refused: verbs::error::Refused<Mapping>| refused.error;
    let paged = RemoteAccess::from_bits_retain(flag::IBV_ACCESS_ON_DEMAND.0);
    for refused in [
        short,
        offset,
        pd.register_everything().map(drop),
        // Buffers that share a page.
        pd.register(map(8192))
            .on_demand()
            .create_pool(64)
            .map(drop)
            .map_err(error),
        pd.register(map(8192))
            .on_demand()
            .huge_pages()
            .create_buf()
            .map(drop)
            .map_err(error),
        remote().windows().create().map(drop).map_err(error),
        remote().zero_based().create().map(drop).map_err(error),
        remote().iova(1 << 30).create().map(drop).map_err(error),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("start of a page"), "{error}");
    }
    // A bit of no right of peers.
    let refused = pd.register(map(100)).remote(paged).create().unwrap_err();
    assert_eq!(refused.error.raw_os_error(), Some(libc::EINVAL));
    assert!(!fake.calls().contains(&Call::RegMr));
}

#[test]
fn whole_pages_are_paged_by_soft_roce() {
    let fixture = soft_roce();
    let map = |len| Mapping::new(len).unwrap();
    let registration = fixture.pd.register(map(4 * 4096)).on_demand();
    let mut buf = registration.create_buf().unwrap();
    let mut tail = buf.split_off(8192);
    assert_eq!((buf.len(), tail.len()), (8192, 8192));
    let last = tail.split_off(4096);
    let parts = std::panic::AssertUnwindSafe(|| tail.split_off(64));
    assert!(
        std::panic::catch_unwind(parts).is_err(),
        "the parts share a page"
    );
    assert_eq!(last.len(), 4096);
    let registration = fixture.pd.register(map(4 * 4096)).on_demand();
    let pool = registration.create_pool(4000).unwrap_err().value;
    let pool = fixture.pd.register(pool).on_demand().create_pool(4096);
    assert_eq!(pool.unwrap().count(), 4);
    // Pinned memory is accessed where it is.
    let mut pinned = fixture.pd.alloc_buf(100).unwrap();
    drop(pinned.split_off(7));
}
