//! Two queue pairs of one process, connected to each other through the device.

use std::{
    io::{self, Write as _},
    thread,
    time::{Duration, Instant},
};

use ibverbs_sys as ffi;
use verbs::{
    CompletionQueue, Context, Device, Gid, Init, ProtectionDomain, QueuePair, RemoteAccess, Reset,
    Rtr, Rts,
    ah::AddressVector,
    qp::{Attributes, Psn, QpNum, QueuePairBuilder, RetryCount},
    scope::{Scope, ScopedBuf, ScopedSlice},
    work::{Gather, Scatter},
};

/// The device under test: that of the variable `RDMA_DEVICE`, else the first.
pub(crate) fn tested() -> Device {
    let name = std::env::var("RDMA_DEVICE").ok();
    let is_tested = |device: &Device| name.as_ref().is_none_or(|name| device.name() == *name);
    let device = verbs::devices().unwrap().into_iter().find(is_tested);
    device.expect("these tests need an RDMA device: run `cargo xtask test`")
}

/// The device under test, open.
pub(crate) fn open() -> Context {
    tested().open().unwrap()
}

/// Reports a test, or a part, that is left out, as the device lacks something.
pub(crate) fn leave_out(lacking: &str) {
    let thread = thread::current();
    let test = thread.name().unwrap_or_default();
    // Past the capture of a passing test's output.
    let line = format!("LEFT OUT: {test}: the device has no {lacking}\n");
    io::stderr().write_all(line.as_bytes()).unwrap();
}

/// Limit of the time until the processor reads the bytes of a peer.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether the device may deliver a write after its completion: only with rules of softnic's adversary.
fn is_late() -> bool {
    std::env::var_os("SOFTNIC_ADVERSARY").is_some()
}

/// Waits until the processor reads `expected` after a write of a peer, whose completion is that of the device only.
pub(crate) fn expect_bytes(read: impl Fn(&mut [u8]), expected: &[u8]) {
    let start = Instant::now();
    let mut bytes = vec![0; expected.len()];
    read(&mut bytes);
    while bytes != expected {
        assert!(is_late(), "{bytes:?}");
        assert!(start.elapsed() < ARRIVAL_TIMEOUT, "{bytes:?}");
        thread::yield_now();
        read(&mut bytes);
    }
}

/// A device with one protection domain.
pub(crate) struct Fixture {
    pub(crate) ctx: Context,
    pub(crate) pd: ProtectionDomain,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let ctx = open();
        let pd = ctx.alloc_pd().unwrap();
        Self { ctx, pd }
    }

    /// Whether the device is Soft-RoCE, by its vendor ID. The tests also run on softnic.
    pub(crate) fn is_soft_roce(&self) -> bool {
        self.ctx.query_device().unwrap().vendor_id() == 0xff_ffff
    }

    pub(crate) fn cq(&self, entries: u32) -> CompletionQueue {
        self.ctx.cq_builder(entries).waitable().create().unwrap()
    }

    /// A queue pair with room for `depth` requests on each queue.
    pub(crate) fn qp<SW: 'static, RW: 'static>(
        &self,
        cq: &CompletionQueue,
        depth: u32,
    ) -> QueuePair<verbs::Rc, Reset, SW, RW> {
        self.builder(cq, depth).create_for().unwrap()
    }

    pub(crate) fn builder<'a>(
        &'a self,
        cq: &'a CompletionQueue,
        depth: u32,
    ) -> QueuePairBuilder<'a, verbs::Rc> {
        self.pd
            .qp_builder(cq, cq)
            .max_send_wr(depth)
            .max_recv_wr(depth)
            .max_send_sge(4)
            .max_recv_sge(4)
            .max_inline_data(64)
    }

    /// Two connected queue pairs of a scope.
    #[expect(clippy::type_complexity, reason = "two of a kind")]
    pub(crate) fn scoped_pair<'s>(
        &self,
        scope: &'s Scope<'s, '_>,
        cq: &CompletionQueue,
        depth: u32,
    ) -> (
        QueuePair<verbs::Rc, Rts, ScopedSlice<'s>, ScopedBuf<'s>>,
        QueuePair<verbs::Rc, Rts, ScopedSlice<'s>, ScopedBuf<'s>>,
    ) {
        let [a, b] = [(); 2].map(|()| scope.create_qp(self.builder(cq, depth)).unwrap());
        let (a_num, b_num) = (a.qp_num(), b.qp_num());
        (self.bring_up(a, b_num), self.bring_up(b, a_num))
    }

    /// Two connected queue pairs.
    #[expect(clippy::type_complexity, reason = "two of a kind")]
    pub(crate) fn pair<SW: Gather + 'static, RW: Scatter + 'static>(
        &self,
        cq: &CompletionQueue,
        depth: u32,
    ) -> (
        QueuePair<verbs::Rc, Rts, SW, RW>,
        QueuePair<verbs::Rc, Rts, SW, RW>,
    ) {
        let (a, b) = (self.qp(cq, depth), self.qp(cq, depth));
        let (a_num, b_num) = (a.qp_num(), b.qp_num());
        (self.bring_up(a, b_num), self.bring_up(b, a_num))
    }

    pub(crate) fn init(&self) -> Attributes<verbs::Rc, Init> {
        let all = RemoteAccess::WRITE | RemoteAccess::READ | RemoteAccess::ATOMIC;
        Attributes::<verbs::Rc, Init>::new(1).access(all)
    }

    /// The way to this device itself.
    pub(crate) fn address_vector(&self) -> AddressVector {
        let (sgid_index, gid) = self.gid();
        AddressVector::global(1, sgid_index, gid)
    }

    pub(crate) fn bring_up<SW: Gather, RW: Scatter>(
        &self,
        qp: QueuePair<verbs::Rc, Reset, SW, RW>,
        peer: QpNum,
    ) -> QueuePair<verbs::Rc, Rts, SW, RW> {
        let psn = Psn::from_low_bits(0xff_fff0);
        let qp = qp
            .to_init(&self.init())
            .map_err(|refused| refused.error)
            .unwrap();
        let rtr = Attributes::<verbs::Rc, Rtr>::new(&self.address_vector(), peer, psn)
            .max_dest_rd_atomic(4);
        let qp = qp.to_rtr(&rtr).map_err(|refused| refused.error).unwrap();
        let retries = RetryCount::new(6).unwrap();
        let rts = Attributes::<verbs::Rc, Rts>::new(psn)
            .retry_count(retries)
            .max_rd_atomic(4);
        qp.to_rts(&rts).map_err(|refused| refused.error).unwrap()
    }

    /// The first IPv4 entry of the GID table.
    pub(crate) fn gid(&self) -> (u8, Gid) {
        (0..16)
            .find_map(|index| {
                let mut gid = ffi::ibv_gid::default();
                // SAFETY: the context is open, and `gid` is a valid place for the result.
                let ret = unsafe { ffi::ibv_query_gid(self.ctx.as_raw(), 1, index, &raw mut gid) };
                let raw = gid.to_raw();
                let mapped = raw[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
                (ret == 0 && mapped).then_some((u8::try_from(index).unwrap(), gid.into()))
            })
            .expect("the device has no IPv4 address")
    }
}
