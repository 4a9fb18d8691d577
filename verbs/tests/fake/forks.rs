//! Objects inherited by a fork: a child that drops its copies leaves the parent's objects alone.

use std::{any::Any, io::ErrorKind};

use softnic::Call;
use verbs::{
    Buf, Gid, QueuePair, RemoteAccess, Reset, Rts, SharedReceiveQueue,
    ah::AddressVector,
    attr::RxHashFields,
    completion_counter::CountedUnit,
    flow::{FlowRule, FlowTarget as _},
    mw::WindowType,
    op,
    rss::RxHash,
    scope::{ScopedBuf, ScopedSlice},
};

use crate::{
    children::{Fork, dropped_in_a_child},
    fixture::Fixture,
    tag_matching,
};

/// Objects of one kind, made in the parent, and the calls of their drop, in order.
type Group = (&'static str, fn(&Fixture) -> Box<dyn Any>, &'static [Call]);

const GROUPS: &[Group] = &[
    ("device", |f| Box::new(f.fake.open()), &[Call::CloseDevice]),
    (
        "protection domain",
        |f| Box::new(f.ctx.alloc_pd().unwrap()),
        &[Call::DeallocPd],
    ),
    (
        "parent and thread domain",
        |f| {
            let td = f.ctx.alloc_td().unwrap();
            // SAFETY: the domain is used by one thread.
            let parent = unsafe { f.pd.parent_domain_builder().thread_domain(&td) };
            Box::new(parent.create().unwrap())
        },
        &[Call::DeallocPd, Call::DeallocTd],
    ),
    (
        "memory",
        |f| Box::new(f.pd.alloc_buf(8).unwrap()),
        &[Call::DeregMr],
    ),
    (
        "memory for peers",
        |f| Box::new(f.pd.alloc_remote(8, RemoteAccess::READ).unwrap()),
        &[Call::DeregMr],
    ),
    (
        "all memory",
        |f| Box::new(f.pd.register_everything().unwrap()),
        &[Call::DeregMr],
    ),
    (
        "null region",
        |f| Box::new(f.pd.alloc_null_mr().unwrap()),
        &[Call::DeregMr],
    ),
    (
        "device memory",
        |f| {
            f.fake.describe(|device| device.attr.max_dm_size = 64);
            let dm = f.ctx.alloc_dm(64, 0).unwrap();
            Box::new(f.pd.register_dm(&dm, 0..64, RemoteAccess::READ).unwrap())
        },
        &[Call::DeregMr, Call::FreeDm],
    ),
    (
        "window",
        bound_window,
        &[
            Call::DeallocMw,
            Call::DeregMr,
            Call::DestroyQp,
            Call::DestroyCq,
            Call::DestroyCompChannel,
        ],
    ),
    (
        "address handle",
        |f| {
            let vector = AddressVector::global(1, 1, Gid([0xfe; 16]));
            Box::new(f.pd.create_ah(&vector).unwrap())
        },
        &[Call::DestroyAh],
    ),
    (
        "completion channel",
        |f| Box::new(f.ctx.create_comp_channel().unwrap()),
        &[Call::DestroyCompChannel],
    ),
    (
        "completion queue",
        |f| Box::new(f.cq(4)),
        &[Call::DestroyCq, Call::DestroyCompChannel],
    ),
    (
        "extended completion queue",
        |f| Box::new(f.ctx.cq_ex_builder(4).create().unwrap()),
        &[Call::DestroyCq],
    ),
    (
        "queue pair",
        queue_pair,
        &[
            Call::DestroyQp,
            Call::DeregMr,
            Call::DeregMr,
            Call::DestroyCq,
            Call::DestroyCompChannel,
        ],
    ),
    (
        "queue pair of a group",
        multicast,
        &[
            Call::DetachMcast,
            Call::DestroyQp,
            Call::DestroyCq,
            Call::DestroyCompChannel,
        ],
    ),
    (
        "shared receive queue",
        |f| {
            let mut srq: SharedReceiveQueue<Buf> = f.pd.create_srq(4, 1).unwrap();
            srq.post(f.pd.alloc_buf(8).unwrap()).unwrap();
            Box::new(srq)
        },
        &[Call::DestroySrq, Call::DeregMr],
    ),
    (
        "tag matching",
        |f| {
            tag_matching::can_match(f);
            let cq = f.ctx.cq_ex_builder(64).create().unwrap();
            let queue =
                f.pd.create_tag_matching::<Buf>(cq.handle(), tag_matching::ROOM);
            Box::new(queue.unwrap())
        },
        &[Call::DestroySrq, Call::DestroyCq],
    ),
    (
        "XRC receiver and domain",
        |f| Box::new(f.ctx.open_xrcd().unwrap().create_qp().unwrap()),
        &[Call::DestroyQp, Call::CloseXrcd],
    ),
    (
        "flow to work queues",
        spread,
        &[
            Call::DestroyFlow,
            Call::DestroyCounters,
            Call::DestroyQp,
            Call::DestroyRwqIndTable,
            Call::DestroyWq,
            Call::DestroyCq,
            Call::DestroyCompChannel,
        ],
    ),
    (
        "completion counter",
        |f| {
            let counter = f.ctx.create_completion_counter(CountedUnit::BYTES);
            Box::new(counter.unwrap())
        },
        &[Call::DestroyCompCntr],
    ),
    ("imports", imports, &[Call::UnimportMr, Call::UnimportPd]),
];

fn bound_window(fixture: &Fixture) -> Box<dyn Any> {
    let cq = fixture.cq(4);
    let mut qp: QueuePair<verbs::Rc, Rts, (), ()> = fixture.rc(&cq, 2);
    let region = fixture.pd.alloc_for_windows(8).unwrap();
    let mut window = fixture.pd.alloc_mw(WindowType::Type2).unwrap();
    let bound = qp.bind_window(&mut window, &region, RemoteAccess::READ, ());
    bound.map(drop).map_err(|refused| refused.error).unwrap();
    Box::new((region, window, qp))
}

/// With work in flight on both queues.
fn queue_pair(fixture: &Fixture) -> Box<dyn Any> {
    let cq = fixture.cq(4);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 2);
    qp.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
    let message = fixture.pd.alloc_buf(8).unwrap();
    qp.post(op::Send::new(message)).unwrap();
    Box::new(qp)
}

fn multicast(fixture: &Fixture) -> Box<dyn Any> {
    let cq = fixture.cq(4);
    let mut qp = fixture.ud(&cq);
    qp.attach_multicast(Gid([0xff; 16]), 0).unwrap();
    Box::new(qp)
}

fn spread(fixture: &Fixture) -> Box<dyn Any> {
    let cq = fixture.cq(4);
    let wq = fixture.pd.wq_builder(&cq).create().unwrap();
    let table = fixture.ctx.create_indirection_table(&[&wq]).unwrap();
    let hash = RxHash::toeplitz(&[7; 40], RxHashFields::SRC_IPV4);
    let qp = fixture.pd.create_rss_qp(&table, &hash).unwrap();
    let counters = fixture.ctx.create_counters().unwrap();
    let flow = qp.create_flow(&FlowRule::new(1).count(&counters)).unwrap();
    Box::new((flow, counters, qp, table, wq, cq))
}

fn imports(fixture: &Fixture) -> Box<dyn Any> {
    let pd = fixture.ctx.import_pd(fixture.pd.kernel_handle()).unwrap();
    Box::new(pd.import_mr(verbs::event::KernelHandle(77)).unwrap())
}

#[test]
fn objects_dropped_by_a_child_stay_the_parents() {
    let mut wrong = Vec::new();
    for (name, make, ended_by) in GROUPS {
        let fixture = Fixture::new();
        let objects = make(&fixture);
        let calls_before = fixture.fake.calls().len();
        let Fixture { pd, ctx, fake } = fixture;
        let dropped = ((pd, ctx), objects);
        let (dropped, status) = dropped_in_a_child(dropped, || fake.calls().len() == calls_before);
        assert_eq!(status, 0, "the child ended the {name}");
        let (_fixture, objects) = dropped;
        drop(objects);
        let ended = fake.calls().split_off(calls_before);
        if ended != *ended_by {
            wrong.push((name, ended));
        }
    }
    assert!(wrong.is_empty(), "other calls of the parent: {wrong:#?}");
}

#[test]
fn scope_left_by_a_child_stays_the_parents() {
    let fixture = Fixture::new();
    let cq = fixture.cq(4);
    let mut memory = [0; 8];
    let mut calls_before = 0;
    let fork = verbs::scope(&fixture.pd, |scope| {
        let qp = scope.create_qp(fixture.pd.qp_builder(&cq, &cq)).unwrap();
        let mut qp: QueuePair<verbs::Rc, Rts, ScopedSlice<'_>, ScopedBuf<'_>> = fixture.connect(qp);
        qp.post_recv(scope.register(&mut memory).unwrap()).unwrap();
        // The scope ends it.
        #[expect(clippy::mem_forget, reason = "ended by the scope in place of the drop")]
        std::mem::forget(qp);
        calls_before = fixture.fake.calls().len();
        Fork::new()
    });
    let status = fork.end(|| fixture.fake.calls().len() == calls_before);
    assert_eq!(status, 0);
    let ended = [Call::DestroyQp, Call::DeregMr];
    assert_eq!(fixture.fake.calls()[calls_before..], ended);
}

#[test]
fn calls_of_a_child_on_inherited_objects_are_refused() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(4);
    let qp: QueuePair<verbs::Rc, Reset> = fixture.pd.qp_builder(&cq, &cq).create().unwrap();
    let mut qp = Some(qp);
    let channel = fixture.ctx.create_comp_channel().unwrap();
    let calls_before = fixture.fake.calls().len();
    let fork = Fork::new();
    let status = fork.end(|| {
        let Fixture { pd, ctx, fake } = &fixture;
        let text = ctx.alloc_pd().unwrap_err().to_string();
        let named = text.starts_with("`ibv_alloc_pd` failed: the object was inherited by a fork");
        let errors = [
            ctx.alloc_pd().map(drop).unwrap_err(),
            ctx.create_cq(4).map(drop).unwrap_err(),
            ctx.cq_ex_builder(4).create().map(drop).unwrap_err(),
            ctx.create_comp_channel().map(drop).unwrap_err(),
            ctx.open_xrcd().map(drop).unwrap_err(),
            pd.alloc_buf(8).map(drop).unwrap_err(),
            pd.alloc_mw(WindowType::Type2).map(drop).unwrap_err(),
            pd.create_srq::<Buf>(4, 1).map(drop).unwrap_err(),
            pd.qp_builder::<verbs::Rc>(&cq, &cq)
                .create()
                .map(drop)
                .unwrap_err(),
            channel.try_next().map(drop).unwrap_err(),
            cq.resize(8).unwrap_err(),
            qp.take()
                .unwrap()
                .destroy()
                .map(drop)
                .map_err(|refused| refused.error)
                .unwrap_err(),
        ];
        let refused = errors
            .iter()
            .all(|err| err.kind() == ErrorKind::Unsupported);
        named && refused && fake.calls().len() == calls_before
    });
    assert_eq!(status, 0);
    drop((qp, channel));
    cq.resize(8).unwrap();
}
