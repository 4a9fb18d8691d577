//! Objects shared by threads. Miri and `ThreadSanitizer` detect accesses without order.

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use softnic::Fabric;
use verbs::{
    Buf, Context, Init, QueuePair, RemoteAccess, RemoteRegion, Reset, WcStatus, op, qp::Attributes,
};

use crate::end::{Connected, TEST_TIMEOUT};

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
    let srq = pd.create_srq::<Buf>(4, 1).unwrap();
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

/// Bytes of a region that peers access: seven words, and five bytes behind them.
const SHARED_LEN: usize = 61;

/// The program accesses shared memory by words and by bytes, while peers write, read and change parts of the same words.
#[test]
fn remote_memory_accessed_by_program_and_peer_has_no_race() {
    const ROUNDS: u8 = if cfg!(miri) { 2 } else { 200 };
    let mut this = Connected::new(Fabric::new());
    let all = RemoteAccess::WRITE | RemoteAccess::READ | RemoteAccess::ATOMIC;
    let region = this.b.pd.alloc_remote(SHARED_LEN, all).unwrap();
    let program = region.clone();
    let running = AtomicBool::new(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut contents = [0; SHARED_LEN];
            // At least once, also if this thread starts late.
            loop {
                // Half of a word, whose other half is the peer's; a whole word; and the last byte.
                program.write(8, &[1; 4]);
                program.store(16, program.load(0));
                program.write(SHARED_LEN - 1, &[2]);
                program.read(0, &mut contents);
                if !running.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        for round in 1..=ROUNDS {
            access_as_peer(&mut this, &region, round);
        }
        running.store(false, Ordering::Relaxed);
    });
    let mut contents = [0; SHARED_LEN];
    region.read(0, &mut contents);
    assert_eq!(contents[8..12], [1; 4], "the program's half of a word");
    assert_eq!(contents[12..16], [ROUNDS; 4], "the peer's half of a word");
    assert_eq!(contents[56..61], [ROUNDS, ROUNDS, ROUNDS, ROUNDS, 2]);
    assert_eq!(program.load(24), ROUNDS.into(), "the peer's additions");
}

/// The program reads a region without rights of peers, while receives write to the region.
#[test]
fn region_without_rights_read_during_its_receives_has_no_race() {
    const ROUNDS: u8 = if cfg!(miri) { 2 } else { 200 };
    let mut this = Connected::new(Fabric::new());
    let (a, b) = (&mut this.a, &mut this.b);
    let region = b.pd.alloc_remote(SHARED_LEN, RemoteAccess::empty());
    let region = region.unwrap();
    let builder = b.pd.qp_builder::<verbs::Rc>(&b.cq, &b.cq).max_recv_wr(1);
    let receiver: QueuePair<verbs::Rc, Reset, Buf, RemoteRegion> = builder.create_for().unwrap();
    let sender = a.qp();
    let (from, to) = (sender.qp_num(), receiver.qp_num());
    let mut receiver = b.bring_up(receiver, (a, from));
    let mut sender = a.bring_up(sender, (b, to));
    let running = AtomicBool::new(true);
    let mut contents = [0; SHARED_LEN];
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut contents = [0; SHARED_LEN];
            while running.load(Ordering::Relaxed) {
                region.read(0, &mut contents);
            }
        });
        for round in 1..=ROUNDS {
            receiver.post_recv(region.clone()).unwrap();
            let message = a.filled(&[round; SHARED_LEN]);
            sender.post(op::Send::new(message)).unwrap();
            for done in a.reap(&mut sender, 1) {
                assert_eq!(done.status, WcStatus::SUCCESS);
            }
            for wc in b.cq.wait(TEST_TIMEOUT).unwrap() {
                assert_eq!(wc.status(), WcStatus::SUCCESS);
                drop(receiver.complete(wc).unwrap());
            }
        }
        running.store(false, Ordering::Relaxed);
    });
    region.read(0, &mut contents);
    assert_eq!(contents, [ROUNDS; SHARED_LEN]);
}

/// One request of each kind from `a`, for memory of `b`. Each write fills its bytes with `round`.
fn access_as_peer(this: &mut Connected, region: &RemoteRegion, round: u8) {
    let token = |range: Range<u64>| region.token().slice(range).unwrap();
    for range in [0..3, 12..16, 41..60, 56..60] {
        let len = usize::try_from(range.end - range.start).unwrap();
        let bytes = this.a.filled(&vec![round; len]);
        let write = op::Write::new(bytes, token(range));
        this.qp_a.post(write).unwrap();
    }
    let into = this.a.filled(&[0; SHARED_LEN]);
    let all = token(0..SHARED_LEN as u64);
    this.qp_a.post(op::Read::new(into, all)).unwrap();
    let old = this.a.pd.alloc_buf(8).unwrap();
    let add = op::FetchAdd::new(old, token(24..32), 1);
    this.qp_a.post(add).unwrap();
    for done in this.a.reap(&mut this.qp_a, 6) {
        assert_eq!(done.status, WcStatus::SUCCESS);
    }
}
