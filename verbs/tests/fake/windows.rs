//! Memory windows.

use std::io;

use verbs::{QueuePair, RemoteAccess, Rts, mw::WindowType};

use crate::fixture::Fixture;

#[test]
fn window_with_many_bindings_keeps_a_bounded_number_of_queue_pairs() {
    let fixture = Fixture::new();
    let cq = fixture.cq(256);
    let region = fixture.pd.alloc_for_windows(64).unwrap();
    let mut window = fixture.pd.alloc_mw(WindowType::Type2).unwrap();
    let mut bind = |qp: &mut QueuePair<verbs::Rc, Rts, (), ()>| {
        qp.bind_window(&mut window, &region, RemoteAccess::READ, ())
            .map(drop)
            .map_err(|refused| refused.error.kind())
    };
    let mut qps: Vec<QueuePair<verbs::Rc, Rts, (), ()>> = Vec::new();
    for _ in 0..16 {
        qps.push(fixture.rc(&cq, 4));
        bind(qps.last_mut().unwrap()).unwrap();
    }
    let mut one_more: QueuePair<verbs::Rc, Rts, (), ()> = fixture.rc(&cq, 4);
    assert_eq!(bind(&mut one_more), Err(io::ErrorKind::QuotaExceeded));
    for qp in [0, 15, 7] {
        bind(&mut qps[qp]).unwrap();
    }
    assert_eq!(bind(&mut one_more), Err(io::ErrorKind::QuotaExceeded));
    let mut another = fixture.pd.alloc_mw(WindowType::Type2).unwrap();
    one_more
        .bind_window(&mut another, &region, RemoteAccess::READ, ())
        .unwrap();
}
