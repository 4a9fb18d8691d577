//! Limits of a host: each is reached at its number, reported by its call, and refunded.

use std::net::IpAddr;

use cm::EventChannel;
use softnic::{Fabric, Host, Limits};
use verbs::{
    Buf, Context, Error, Gid, Result, SharedReceiveQueue, ah::AddressVector, mw::WindowType,
};

use crate::open;

fn host_with(fabric: &Fabric, limits: Limits) -> Host {
    let host = fabric.host("10.9.0.1".parse().unwrap());
    host.set_limits(limits);
    host
}

/// Makes objects until a call fails, twice: the second round finds the same number of free objects.
fn count<T>(mut make: impl FnMut() -> Result<T>) -> (usize, Error) {
    let mut round = || {
        let mut objects = Vec::new();
        loop {
            match make() {
                Ok(object) => objects.push(object),
                Err(error) => return (objects.len(), error),
            }
        }
    };
    let (first, _) = round();
    let (second, error) = round();
    assert_eq!(first, second, "not all was refunded");
    (first, error)
}

#[track_caller]
fn check<T>(make: impl FnMut() -> Result<T>, number: usize, (call, errno): (&str, i32)) {
    let (found, error) = count(make);
    assert_eq!((error.call(), error.raw_os_error()), (call, Some(errno)));
    assert_eq!(found, number);
}

/// No object is left, and no byte is locked.
#[track_caller]
fn assert_refunded(fabric: &Fabric) {
    let books = fabric.books();
    assert_eq!(books.len(), 0, "{books}");
    assert_eq!(books.locked_bytes(), 0);
}

#[test]
fn objects_of_a_device_end_at_their_limits() {
    let fabric = Fabric::new();
    let limits = Limits::new().queue_pairs(3).completion_queues(4);
    let limits = limits.memory_regions(5).protection_domains(6);
    let limits = limits.shared_receive_queues(7).address_handles(8);
    let ctx = open(&host_with(&fabric, limits.memory_windows(9)));
    let enomem = |call| (call, libc::ENOMEM);
    {
        check(|| ctx.alloc_pd(), 6, enomem("ibv_alloc_pd"));
        check(|| ctx.create_cq(8), 4, enomem("ibv_create_cq"));
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(8).unwrap());
        let qp = || pd.qp_builder::<verbs::Rc>(&cq, &cq).create();
        check(qp, 3, enomem("ibv_create_qp"));
        check(|| pd.alloc_buf(64), 5, enomem("ibv_reg_mr"));
        check(|| pd.alloc_mw(WindowType::Type2), 9, enomem("ibv_alloc_mw"));
        check(|| pd.create_srq::<Buf>(4, 1), 7, enomem("ibv_create_srq"));
        let peer = AddressVector::global(1, 0, Gid::from(IpAddr::from([10, 9, 0, 2])));
        check(|| pd.create_ah(&peer), 8, enomem("ibv_create_ah"));
    }
    assert_refunded(&fabric);
}

#[test]
fn attributes_of_a_device_report_the_limits() {
    let fabric = Fabric::new();
    let host = host_with(&fabric, Limits::new());
    let ctx = open(&host);
    let reported = |ctx: &Context| {
        let attr = ctx.query_device().unwrap();
        let of_memory = [attr.max_mr(), attr.max_mw(), attr.max_pd(), attr.max_ah()];
        ([attr.max_qp(), attr.max_cq(), attr.max_srq()], of_memory)
    };
    assert_eq!(reported(&ctx), ([1 << 20; 3], [1 << 20; 4]));
    let limits = Limits::new().queue_pairs(1).completion_queues(2);
    let limits = limits.shared_receive_queues(3).memory_regions(4);
    let limits = limits.memory_windows(5).protection_domains(6);
    host.set_limits(limits.address_handles(7));
    assert_eq!(reported(&ctx), ([1, 2, 3], [4, 5, 6, 7]));
}

#[test]
fn registered_memory_ends_at_the_limit_of_locked_pages() {
    let fabric = Fabric::new();
    let ctx = open(&host_with(&fabric, Limits::new().locked_memory(64 << 10)));
    let pd = ctx.alloc_pd().unwrap();
    let enomem = ("ibv_reg_mr", libc::ENOMEM);
    let page = || pd.register_buf(vec![0; 16 << 10]);
    let (number, _) = count(page);
    // Buffers that start within a page take one page more.
    assert!((3..=4).contains(&number), "{number}");
    check(|| pd.alloc_buf(0x1_0001), 0, enomem);
    drop(pd);
    assert_refunded(&fabric);
}

#[test]
fn registration_beyond_the_limit_fails_until_memory_is_released() {
    let fabric = Fabric::new();
    let host = host_with(&fabric, Limits::new());
    let pd = open(&host).alloc_pd().unwrap();
    host.set_limits(Limits::new().locked_memory(64 << 10).queue_pairs(16));
    let large = pd.alloc_buf(60 << 10).unwrap();
    let error = pd.alloc_buf(8 << 10).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
    drop(large);
    assert_eq!(fabric.books().locked_bytes(), 0);
}

#[test]
fn queues_lock_memory_by_their_capacities() {
    let fabric = Fabric::new();
    let ctx = open(&host_with(&fabric, Limits::new().locked_memory(40 << 10)));
    let locked = || fabric.books().locked_bytes();
    {
        let pd = ctx.alloc_pd().unwrap();
        let mut cq = ctx.create_cq(127).unwrap();
        assert_eq!(locked(), 128 * 64);
        cq.resize(255).unwrap();
        assert_eq!(locked(), 256 * 64);
        let srq: SharedReceiveQueue<Buf> = pd.create_srq(128, 1).unwrap();
        assert_eq!(locked(), (256 * 64) + 4096);
        let qp = pd.qp_builder::<verbs::Rc>(&cq, &cq);
        let qp = qp.max_send_wr(32).max_recv_wr(16).create().unwrap();
        assert_eq!(locked(), (256 * 64) + 3 * 4096);
        let shared = pd.qp_builder::<verbs::Rc>(&cq, &cq);
        let shared = shared.max_send_wr(32).srq(&srq);
        let shared = shared.create().unwrap();
        assert_eq!(locked(), (256 * 64) + 4 * 4096);
        let large = pd.qp_builder::<verbs::Rc>(&cq, &cq);
        let large = large.max_send_wr(16).max_inline_data(512);
        let error = large.create().unwrap_err();
        assert_eq!(error.call(), "ibv_create_qp");
        assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
        drop((shared, qp, srq));
        // Both sizes are locked while the queue is resized.
        let error = cq.resize(1023).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
        assert_eq!((locked(), cq.capacity()), (256 * 64, 255));
    }
    assert_refunded(&fabric);
}

#[test]
fn channels_and_contexts_end_at_the_limit_of_descriptors() {
    let fabric = Fabric::new();
    let host = host_with(&fabric, Limits::new().descriptors(4));
    let descriptors = || fabric.books().descriptors();
    {
        let ctx = open(&host);
        assert_eq!(descriptors(), 1);
        let emfile = |call| (call, libc::EMFILE);
        check(
            || ctx.create_comp_channel(),
            3,
            emfile("ibv_create_comp_channel"),
        );
        host.run(|| check(EventChannel::new, 3, emfile("rdma_create_event_channel")));
        host.run(|| {
            let devices = verbs::devices().unwrap();
            let device = devices.iter().next().unwrap();
            check(|| device.open(), 3, emfile("ibv_open_device"));
        });
        assert_eq!(descriptors(), 1);
    }
    assert_eq!(descriptors(), 0);
}

#[test]
fn limits_concern_one_host() {
    let fabric = Fabric::new();
    let host = host_with(&fabric, Limits::new().protection_domains(0));
    let other = fabric.host("10.9.0.2".parse().unwrap());
    let [refused, allowed] = [host, other].map(|host| open(&host).alloc_pd());
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    allowed.unwrap();
}
