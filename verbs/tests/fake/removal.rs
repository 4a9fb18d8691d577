//! Removal of open devices: the kernel answers with `EIO`, and has destroyed everything once the
//! device's directory in sysfs is gone.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use softnic::Call;
use verbs::{
    Buf, QueuePair, Rts, SharedReceiveQueue,
    mr::Memory,
    op,
    rss::WorkQueue,
    scope::{ScopedBuf, ScopedSlice},
    work::With,
};

use crate::{fixture::Fixture, provider::Fake};

/// A device with a directory in place of sysfs.
struct Removable {
    fixture: Fixture,
    directory: PathBuf,
}

impl Removable {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("verbs-removal-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name).join("fake0");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("node_guid"), "0").unwrap();
        let fake = Fake::new();
        let path = directory.to_str().unwrap();
        // SAFETY: the tests complete nothing after a removal.
        fake.describe(|device| unsafe { device.set_directory(path) });
        let fixture = Fixture::on(fake);
        Self { fixture, directory }
    }

    /// Removes the device: every call fails from then on.
    fn remove(&self, calls: &[Call]) {
        fs::remove_dir_all(&self.directory).unwrap();
        for &call in calls {
            self.fixture.fake.fail(call, libc::EIO);
        }
    }
}

impl Drop for Removable {
    fn drop(&mut self) {
        // Whether or not the device was removed.
        fs::remove_dir_all(self.directory.parent().unwrap()).unwrap();
    }
}

/// Counts how often memory is freed.
#[derive(Debug)]
struct Counted(Vec<u8>, Arc<AtomicU32>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: the vector's range.
unsafe impl Memory for Counted {
    fn range(&mut self) -> std::ptr::NonNull<[u8]> {
        self.0.range()
    }
}

// SAFETY: the vector's range.
unsafe impl verbs::mr::OwnedMemory for Counted {}

#[test]
fn memory_of_a_removed_device_is_freed() {
    let device = Removable::new();
    let freed = Arc::new(AtomicU32::new(0));
    let memory = Counted(vec![0; 8], Arc::clone(&freed));
    let buf = device.fixture.pd.register(memory).create_buf().unwrap();
    device.remove(&[Call::DeregMr]);
    drop(buf);
    assert_eq!(freed.load(Ordering::Relaxed), 1);
}

#[test]
fn work_of_a_removed_device_is_dropped_with_its_queue_pair() {
    let device = Removable::new();
    let fixture = &device.fixture;
    let cq = fixture.cq(16);
    let mut qp: QueuePair<verbs::Rc, Rts, Buf, With<Buf, Arc<()>>> = fixture.rc(&cq, 4);
    let token = Arc::new(());
    qp.post(op::Send::new(fixture.pd.alloc_buf(8).unwrap()))
        .unwrap();
    for _ in 0..2 {
        let work = With::new(fixture.pd.alloc_buf(8).unwrap(), Arc::clone(&token));
        qp.post_recv(work).unwrap();
    }
    // A message has arrived, and is not polled: its provider may copy the message when polled.
    fixture.fake.complete_receive(qp.qp_num(), b"message");
    device.remove(&[Call::DestroyQp]);
    drop(qp);
    assert_eq!(Arc::strong_count(&token), 1);
    let mut cq = cq;
    assert_eq!(
        cq.poll().unwrap().count(),
        0,
        "no message is copied any more"
    );
}

/// qedr polls without a lock, so another thread may be polling the queue.
#[test]
fn queue_polled_without_a_lock_is_not_emptied_after_a_removal() {
    const QEDR: u32 = 0x1077;
    let device = Removable::new();
    let fake = &device.fixture.fake;
    fake.describe(|device| device.attr.orig_attr.vendor_id = QEDR);
    let fixture = &device.fixture;
    let mut cq = fixture.cq(16);
    let token = Arc::new(());
    let mut qp: QueuePair<verbs::Rc, Rts, (), Watched> = fixture.rc(&cq, 4);
    for _ in 0..2 {
        qp.post_recv(watched(fixture, &token)).unwrap();
    }
    fixture.fake.complete_receive(qp.qp_num(), b"message");
    device.remove(&[Call::DestroyQp]);
    drop(qp);
    assert_eq!(Arc::strong_count(&token), 3, "the work is leaked");
    assert_eq!(cq.poll().unwrap().count(), 1);
}

/// Work whose drop is counted.
type Watched = With<Buf, Arc<()>>;

fn watched(fixture: &Fixture, token: &Arc<()>) -> Watched {
    With::new(fixture.pd.alloc_buf(8).unwrap(), Arc::clone(token))
}

#[test]
fn work_on_an_extended_queue_of_a_removed_device_is_dropped_with_its_queue_pair() {
    let device = Removable::new();
    let fixture = &device.fixture;
    let mut cq = fixture.ctx.cq_ex_builder(16).create().unwrap();
    let builder = fixture.pd.qp_builder(&cq, &cq).max_recv_wr(4);
    let mut qp: QueuePair<verbs::Rc, Rts, (), Watched> =
        fixture.connect(builder.create_for().unwrap());
    let token = Arc::new(());
    for _ in 0..3 {
        qp.post_recv(watched(fixture, &token)).unwrap();
    }
    for _ in 0..2 {
        fixture.fake.complete_receive(qp.qp_num(), b"message");
    }
    device.remove(&[Call::DestroyQp]);
    drop(qp);
    assert_eq!(Arc::strong_count(&token), 1);
    assert!(cq.poll().unwrap().is_none());
}

#[test]
fn work_of_a_removed_shared_receive_queue_is_dropped_with_it() {
    let device = Removable::new();
    let fixture = &device.fixture;
    let cq = fixture.cq(16);
    let token = Arc::new(());
    let mut srq: SharedReceiveQueue<Watched> = fixture.pd.create_srq(4, 1).unwrap();
    let builder = fixture.pd.qp_builder(&cq, &cq).srq(&srq);
    let qp: QueuePair<verbs::Rc, Rts, ()> = fixture.connect(builder.create_for().unwrap());
    for _ in 0..3 {
        srq.post(watched(fixture, &token)).unwrap();
    }
    fixture.fake.complete_receive(qp.qp_num(), b"message");
    device.remove(&[Call::DestroyQp, Call::DestroySrq]);
    drop(qp);
    drop(srq);
    assert_eq!(Arc::strong_count(&token), 1);
    let mut cq = cq;
    assert_eq!(cq.poll().unwrap().count(), 0);
}

#[test]
fn work_of_a_removed_xrc_queue_is_dropped_with_it() {
    let device = Removable::new();
    let fixture = &device.fixture;
    let mut cq = fixture.cq(16);
    let token = Arc::new(());
    let xrcd = fixture.ctx.open_xrcd().unwrap();
    let mut srq: SharedReceiveQueue<Watched> = fixture.pd.create_xrc_srq(&xrcd, &cq, 4, 1).unwrap();
    let receiver = xrcd.create_qp().unwrap();
    for _ in 0..3 {
        srq.post(watched(fixture, &token)).unwrap();
    }
    fixture
        .fake
        .complete_xrc(receiver.qp_num(), srq.as_raw(), b"message", None);
    device.remove(&[Call::DestroySrq]);
    drop(srq);
    assert_eq!(Arc::strong_count(&token), 1);
    assert_eq!(cq.poll().unwrap().count(), 0);
}

#[test]
fn work_of_a_removed_work_queue_is_dropped_with_it() {
    let device = Removable::new();
    let fixture = &device.fixture;
    let mut cq = fixture.cq(16);
    let token = Arc::new(());
    let builder = fixture.pd.wq_builder(&cq).max_wr(4);
    let mut wq: WorkQueue<Watched> = builder.create_for().unwrap();
    wq.to_ready().unwrap();
    for _ in 0..3 {
        wq.post(watched(fixture, &token)).unwrap();
    }
    fixture.fake.complete_wq(wq.as_raw(), b"packet");
    device.remove(&[Call::DestroyWq]);
    drop(wq);
    assert_eq!(Arc::strong_count(&token), 1);
    assert_eq!(cq.poll().unwrap().count(), 0);
}

/// The device refuses the destruction at the drop of the last handle, and then is removed.
#[test]
fn scope_with_failed_destroy_ends_after_removal() {
    let device = Removable::new();
    let fixture = &device.fixture;
    let mut cq = fixture.cq(16);
    let mut memory = [0; 16];
    verbs::scope(&fixture.pd, |scope| {
        let builder = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq).max_recv_wr(2);
        let mut qp: QueuePair<verbs::Rc, Rts, ScopedSlice<'_>, ScopedBuf<'_>> =
            fixture.connect(scope.create_qp(builder).unwrap());
        qp.post_recv(scope.register(&mut memory).unwrap()).unwrap();
        fixture.fake.complete_receive(qp.qp_num(), b"message");
        fixture.fake.fail(Call::DestroyQp, libc::EBUSY);
        drop(qp);
        device.remove(&[Call::DestroyQp, Call::DeregMr]);
    });
    memory.fill(1);
    assert_eq!(cq.poll().unwrap().count(), 0);
}

#[test]
fn scope_on_a_removed_device_ends() {
    let device = Removable::new();
    let fixture = &device.fixture;
    let cq = fixture.cq(16);
    let mut memory = [0; 16];
    verbs::scope(&fixture.pd, |scope| {
        let builder = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq).max_recv_wr(2);
        let mut qp: QueuePair<verbs::Rc, Rts, ScopedSlice<'_>, ScopedBuf<'_>> =
            fixture.connect(scope.create_qp(builder).unwrap());
        qp.post_recv(scope.register(&mut memory).unwrap()).unwrap();
        device.remove(&[Call::DestroyQp, Call::DeregMr]);
        #[expect(clippy::mem_forget, reason = "the point of the test")]
        std::mem::forget(qp);
    });
    memory.fill(1);
}

/// `EIO` comes before the kernel has destroyed the objects.
#[test]
fn memory_is_kept_until_the_removal_has_ended() {
    let device = Removable::new();
    let freed = Arc::new(AtomicU32::new(0));
    let memory = Counted(vec![0; 8], Arc::clone(&freed));
    let buf = device.fixture.pd.register(memory).create_buf().unwrap();
    device.fixture.fake.fail(Call::DeregMr, libc::EIO);
    thread::scope(|scope| {
        scope.spawn(|| drop(buf));
        while !device.fixture.fake.calls().contains(&Call::DeregMr) {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(freed.load(Ordering::Relaxed), 0);
        fs::remove_dir_all(&device.directory).unwrap();
    });
    assert_eq!(freed.load(Ordering::Relaxed), 1);
}

#[test]
fn eio_without_removal_keeps_memory() {
    let device = Removable::new();
    let freed = Arc::new(AtomicU32::new(0));
    // Another error, and `EIO` of a device without a directory.
    let memory = Counted(vec![0; 8], Arc::clone(&freed));
    let buf = device.fixture.pd.register(memory).create_buf().unwrap();
    device.fixture.fake.fail(Call::DeregMr, libc::EBUSY);
    drop(buf);
    let fixture = Fixture::second_device();
    let memory = Counted(vec![0; 8], Arc::clone(&freed));
    let buf = fixture.pd.register(memory).create_buf().unwrap();
    fixture.fake.fail(Call::DeregMr, libc::EIO);
    drop(buf);
    assert_eq!(freed.load(Ordering::Relaxed), 0);
}
