//! Objects shared by threads. Miri and `ThreadSanitizer` detect accesses without order.

use std::thread;

use softnic::Fabric;
use verbs::{Context, Init, qp::Attributes};

/// The device of a host.
fn device(fabric: &Fabric) -> Context {
    let host = fabric.host([10, 9, 0, 1].into());
    host.run(|| verbs::devices().unwrap().first().unwrap().open().unwrap())
}

/// Runs `act` on two threads at the same time.
fn on_two_threads(act: impl Fn() + Sync) {
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(&act);
        }
    });
}

#[test]
fn queue_pair_modified_and_queried_by_two_threads_has_no_race() {
    let fabric = Fabric::new();
    let ctx = device(&fabric);
    let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(64).unwrap());
    let qp = pd.qp_builder::<verbs::Rc>(&cq, &cq).create().unwrap();
    let qp = qp.to_init(&Attributes::<verbs::Rc, Init>::new(1)).unwrap();
    let handle = qp.handle();
    on_two_threads(|| {
        qp.query().unwrap();
        handle.to_error().unwrap();
        qp.query().unwrap();
        drop(format!("{qp:?}"));
    });
}

#[test]
fn shared_objects_used_by_two_threads_have_no_race() {
    let fabric = Fabric::new();
    let ctx = device(&fabric);
    let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(64).unwrap());
    let srq = pd.create_srq::<verbs::Buf>(4, 1).unwrap();
    on_two_threads(|| {
        cq.handle().kernel_handle();
        srq.arm_limit(1).unwrap();
        srq.query().unwrap();
        ctx.query_port(1).unwrap();
        let buf = pd.alloc_buf(8).unwrap();
        pd.qp_builder::<verbs::Rc>(&cq, &cq).create().unwrap();
        drop(format!("{ctx:?} {pd:?} {cq:?} {srq:?} {buf:?}"));
    });
}

/// `AddressSanitizer` detects a list with a freed device.
#[test]
fn device_list_during_the_drop_of_its_fabric_keeps_its_devices() {
    for _ in 0..200 {
        let fabric = Fabric::new();
        let host = fabric.host([10, 9, 0, 1].into());
        let name = |_| host.run(|| verbs::devices().unwrap().first().unwrap().name().to_owned());
        thread::scope(|scope| {
            let names = scope.spawn(|| (0..20).map(name).collect::<Vec<_>>());
            drop(fabric);
            assert_eq!(names.join().unwrap(), ["softnic0"; 20]);
        });
    }
}
