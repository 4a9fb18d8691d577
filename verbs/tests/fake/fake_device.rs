//! The fake device does the worst that a real one may: otherwise the other tests find nothing.

use verbs::{Buf, QueuePair, Rc, RemoteAccess, Rts, WcStatus};

use crate::fixture::Fixture;

#[test]
fn keys_of_a_released_region_are_issued_again_at_once() {
    let fixture = Fixture::new();
    let rkey = || {
        let region = fixture.pd.alloc_remote(8, RemoteAccess::WRITE).unwrap();
        region.token().rkey
    };
    assert_eq!(rkey(), rkey());
}

#[test]
fn message_is_written_within_the_region_that_has_the_key_now() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let mut qp: QueuePair<Rc, Rts, Buf, Buf> = fixture.rc(&cq, 2);
    qp.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
    let sge = fixture.fake.receives(qp.qp_num())[0].sges[0];
    let mut beyond = sge;
    beyond.addr += 1;
    assert_eq!(
        fixture.fake.deliver(&[beyond], b"message"),
        WcStatus::LOC_PROT_ERR
    );
    assert_eq!(fixture.fake.deliver(&[sge], b"message"), WcStatus::SUCCESS);
    let left = qp.destroy().map_err(|refused| refused.error).unwrap();
    assert_eq!(&*left.receive[0], b"message\0");
    drop(left);
    let again = fixture.pd.alloc_buf(4).unwrap();
    assert!(format!("{again:?}").contains(&sge.lkey.to_string()));
    assert_eq!(
        fixture.fake.deliver(&[sge], b"message"),
        WcStatus::LOC_PROT_ERR
    );
}
