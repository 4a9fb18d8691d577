//! Paging on demand. Most are twins of pyverbs' cases (`test_odp.py`), by their names.

use std::sync::atomic::Ordering;

use ibverbs_sys::ibv_access_flags as flag;
use softnic::Call;
use verbs::{
    RemoteAccess,
    mr::{Advice, HugePage, Mapping},
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
    let many = (0..=MAX_SGE).map(|_| fixture.pd.alloc_buf(1).unwrap());
    let many: Vec<_> = many.collect();
    let err = fixture
        .pd
        .advise(&many, Advice::PREFETCH, true)
        .unwrap_err();
    assert!(err.to_string().contains("more than 128 elements"), "{err}");
}
