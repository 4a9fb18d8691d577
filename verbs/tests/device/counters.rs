//! Counters of Soft-RoCE's port.

use std::time::{Duration, Instant};

use verbs::{Buf, op};

use crate::loopback::Fixture;

#[test]
fn port_counters_grow_with_a_message() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let before = fixture.ctx.port_counters(1).unwrap();
    let (mut a, mut b) = fixture.pair::<Buf, Buf>(&cq, 2);
    b.post_recv(fixture.pd.alloc_buf(64).unwrap()).unwrap();
    let buf = fixture.pd.register_buf(*b"hello").unwrap();
    a.post(op::Send::new(buf)).unwrap();
    for _ in 0..2 {
        let wc = cq.wait(None).unwrap().next().unwrap();
        wc.ok().unwrap();
    }
    let growth = || fixture.ctx.port_counters(1).unwrap().since(&before);
    assert_eq!(growth().get("lifespan"), None);
    if fixture.is_soft_roce() {
        // The message, and its acknowledgement. The kernel's numbers are up to 10 ms old.
        let late = Instant::now() + Duration::from_secs(60);
        while growth().get("sent_pkts").unwrap() < 2 {
            assert!(Instant::now() < late, "{:?}", growth());
        }
    }
}

#[test]
fn port_counters_of_a_missing_port_name_the_place() {
    let err = Fixture::new().ctx.port_counters(9).unwrap_err();
    assert_eq!(err.kind(), std::io::ErrorKind::NotFound);
    assert!(err.to_string().contains("/ports/9"), "{err}");
}
