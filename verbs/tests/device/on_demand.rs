//! Memory paged on demand, where the device has it: Soft-RoCE since Linux 6.15, and not softnic. Other devices refuse its
//! registration.

use std::io::ErrorKind;

use rustix::param::page_size;
use verbs::{
    Buf, Completed, Init, QueuePair, RemoteAccess, RemoteRegion, Reset, Rtr, Rts,
    SharedReceiveQueue, Ud, WcStatus,
    ah::{Addressed, GRH_LEN},
    attr::{OdpCaps, OdpGeneralCaps, OdpTransportCaps},
    mr::{Advice, Mapping},
    op::{self, SendOps},
    qp::{Attributes, Psn},
};

use crate::{
    loopback::{Fixture, expect_bytes},
    memory::{exchange, write},
};

/// Two pages, in bytes.
fn len_of_pages() -> usize {
    2 * page_size()
}

/// The device's capabilities, `None` without paging.
pub(crate) fn paging(fixture: &Fixture) -> Option<OdpCaps> {
    let caps = fixture.ctx.query_device().unwrap().odp_caps();
    if caps.general.contains(OdpGeneralCaps::SUPPORT) {
        return Some(caps);
    }
    let memory = Mapping::new(len_of_pages()).unwrap();
    let refused = fixture.pd.register(memory).on_demand().create_buf();
    assert_eq!(refused.unwrap_err().value.len(), len_of_pages());
    None
}

/// Whether the device accesses a page at the right place. Soft-RoCE of Linux 7.2 accesses the start of the page instead
/// (`rxe_odp_mr_copy`).
pub(crate) fn keeps_offsets(fixture: &Fixture) -> bool {
    let memory = fixture.pd.register(Mapping::new(len_of_pages()).unwrap());
    let memory = memory.on_demand().remote(RemoteAccess::WRITE);
    let region = memory.create().unwrap();
    let mut cq = fixture.cq(16);
    let part = region.slice(64..128);
    assert_eq!(write(fixture, &mut cq, &part), WcStatus::SUCCESS);
    let mut bytes = [0; 4];
    part.read(0, &mut bytes);
    &bytes == b"from"
}

/// Length of a message that the device takes from the right places: several packets, or one at the start of a page.
fn message_len(fixture: &Fixture) -> usize {
    if keeps_offsets(fixture) {
        len_of_pages()
    } else {
        1000
    }
}

/// Fails with the first byte of `memory` that is not `expected`.
fn check(memory: &[u8], expected: u8) {
    let wrong = memory.iter().position(|&byte| byte != expected);
    let wrong = wrong.map(|at| (at, memory[at]));
    assert_eq!(wrong, None, "of {} bytes of {expected}", memory.len());
}

/// Frees the pages of `memory`. The next access, of the program or the device, finds new ones, of zeros. A device with pinned
/// pages would go on with the old ones.
fn evict(memory: &mut [u8]) {
    let (start, len) = (memory.as_mut_ptr().cast(), memory.len());
    // SAFETY: whole pages of an anonymous mapping, borrowed exclusively. The bytes stay initialised, as zeros.
    let ret = unsafe { libc::madvise(start, len, libc::MADV_DONTNEED) };
    assert_eq!(ret, 0);
}

fn paged(fixture: &Fixture) -> Buf {
    let memory = Mapping::new(len_of_pages()).unwrap();
    fixture
        .pd
        .register(memory)
        .on_demand()
        .create_buf()
        .unwrap()
}

/// Soft-RoCE writes at the start of the page of a receive: memory beside the receive, if others own a part of the page.
#[test]
fn memory_that_shares_a_page_is_not_paged_beside_its_neighbour() {
    let fixture = Fixture::new();
    let Some(_) = paging(&fixture) else { return };
    let page = || Mapping::new(page_size()).unwrap();
    if fixture.is_soft_roce() {
        let refused = fixture.pd.register(vec![0xaa; 64]).on_demand().create_buf();
        assert_eq!(refused.unwrap_err().error.kind(), ErrorKind::Unsupported);
        let refused = fixture.pd.register(page()).on_demand().create_pool(64);
        assert_eq!(refused.unwrap_err().error.kind(), ErrorKind::Unsupported);
    } else {
        let registration = fixture.pd.register(page()).on_demand();
        let mut neighbour = registration.create_buf().unwrap();
        let to = neighbour.split_off(1024);
        neighbour.fill(0xaa);
        let message = fixture.pd.register_buf(*b"message").unwrap();
        let (_, to) = exchange(&fixture, message, to);
        assert_eq!(&to[..7], b"message");
        check(&neighbour, 0xaa);
    }
    // Whole pages are.
    let mut to = paged(&fixture);
    evict(&mut to);
    let message = fixture.pd.register_buf(*b"message").unwrap();
    let (_, to) = exchange(&fixture, message, to);
    assert_eq!(&to[..7], b"message");
}

#[test]
fn message_into_evicted_pages_arrives() {
    let fixture = Fixture::new();
    let Some(caps) = paging(&fixture) else { return };
    let needed = OdpTransportCaps::SEND | OdpTransportCaps::RECV;
    assert!(caps.rc.contains(needed), "{caps:?}");
    let len = message_len(&fixture);
    let (mut from, mut to) = (paged(&fixture), paged(&fixture));
    for round in 1..=3 {
        evict(&mut to);
        from.set_len(len_of_pages());
        evict(&mut from);
        from.fill(round);
        from.set_len(len);
        (from, to) = exchange(&fixture, from, to);
        check(&to[..len], round);
    }
}

#[test]
fn odp_rc_mixed_mr() {
    let fixture = Fixture::new();
    let Some(_) = paging(&fixture) else { return };
    let len = message_len(&fixture);
    let pinned = || fixture.pd.alloc_buf(len_of_pages()).unwrap();
    for (mut from, mut to) in [(paged(&fixture), pinned()), (pinned(), paged(&fixture))] {
        from.fill(3);
        to.fill(0);
        from.set_len(len);
        let (_, received) = exchange(&fixture, from, to);
        check(&received[..len], 3);
    }
}

/// The address goes to pinned memory, so that the message starts at the start of a page.
#[test]
fn odp_ud_traffic() {
    let fixture = Fixture::new();
    let Some(caps) = paging(&fixture) else { return };
    if !caps
        .ud
        .contains(OdpTransportCaps::SEND | OdpTransportCaps::RECV)
    {
        return;
    }
    let mut cq = fixture.cq(16);
    let builder = fixture.pd.qp_builder::<Ud>(&cq, &cq).max_recv_sge(2);
    let qp = builder
        .create_for::<Addressed<Buf>, (Buf, Buf)>()
        .unwrap()
        .to_init(&Attributes::<Ud, Init>::new(1, 7))
        .unwrap()
        .to_rtr(&Attributes::<Ud, Rtr>::new())
        .unwrap();
    let rts = Attributes::<Ud, Rts>::new(Psn::default());
    let mut qp = qp.to_rts(&rts).unwrap();
    let (mut from, mut to) = (paged(&fixture), paged(&fixture));
    for memory in [&mut from, &mut to] {
        evict(memory);
    }
    from.set_len(1000);
    from.fill(5);
    let header = fixture.pd.alloc_buf(GRH_LEN).unwrap();
    qp.post_recv((header, to)).unwrap();
    let ah = fixture.pd.create_ah(&fixture.address_vector()).unwrap();
    let work = Addressed::new(from, &ah);
    qp.post(op::SendTo::new(work, qp.qp_num(), 7)).unwrap();
    let mut received = None;
    for _ in 0..2 {
        let wc = cq.wait(crate::windows::TEST_TIMEOUT).unwrap().next();
        let wc = wc.expect("the datagram was lost");
        wc.ok().unwrap();
        if let Ok(Completed::Receive(done)) = qp.complete(wc) {
            received = Some(done.into_work().unwrap());
        }
    }
    let (_, to) = received.unwrap();
    check(&to[..1000], 5);
}

#[test]
fn odp_rc_srq_traffic() {
    let fixture = Fixture::new();
    let Some(caps) = paging(&fixture) else { return };
    if !caps.rc.contains(OdpTransportCaps::SRQ_RECV) {
        return;
    }
    let mut cq = fixture.cq(16);
    let mut srq: SharedReceiveQueue = fixture.pd.create_srq(4, 1).unwrap();
    let a: QueuePair<verbs::Rc, Reset> = fixture.qp(&cq, 2);
    let b = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq).srq(&srq);
    let b: QueuePair<verbs::Rc, Reset> = b.create().unwrap();
    let numbers = [b.qp_num(), a.qp_num()];
    let mut a = fixture.bring_up(a, numbers[0]);
    let _b = fixture.bring_up(b, numbers[1]);
    let (mut from, mut to) = (paged(&fixture), paged(&fixture));
    for memory in [&mut from, &mut to] {
        evict(memory);
    }
    let len = message_len(&fixture);
    from.set_len(len);
    from.fill(6);
    srq.post(to).unwrap();
    a.post(op::Send::new(from)).unwrap();
    let mut received = None;
    for _ in 0..2 {
        let wc = cq.wait(crate::windows::TEST_TIMEOUT).unwrap().next();
        let wc = wc.expect("nothing has completed");
        wc.ok().unwrap();
        if wc.qp_id() == srq.id() {
            received = Some(srq.complete(wc).unwrap().into_work().unwrap());
        } else {
            a.complete(wc).unwrap().ok().unwrap();
        }
    }
    check(&received.unwrap()[..len], 6);
}

#[test]
fn odp_qp_ex_rc_atomic_write() {
    let fixture = Fixture::new();
    let Some(caps) = paging(&fixture) else { return };
    if !caps.rc.contains(OdpTransportCaps::ATOMIC_WRITE) {
        return;
    }
    let mut cq = fixture.cq(16);
    let builder = fixture.builder(&cq, 2).send_ops(SendOps::ATOMIC_WRITE);
    let a: QueuePair<verbs::Rc, Reset> = builder.create().unwrap();
    let b: QueuePair<verbs::Rc, Reset> = fixture.qp(&cq, 2);
    let numbers = [b.qp_num(), a.qp_num()];
    let mut a = fixture.bring_up(a, numbers[0]);
    let _b = fixture.bring_up(b, numbers[1]);
    let memory = fixture
        .pd
        .register(Mapping::new(len_of_pages()).unwrap())
        .on_demand();
    let region = memory.remote(RemoteAccess::WRITE).create().unwrap();
    let second = page_size() as u64;
    let to = region.token().slice(second..second + 8).unwrap();
    let work = fixture.pd.register_buf(*b"kept").unwrap();
    let mut batch = a.extended_batch().unwrap();
    assert!(
        batch
            .push(op::AtomicWrite::new(work, to, *b"at once!"))
            .is_ok()
    );
    batch.post().map_err(|refused| refused.error).unwrap();
    let wc = cq.wait(crate::windows::TEST_TIMEOUT).unwrap().next();
    wc.expect("nothing has completed").ok().unwrap();
    assert_eq!(region.load(page_size()).to_ne_bytes(), *b"at once!");
}

#[test]
fn peer_accesses_evicted_pages() {
    let fixture = Fixture::new();
    let Some(caps) = paging(&fixture) else { return };
    let needed = OdpTransportCaps::WRITE | OdpTransportCaps::READ | OdpTransportCaps::ATOMIC;
    assert!(caps.rc.contains(needed), "{caps:?}");
    let access = RemoteAccess::WRITE | RemoteAccess::READ | RemoteAccess::ATOMIC;
    let registration = fixture
        .pd
        .register(Mapping::new(len_of_pages()).unwrap())
        .on_demand();
    let region: RemoteRegion = registration.remote(access).create().unwrap();
    let mut cq = fixture.cq(16);
    let (mut a, _b): (QueuePair<verbs::Rc, Rts, Buf>, QueuePair<verbs::Rc, Rts>) =
        fixture.pair(&cq, 2);
    let mut complete = |qp: &mut QueuePair<verbs::Rc, Rts, Buf>| {
        let wc = cq.wait(crate::windows::TEST_TIMEOUT).unwrap().next();
        match qp.complete(wc.expect("nothing has completed")) {
            Ok(Completed::Send(done)) => done.into_work().unwrap(),
            _ => unreachable!("nothing is received"),
        }
    };
    let second = page_size() as u64;
    let number = region.token().slice(second..second + 8).unwrap();
    region.write(page_size(), &40_u64.to_ne_bytes());
    let work = fixture.pd.register_buf([0; 8]).unwrap();
    a.post(op::FetchAdd::new(work, number, 2)).unwrap();
    let mut work = complete(&mut a);
    assert_eq!(*work, 40_u64.to_ne_bytes());
    work.copy_from_slice(b"evicted?");
    a.post(op::Write::new(work, region.token().slice(0..8).unwrap()))
        .unwrap();
    let work = complete(&mut a);
    a.post(op::Read::new(work, number)).unwrap();
    assert_eq!(*complete(&mut a), 42_u64.to_ne_bytes());
    expect_bytes(|bytes| region.read(0, bytes), b"evicted?");
}

/// Soft-RoCE's provider passes the advice on in newer releases of rdma-core only, and no capability names its part.
#[test]
fn prefetched_pages_are_used_by_the_device() {
    let fixture = Fixture::new();
    let Some(_) = paging(&fixture) else { return };
    let (mut from, mut to) = (paged(&fixture), paged(&fixture));
    evict(&mut to);
    from.fill(7);
    for wait in [true, false] {
        let advised = [
            fixture.pd.advise(&from, Advice::PREFETCH, wait),
            fixture.pd.advise(&to, Advice::PREFETCH_WRITE, wait),
        ];
        for advised in advised {
            if let Err(err) = advised {
                assert_eq!(err.raw_os_error(), Some(libc::EOPNOTSUPP), "{err}");
            }
        }
    }
    let len = message_len(&fixture);
    from.set_len(len);
    let (_, received) = exchange(&fixture, from, to);
    check(&received[..len], 7);
    // Memory with pinned pages has none to fetch.
    let pinned = fixture.pd.alloc_buf(64).unwrap();
    assert!(fixture.pd.advise(&pinned, Advice::PREFETCH, true).is_err());
}
