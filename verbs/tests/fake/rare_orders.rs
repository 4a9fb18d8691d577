//! Objects missing on Soft-RoCE, dropped in every order, with work in flight.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use ibverbs_sys::ibv_event_type;
use softnic::Call;
use verbs::{
    Buf, QueuePair, RemoteAccess, Reset, SharedReceiveQueue,
    attr::RxHashFields,
    counters::{CounterKind, ReadCounters},
    event::KernelHandle,
    flow::{FlowRule, FlowTarget},
    mr::PoolBuf,
    op,
    qp::QpNum,
    rss::RxHash,
    srq::{SrqNum, TagMatchingCapacity, TagMatchingQueue, TagPattern},
};

use crate::{
    domains::{Allocator, memory},
    fixture::Fixture,
    provider::Fake,
    xrc,
};

/// An object, with a use of the object.
trait Piece {
    fn touch(&mut self);
}

struct Used<T, F>(T, F);

impl<T, F: FnMut(&mut T)> Piece for Used<T, F> {
    fn touch(&mut self) {
        (self.1)(&mut self.0);
    }
}

type Set = Vec<Box<dyn Piece>>;

fn piece<T: 'static>(object: T, touch: impl FnMut(&mut T) + 'static) -> Box<dyn Piece> {
    Box::new(Used(object, touch))
}

/// Makes a set, and its fake device. Nothing else keeps the device open.
type Make = fn(Fixture) -> (Set, Fake);

/// Makes a set, drops it in the order with this number, and returns the device.
///
/// The remaining objects are used after each step, unless a call `fails` to destroy an object: then
/// the first one of its kind is the set's.
fn drop_in_order(make: Make, mut number: usize, fails: Option<Call>) -> Fake {
    let fixture = Fixture::new();
    fixture.fake.describe(|device| {
        device.attr.max_dm_size = 4096;
        device.attr.tm_caps.max_num_tags = 127;
        device.attr.tm_caps.max_ops = 64;
        device.attr.tm_caps.max_sge = 1;
        device.attr.tm_caps.flags = 1;
    });
    let (mut set, fake) = make(fixture);
    let touch = |set: &mut Set| match fails {
        Some(_) => {}
        None => set.iter_mut().for_each(|piece| piece.touch()),
    };
    touch(&mut set);
    if let Some(call) = fails {
        fake.fail(call, libc::EBUSY);
    }
    while !set.is_empty() {
        let which = number % set.len();
        number /= set.len();
        drop(set.remove(which));
        touch(&mut set);
    }
    fake
}

/// Runs all orders of a set of `pieces` objects. Then each call fails in some of the orders, and
/// leaves an object of that kind.
fn every_order(make: Make, pieces: usize, calls: &[(Call, &str)]) {
    let orders: usize = (1..=pieces).product();
    for number in 0..orders {
        let fake = drop_in_order(make, number, None);
        assert_eq!(fake.live(), [""; 0], "in order {number}");
    }
    for number in (0..orders).step_by(orders / 12 + 1) {
        for &(call, object) in calls {
            let fake = drop_in_order(make, number, Some(call));
            assert!(fake.live().contains(&object), "{call} in order {number}");
        }
    }
}

fn of_memory(fixture: Fixture) -> (Set, Fake) {
    let Fixture { pd, ctx, fake } = fixture;
    let mut dm = ctx.alloc_dm(64, 0).unwrap();
    dm.write(0, &[7; 64]).unwrap();
    let region = pd.register_dm(&dm, 0..64, RemoteAccess::READ).unwrap();
    let null = pd.alloc_null_mr().unwrap();
    let everything = pd.register_everything().unwrap();
    let buf: Buf = everything.buf(vec![3_u8; 16]).unwrap();
    let pool = pd.alloc_pool(2, 16).unwrap();
    let pool_buf: PoolBuf = pool.try_take().unwrap();
    let set = vec![
        piece(pd, |pd| drop(pd.alloc_buf(8).unwrap())),
        piece(dm, |dm| {
            let mut bytes = [0; 4];
            dm.read(60, &mut bytes).unwrap();
            assert_eq!(bytes, [7; 4]);
        }),
        piece(region, |region| assert_eq!(region.slice(8..16).len(), 8)),
        piece((null.buf(9), null), |(_, null)| drop(null.buf(3))),
        piece((everything, buf), |(everything, buf)| {
            drop(everything.buf(vec![0_u8; 8]).unwrap());
            assert_eq!(buf[..], [3; 16]);
        }),
        piece(pool, |pool| assert!(pool.try_take().is_some())),
        piece(pool_buf, |buf| buf.fill(1)),
    ];
    (set, fake)
}

fn of_xrc(fixture: Fixture) -> (Set, Fake) {
    let cq = fixture.cq(16);
    let xrcd = fixture.ctx.open_xrcd().unwrap();
    let mut srq: SharedReceiveQueue = fixture.pd.create_xrc_srq(&xrcd, &cq, 4, 1).unwrap();
    let receiver = xrc::receiver(&xrcd, QpNum::from_low_bits(9));
    let mut sender = xrc::sender(&fixture, &cq, receiver.qp_num());
    srq.post(fixture.pd.alloc_buf(8).unwrap()).unwrap();
    let send = op::Send::new(fixture.pd.alloc_buf(8).unwrap());
    sender
        .post(op::ToSrq::new(send, SrqNum::from_low_bits(3)))
        .unwrap();
    let Fixture { pd, ctx, fake } = fixture;
    let set = vec![
        piece(ctx, |ctx| assert!(ctx.query_device().is_ok())),
        piece(pd, |pd| drop(pd.alloc_buf(8).unwrap())),
        piece(cq, |cq| assert!(cq.poll().is_ok())),
        piece(xrcd, |xrcd| drop(xrcd.create_qp().unwrap())),
        piece(srq, |srq| assert!(srq.srq_num().is_ok())),
        piece(receiver, |qp| assert!(qp.query().is_ok())),
        piece(sender, |qp| assert_eq!(qp.send_queue().in_flight(), 1)),
    ];
    (set, fake)
}

fn of_steering(fixture: Fixture) -> (Set, Fake) {
    let cq = fixture.cq(8);
    let mut wq = fixture.pd.wq_builder(&cq).max_wr(2).create().unwrap();
    let table = fixture.ctx.create_indirection_table(&[&wq, &wq]).unwrap();
    let hash = RxHash::toeplitz(&[7; 40], RxHashFields::SRC_IPV4);
    let mut qp = fixture.pd.create_rss_qp(&table, &hash).unwrap();
    qp.activate(1).unwrap();
    let counters = fixture.ctx.create_counters().unwrap();
    counters.attach(CounterKind::PACKETS, 0).unwrap();
    let flow = qp.create_flow(&FlowRule::new(1).count(&counters)).unwrap();
    wq.to_ready().unwrap();
    wq.post(fixture.pd.alloc_buf(8).unwrap()).unwrap();
    let Fixture { pd, ctx, fake } = fixture;
    drop(ctx);
    let set = vec![
        piece(pd, |pd| drop(pd.alloc_buf(8).unwrap())),
        piece(cq, |cq| assert_eq!(cq.poll().unwrap().count(), 0)),
        piece(wq, |wq| assert_eq!(wq.in_flight(), 1)),
        piece(table, |table| assert_eq!(table.len(), 2)),
        piece(qp, |qp| {
            drop(qp.create_flow(&FlowRule::new(1)).unwrap());
        }),
        piece(counters, |counters| {
            counters.read(&mut [0], ReadCounters::empty()).unwrap();
        }),
        piece(flow, |flow| assert!(format!("{flow:?}").contains("Flow"))),
    ];
    (set, fake)
}

fn of_tags(fixture: Fixture) -> (Set, Fake) {
    let events = fixture.ctx.async_events().unwrap();
    let cq = fixture.ctx.cq_ex_builder(64).create().unwrap();
    let capacity = TagMatchingCapacity {
        max_wr: 4,
        max_sge: 1,
        max_num_tags: 4,
        max_ops: 4,
    };
    let mut queue: TagMatchingQueue = fixture
        .pd
        .create_tag_matching(cq.handle(), capacity)
        .unwrap();
    queue.post(fixture.pd.alloc_buf(64).unwrap()).unwrap();
    let tag = TagPattern::exact(7);
    queue.add(tag, fixture.pd.alloc_buf(64).unwrap()).unwrap();
    let builder = fixture.pd.qp_builder::<verbs::Rc>(cq.handle(), cq.handle());
    let qp: QueuePair<verbs::Rc, Reset> = builder.tag_matching(&queue).create().unwrap();
    let Fixture { pd, ctx, fake } = fixture;
    // An event of the port, not of an object, can be taken with any remaining objects.
    fake.raise(ibv_event_type::IBV_EVENT_PORT_ERR, 1);
    let set = vec![
        piece(ctx, |ctx| assert!(ctx.query_device().is_ok())),
        piece(pd, |pd| drop(pd.alloc_buf(8).unwrap())),
        piece(cq, |cq| assert!(cq.poll().unwrap().is_none())),
        piece(queue, |queue| assert_eq!(queue.in_flight(), 1)),
        piece(qp, |qp| assert!(qp.query().is_ok())),
        piece(events, |events| assert!(events.try_next().is_ok())),
    ];
    (set, fake)
}

fn of_domains(fixture: Fixture) -> (Set, Fake) {
    let td = fixture.ctx.alloc_td().unwrap();
    let blocks = Arc::new(AtomicUsize::new(0));
    let builder = fixture.pd.parent_domain_builder();
    // SAFETY: this test has one thread.
    let builder = unsafe { builder.thread_domain(&td) };
    let builder = builder.allocator(Allocator::new(&blocks, memory));
    let parent = builder.create().unwrap();
    let cq = fixture.ctx.cq_ex_builder(8).parent_domain(&parent);
    let cq = cq.create().unwrap();
    let qp = parent.qp_builder::<verbs::Rc>(&cq, &cq).create().unwrap();
    let qp = fixture.connect(qp);
    let Fixture { pd, ctx, fake } = fixture;
    let buf = parent.alloc_buf(8).unwrap();
    let set = vec![
        piece(ctx, |ctx| assert!(ctx.query_device().is_ok())),
        piece(pd, |pd| drop(pd.alloc_buf(8).unwrap())),
        piece(td, |td| assert!(!td.as_raw().is_null())),
        piece((parent, blocks), |(parent, blocks)| {
            drop(parent.alloc_buf(8).unwrap());
            assert_eq!(blocks.load(Ordering::Relaxed), 1);
        }),
        piece(cq, |cq| assert!(cq.poll().unwrap().is_none())),
        piece(qp, |qp| assert!(qp.query().is_ok())),
        piece(buf, |buf| buf.fill(1)),
    ];
    (set, fake)
}

fn of_another_process(fixture: Fixture) -> (Set, Fake) {
    let dm = fixture.ctx.alloc_dm(64, 0).unwrap();
    // SAFETY: used to import the device; nothing of this context is destroyed by the import.
    let fd = unsafe { fixture.ctx.cmd_fd() };
    let fd = fd.try_clone_to_owned().unwrap();
    let ctx = verbs::import::import_device(fd).unwrap();
    let pd = ctx.import_pd(fixture.pd.kernel_handle()).unwrap();
    let mr = pd.import_mr(KernelHandle(77)).unwrap();
    let imported = ctx.import_dm(dm.kernel_handle()).unwrap();
    let set = vec![
        piece(ctx, |ctx| assert!(ctx.query_device().is_ok())),
        piece(pd, |pd| drop(pd.alloc_buf(8).unwrap())),
        piece(mr, |mr| assert_ne!(mr.lkey(), mr.rkey())),
        piece(imported, |dm| dm.read(0, &mut [0; 4]).unwrap()),
        piece(dm, |dm| dm.write(0, &[1]).unwrap()),
        piece((fixture.pd, fixture.ctx), |(pd, _)| {
            drop(pd.alloc_buf(8).unwrap());
        }),
    ];
    (set, fixture.fake)
}

#[test]
fn memory_of_every_kind_can_be_dropped_in_every_order() {
    let calls = [
        (Call::FreeDm, "ibv_dm"),
        (Call::DeregMr, "ibv_mr"),
        (Call::DeallocPd, "ibv_pd"),
    ];
    every_order(of_memory, 7, &calls);
}

#[test]
fn extended_connections_can_be_dropped_in_every_order() {
    let calls = [
        (Call::CloseXrcd, "ibv_xrcd"),
        (Call::DestroySrq, "ibv_srq"),
        (Call::DestroyQp, "ibv_qp_ex"),
        (Call::DestroyCq, "ibv_cq"),
    ];
    every_order(of_xrc, 7, &calls);
}

#[test]
fn flows_and_work_queues_can_be_dropped_in_every_order() {
    let calls = [
        (Call::DestroyFlow, "ibv_flow"),
        (Call::DestroyCounters, "ibv_counters"),
        (Call::DestroyQp, "ibv_qp_ex"),
        (Call::DestroyRwqIndTable, "ibv_rwq_ind_table"),
        (Call::DestroyWq, "ibv_wq"),
    ];
    every_order(of_steering, 7, &calls);
}

#[test]
fn tag_matching_queues_can_be_dropped_in_every_order() {
    let calls = [
        (Call::DestroySrq, "ibv_srq"),
        (Call::DestroyQp, "ibv_qp_ex"),
    ];
    every_order(of_tags, 6, &calls);
}

#[test]
fn domains_can_be_dropped_in_every_order() {
    let calls = [
        (Call::DeallocTd, "ibv_td"),
        (Call::DeallocPd, "ibv_pd"),
        (Call::DestroyQp, "ibv_qp_ex"),
    ];
    every_order(of_domains, 7, &calls);
}

#[test]
fn imported_objects_can_be_dropped_in_every_order() {
    every_order(of_another_process, 6, &[(Call::FreeDm, "ibv_dm")]);
}
