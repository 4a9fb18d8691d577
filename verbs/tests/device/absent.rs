//! Objects missing on both Soft-RoCE and Soft-iWARP: creating one is an error, without further
//! harm. Tests on a fake device use these objects (see `tests/fake`), and tests of softnic use extended
//! connections.

use std::{fmt::Debug, fs::File, os::fd::AsFd};

use verbs::{
    Buf, QueuePair, Reset, Result, SharedReceiveQueue,
    attr::DeviceCaps,
    completion_counter::CountedUnit,
    event::KernelHandle,
    flow::{FlowRule, FlowTarget},
    import::import_device,
    qp::{Ece, RateLimit, RawPacket, XrcSend},
    xrcd::XrcdOpen,
};

use crate::loopback::Fixture;

#[track_caller]
fn absent<T: Debug>(result: Result<T>) {
    let err = result.unwrap_err();
    let errno = err.raw_os_error();
    let absent = [libc::EOPNOTSUPP, libc::ENOSYS];
    assert!(errno.is_some_and(|errno| absent.contains(&errno)), "{err}");
}

#[test]
fn domains_are_unsupported() {
    let fixture = Fixture::new();
    let ctx = &fixture.ctx;
    absent(ctx.alloc_td());
    absent(fixture.pd.parent_domain_builder().create());
}

#[test]
fn device_memory_is_unsupported() {
    let fixture = Fixture::new();
    absent(fixture.ctx.alloc_dm(64, 0));
    assert_eq!(fixture.ctx.query_device().unwrap().max_dm_size(), 0);
}

#[test]
fn steering_is_unsupported() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let qp: QueuePair<verbs::Rc, Reset> = fixture.qp(&cq, 2);
    absent(qp.create_flow(&FlowRule::new(1)));
    absent(fixture.ctx.create_counters());
    absent(fixture.ctx.query_completion_counter_caps());
    absent(fixture.ctx.create_completion_counter(CountedUnit::REQUESTS));
    absent(fixture.pd.wq_builder(&cq).create());
    assert_eq!(cq.available(), cq.capacity() - 4);
}

#[test]
fn options_of_connections_are_unsupported() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Reset> = fixture.qp(&cq, 2);
    absent(qp.query_ece());
    absent(qp.set_ece(Ece::default()));
}

#[test]
fn import_of_objects_is_unsupported() {
    let fixture = Fixture::new();
    let Fixture { ctx, pd } = &fixture;
    // SAFETY: the import is refused.
    let fd = unsafe { ctx.cmd_fd() };
    absent(import_device(fd.try_clone_to_owned().unwrap()));
    let null = File::open("/dev/null").unwrap();
    assert!(import_device(null.into()).is_err());
    absent(ctx.import_pd(pd.kernel_handle()));
    absent(pd.import_mr(KernelHandle(1)));
    absent(ctx.import_dm(KernelHandle(1)));
}

#[test]
fn transports_and_rates_are_unsupported() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    // As root, so the reason is not a missing privilege.
    let raw = fixture.pd.qp_builder::<RawPacket>(&cq, &cq).create();
    assert!(raw.is_err());
    let (mut qp, _peer) = fixture.pair::<Buf, Buf>(&cq, 1);
    let limit = RateLimit {
        rate: 1000,
        ..RateLimit::default()
    };
    absent(qp.set_rate_limit(&limit));
    let srq: SharedReceiveQueue = fixture.pd.create_srq(2, 1).unwrap();
    absent(srq.srq_num());
}

#[test]
fn extended_connections_exist_with_the_capability_only() {
    let fixture = Fixture::new();
    let ctx = &fixture.ctx;
    let caps = ctx.query_device().unwrap().caps();
    let has_xrc = caps.contains(DeviceCaps::XRC);
    let file = File::open("/proc/self/exe").unwrap();
    let domains = [
        ctx.open_xrcd(),
        ctx.open_shared_xrcd(file.as_fd(), XrcdOpen::CREATE),
    ];
    for domain in domains {
        assert_eq!(domain.is_ok(), has_xrc, "{domain:?}");
        let _refused = domain.map_err(|err| absent::<()>(Err(err)));
    }
    let cq = fixture.cq(8);
    let sender = fixture.pd.qp_builder::<XrcSend>(&cq, &cq).create();
    assert_eq!(sender.is_ok(), has_xrc, "{sender:?}");
}
