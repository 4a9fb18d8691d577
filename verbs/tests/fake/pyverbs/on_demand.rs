//! `test_odp.py`: the cases not in `on_demand.rs`

use ibverbs_sys::ibv_access_flags as flag;
use verbs::{
    Buf, QueuePair, RemoteAccess, RemoteRegion, RemoteToken, Rts, SharedReceiveQueue,
    mr::{Advice, HugePage, Mapping},
    op,
};

use super::{
    traffic::{Traffic, exchange_datagrams},
    xrc::Ends,
};
use crate::fixture::Fixture;

/// Memory with pages fetched by the device on demand.
fn on_demand(fixture: &Fixture, len: usize) -> Buf {
    let registration = fixture.pd.register(vec![0; len]).on_demand();
    let buf = registration.create_buf().unwrap();
    assert_ne!(fixture.fake.region().2 & flag::IBV_ACCESS_ON_DEMAND.0, 0);
    buf
}

/// On-demand memory accessible to peers.
fn remote(fixture: &Fixture, access: RemoteAccess) -> RemoteRegion {
    let registration = fixture.pd.register(vec![0; 64]).on_demand();
    let region = registration.remote(access).create().unwrap();
    let expected = flag::IBV_ACCESS_ON_DEMAND.0 | access.bits();
    assert_eq!(fixture.fake.region().2 & expected, expected);
    region
}

/// Posts one request to memory with this access, and lets the request complete.
fn access(
    access: RemoteAccess,
    len: usize,
    post: impl FnOnce(&mut QueuePair<verbs::Rc, Rts>, Buf, RemoteToken),
) {
    let fixture = Fixture::new();
    let region = remote(&fixture, access);
    let token = region.token().slice(0..len as u64).unwrap();
    let work = fixture.pd.register(vec![0; len]).on_demand().create_buf();
    fixture.perform(token, |qp| post(qp, work.unwrap(), token));
}

#[test]
fn odp_rc_atomic_cmp_and_swp() {
    access(RemoteAccess::ATOMIC, 8, |qp, work, number| {
        qp.post(op::CompareSwap::new(work, number, 1, 2)).unwrap();
    });
}

#[test]
fn odp_rc_atomic_fetch_and_add() {
    access(RemoteAccess::ATOMIC, 8, |qp, work, number| {
        qp.post(op::FetchAdd::new(work, number, 2)).unwrap();
    });
}

#[test]
fn odp_rc_rdma_read() {
    access(RemoteAccess::READ, 64, |qp, work, from| {
        qp.post(op::Read::new(work, from)).unwrap();
    });
}

#[test]
fn odp_rc_rdma_write() {
    access(RemoteAccess::WRITE, 64, |qp, work, to| {
        qp.post(op::Write::new(work, to)).unwrap();
    });
}

#[test]
fn odp_ud_traffic() {
    let fixture = Fixture::new();
    exchange_datagrams(&fixture, on_demand(&fixture, 64));
}

#[test]
fn odp_xrc_traffic() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let mut ends = Ends::new(&fixture, &cq);
    let mut poll = |take: &mut dyn FnMut(verbs::WorkCompletion<'_>)| {
        cq.poll().unwrap().for_each(take);
    };
    ends.traffic(&fixture, &mut poll, || on_demand(&fixture, 64));
}

#[test]
fn odp_rc_srq_traffic() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let mut srq: SharedReceiveQueue = fixture.pd.create_srq(4, 1).unwrap();
    let builder = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq).srq(&srq);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.connect(builder.create().unwrap());
    srq.post(on_demand(&fixture, 64)).unwrap();
    fixture.fake.complete_receive(qp.qp_num(), b"a message");
    let wc = cq.poll().unwrap().next().unwrap();
    assert_eq!(srq.complete(wc).unwrap().received().unwrap(), b"a message");
    let mut traffic = Traffic {
        fake: &fixture.fake,
        poll: &mut |take| cq.poll().unwrap().for_each(take),
    };
    let work = on_demand(&fixture, 64);
    traffic.send(&mut qp, &[0; 64], |qp| {
        qp.post(op::Send::new(work)).unwrap()
    });
}

/// Huge pages mapped by the program itself, or the error that names their pool.
#[test]
fn odp_rc_huge_user_addr_traffic() {
    let fixture = Fixture::new();
    let memory = match Mapping::huge(4 << 20, HugePage::MIB_2) {
        Ok(memory) => memory,
        Err(err) => {
            assert!(err.to_string().contains("nr_hugepages"), "{err}");
            // Without huge pages, as much memory of the usual pages.
            Mapping::new(4 << 20).unwrap()
        }
    };
    let registration = fixture.pd.register(memory).on_demand();
    let mut from = registration.create_buf().unwrap();
    assert_eq!(fixture.fake.region().1, 4 << 20);
    let to = from.split_off(2 << 20);
    from.fill(5);
    from.set_len(1024);
    let (sent, received) = crate::memory::traffic(&fixture, from, to, &[6; 1024]);
    assert_eq!(sent, [5; 1024]);
    assert_eq!(&received[..1024], [6; 1024]);
}

#[test]
fn odp_implicit_async_prefetch_rc_traffic() {
    let fixture = Fixture::new();
    let everything = fixture.pd.register_everything().unwrap();
    let from = everything.buf(vec![1; 5]).unwrap();
    let to = everything.buf(vec![0; 9]).unwrap();
    let pd = everything.pd();
    pd.advise(&from, Advice::PREFETCH, false).unwrap();
    pd.advise(&to, Advice::PREFETCH_WRITE, false).unwrap();
    let advised = [(Advice::PREFETCH.0, 0, 5), (Advice::PREFETCH_WRITE.0, 0, 9)];
    assert_eq!(fixture.fake.advised(), advised);
    let (sent, _) = crate::memory::traffic(&fixture, from, to, b"arrived");
    assert_eq!(sent, [1; 5]);
}
