//! Memory windows.

use std::{io::ErrorKind, time::Duration};

use verbs::{
    Buf, Completed, CompletionQueue, MemoryWindow, QueuePair, RemoteAccess, RemoteToken, Rts,
    WcStatus, mw::WindowType, op,
};

use crate::loopback::{Fixture, expect_bytes};

pub(crate) const TEST_TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

type Qp = QueuePair<verbs::Rc, Rts>;

/// Waits for the completion of a request on the send queue of `qp`.
fn status(cq: &mut CompletionQueue, qp: &mut Qp) -> WcStatus {
    loop {
        let completions = cq.wait(TEST_TIMEOUT).unwrap();
        assert!(completions.len() > 0, "nothing has completed");
        for wc in completions {
            if wc.qp_id() == qp.id() && !wc.is_receive() {
                let Ok(Completed::Send(done)) = qp.complete(wc) else {
                    unreachable!()
                };
                return done.status();
            }
        }
    }
}

fn small(fixture: &Fixture) -> Buf {
    fixture.pd.alloc_buf(4).unwrap()
}

fn write(fixture: &Fixture, cq: &mut CompletionQueue, qp: &mut Qp, to: RemoteToken) -> WcStatus {
    qp.post(op::Write::new(
        fixture.pd.register_buf(*b"data").unwrap(),
        to,
    ))
    .unwrap();
    status(cq, qp)
}

#[test]
fn type_1_window_gives_access_until_dropped() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, mut b) = fixture.pair::<Buf, Buf>(&cq, 8);
    let region = fixture.pd.alloc_for_windows(64).unwrap();
    let mut window = fixture.pd.alloc_mw(WindowType::Type1).unwrap();
    let token = b
        .bind_window(
            &mut window,
            &region.slice(8..24),
            RemoteAccess::WRITE,
            small(&fixture),
        )
        .unwrap();
    assert_eq!(status(&mut cq, &mut b), WcStatus::SUCCESS);
    assert_eq!((token.len, token.rkey), (16, window.rkey()));
    assert_eq!(write(&fixture, &mut cq, &mut a, token), WcStatus::SUCCESS);
    expect_bytes(|bytes| region.read(8, bytes), b"data");
    drop(window);
    assert_eq!(
        write(&fixture, &mut cq, &mut a, token),
        WcStatus::REM_ACCESS_ERR
    );
}

#[test]
fn window_of_type_2_can_be_bound_invalidated_and_bound_again() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, mut b) = fixture.pair::<Buf, Buf>(&cq, 8);
    let region = fixture.pd.alloc_for_windows(64).unwrap();
    let mut window = fixture.pd.alloc_mw(WindowType::Type2).unwrap();
    let mut bind = |b: &mut Qp, cq: &mut CompletionQueue| {
        let work = small(&fixture);
        let token = b
            .bind_window(&mut window, &region, RemoteAccess::WRITE, work)
            .unwrap();
        assert_eq!(status(cq, b), WcStatus::SUCCESS);
        token
    };
    let first = bind(&mut b, &mut cq);
    assert_eq!(write(&fixture, &mut cq, &mut a, first), WcStatus::SUCCESS);
    b.post(op::LocalInvalidate::new(small(&fixture), first.rkey))
        .unwrap();
    assert_eq!(status(&mut cq, &mut b), WcStatus::SUCCESS);
    let second = bind(&mut b, &mut cq);
    assert_ne!(first.rkey, second.rkey, "an old key gives no access");
    assert_eq!(write(&fixture, &mut cq, &mut a, second), WcStatus::SUCCESS);
    assert_eq!(
        write(&fixture, &mut cq, &mut a, first),
        WcStatus::REM_ACCESS_ERR
    );
}

#[test]
fn window_of_type_2_is_not_bound_to_an_empty_range() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let region = fixture.pd.alloc_for_windows(64).unwrap();
    for is_bound in [false, true] {
        let (mut a, mut b) = fixture.pair::<Buf, Buf>(&cq, 8);
        let mut window = fixture.pd.alloc_mw(WindowType::Type2).unwrap();
        let mut bind = |b: &mut Qp, cq: &mut CompletionQueue, range| {
            let (region, work) = (region.slice(range), small(&fixture));
            let access = RemoteAccess::WRITE;
            let token = b.bind_window(&mut window, &region, access, work).unwrap();
            (token, status(cq, b))
        };
        if is_bound {
            let (token, bound) = bind(&mut b, &mut cq, 8..24);
            assert_eq!(bound, WcStatus::SUCCESS);
            assert_eq!(write(&fixture, &mut cq, &mut a, token), WcStatus::SUCCESS);
        }
        let (_, unbound) = bind(&mut b, &mut cq, 8..8);
        // MW_BIND_ERR; Soft-RoCE completes the request as flushed.
        assert_ne!(unbound, WcStatus::SUCCESS, "bound: {is_bound}");
    }
}

#[test]
fn window_of_type_1_is_unbound_by_an_empty_range() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, mut b) = fixture.pair::<Buf, Buf>(&cq, 8);
    let region = fixture.pd.alloc_for_windows(64).unwrap();
    let mut window = fixture.pd.alloc_mw(WindowType::Type1).unwrap();
    let mut bind = |b: &mut Qp, cq: &mut CompletionQueue, range| {
        let (region, work) = (region.slice(range), small(&fixture));
        let access = RemoteAccess::WRITE;
        let token = b.bind_window(&mut window, &region, access, work).unwrap();
        assert_eq!(status(cq, b), WcStatus::SUCCESS);
        token
    };
    let first = bind(&mut b, &mut cq, 8..24);
    assert_eq!(write(&fixture, &mut cq, &mut a, first), WcStatus::SUCCESS);
    bind(&mut b, &mut cq, 8..8);
    assert_eq!(
        write(&fixture, &mut cq, &mut a, first),
        WcStatus::REM_ACCESS_ERR
    );
}

#[test]
fn peer_can_invalidate_a_window() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, mut b) = fixture.pair::<Buf, Buf>(&cq, 8);
    let region = fixture.pd.alloc_for_windows(64).unwrap();
    let mut window = fixture.pd.alloc_mw(WindowType::Type2).unwrap();
    let work = small(&fixture);
    let token = b
        .bind_window(&mut window, &region, RemoteAccess::WRITE, work)
        .unwrap();
    assert_eq!(status(&mut cq, &mut b), WcStatus::SUCCESS);
    b.post_recv(small(&fixture)).unwrap();
    a.post(op::Send::new(small(&fixture)).invalidate(token.rkey))
        .unwrap();
    // The receive, and the send, whose acknowledgement may arrive later.
    let mut pending = 2;
    while pending > 0 {
        let completions = cq.wait(TEST_TIMEOUT).unwrap();
        assert!(completions.len() > 0, "{pending} requests are pending");
        for wc in completions {
            // On other devices the completion of the receive names the key, but see `invalidated_rkey`.
            wc.ok().unwrap();
            pending -= 1;
            let qp = if wc.qp_id() == a.id() { &mut a } else { &mut b };
            qp.complete(wc).unwrap().ok().unwrap();
        }
    }
    assert_eq!(
        write(&fixture, &mut cq, &mut a, token),
        WcStatus::REM_ACCESS_ERR
    );
}

#[test]
fn region_with_a_bound_window_outlives_its_owner() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, mut b) = fixture.pair::<Buf, Buf>(&cq, 8);
    let region = fixture.pd.alloc_for_windows(64).unwrap();
    let mut window = fixture.pd.alloc_mw(WindowType::Type1).unwrap();
    let work = small(&fixture);
    let token = b
        .bind_window(&mut window, &region, RemoteAccess::WRITE, work)
        .unwrap();
    assert_eq!(status(&mut cq, &mut b), WcStatus::SUCCESS);
    drop(region);
    assert_eq!(write(&fixture, &mut cq, &mut a, token), WcStatus::SUCCESS);
}

/// Soft-RoCE waits for the end of such a window for a minute, and then frees the queue pair
/// regardless.
#[test]
fn queue_pair_with_a_bound_type_2_window_outlives_its_owner() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (_a, mut b) = fixture.pair::<Buf, Buf>(&cq, 8);
    let available = cq.available();
    let region = fixture.pd.alloc_for_windows(64).unwrap();
    let mut window = fixture.pd.alloc_mw(WindowType::Type2).unwrap();
    let work = small(&fixture);
    b.bind_window(&mut window, &region, RemoteAccess::WRITE, work)
        .unwrap();
    assert_eq!(status(&mut cq, &mut b), WcStatus::SUCCESS);
    let refused = b.destroy().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::ResourceBusy);
    drop(refused.value);
    assert_eq!(cq.available(), available);
    drop(window);
    assert!(cq.available() > available, "the queue pair is gone");
}

/// Without an invalidation, the device refuses to bind the window anew, and the first binding
/// stays.
#[test]
fn queue_pair_with_an_unconfirmed_window_binding_outlives_its_owner() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (_a, mut first) = fixture.pair::<Buf, Buf>(&cq, 8);
    let (_b, mut second) = fixture.pair::<Buf, Buf>(&cq, 8);
    let available = cq.available();
    let region = fixture.pd.alloc_for_windows(64).unwrap();
    let mut window = fixture.pd.alloc_mw(WindowType::Type2).unwrap();
    let bind = |qp: &mut QueuePair<verbs::Rc, Rts>, window: &mut MemoryWindow| {
        let work = small(&fixture);
        qp.bind_window(window, &region, RemoteAccess::WRITE, work)
            .unwrap();
    };
    bind(&mut first, &mut window);
    assert_eq!(status(&mut cq, &mut first), WcStatus::SUCCESS);
    drop(first);
    bind(&mut second, &mut window);
    assert_ne!(status(&mut cq, &mut second), WcStatus::SUCCESS);
    drop(second);
    assert_eq!(cq.available(), available, "both are still there");
    drop(window);
    assert!(cq.available() > available, "both are gone");
}

#[test]
fn window_of_another_domain_is_refused() {
    let fixture = Fixture::new();
    let cq = fixture.cq(64);
    let (mut a, _b) = fixture.pair::<Buf, Buf>(&cq, 8);
    let other = fixture.ctx.alloc_pd().unwrap();
    let region = other.alloc_for_windows(64).unwrap();
    let mut window = other.alloc_mw(WindowType::Type2).unwrap();
    let refused = a
        .bind_window(&mut window, &region, RemoteAccess::READ, small(&fixture))
        .unwrap_err();
    assert!(
        refused
            .error
            .to_string()
            .contains("different protection domains")
    );
    assert_eq!(refused.value.unwrap().len(), 4);
}
