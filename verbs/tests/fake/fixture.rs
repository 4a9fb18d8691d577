//! A fake device with the objects needed by most tests.

use ibverbs_sys as ffi;
use verbs::{
    Buf, CompletionQueue, Context, Gid, Init, ProtectionDomain, QueuePair, RemoteToken, Reset, Rtr,
    Rts, Ud, WcStatus,
    ah::{AddressVector, Addressed},
    qp::{Attributes, Psn, QpNum},
    work::{Gather, Scatter},
};

use crate::provider::{Fake, PostedSend};

/// A fake device, open, with a protection domain. The fake is dropped last, and checks the books.
pub(crate) struct Fixture {
    pub(crate) pd: ProtectionDomain,
    pub(crate) ctx: Context,
    pub(crate) fake: Fake,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::on(Fake::new())
    }

    /// On a second device, beside that of another fixture.
    pub(crate) fn second_device() -> Self {
        Self::on(Fake::named("fake1"))
    }

    /// On an iWARP device.
    pub(crate) fn iwarp() -> Self {
        let fake = Fake::new();
        fake.describe(|device| {
            device.node_type = ffi::ibv_node_type::IBV_NODE_RNIC;
            device.transport_type = ffi::ibv_transport_type::IBV_TRANSPORT_IWARP;
        });
        Self::on(fake)
    }

    /// On a device whose provider returns the requests of every failed post, as proven by its source,
    /// unless the test has described the device as another vendor's.
    pub(crate) fn on(fake: Fake) -> Self {
        const IONIC: u32 = 0x1dd8;
        fake.describe(|device| {
            let vendor = &mut device.attr.orig_attr.vendor_id;
            *vendor = if *vendor == 0 { IONIC } else { *vendor };
        });
        let ctx = fake.open();
        let pd = ctx.alloc_pd().unwrap();
        Self { pd, ctx, fake }
    }

    pub(crate) fn cq(&self, entries: u32) -> CompletionQueue {
        let builder = self.ctx.cq_builder(entries).waitable();
        builder.create().unwrap()
    }

    /// A reliable connection with room for `depth` requests on each queue, ready to send.
    pub(crate) fn rc<SW: Gather + 'static, RW: Scatter + 'static>(
        &self,
        cq: &CompletionQueue,
        depth: u32,
    ) -> QueuePair<verbs::Rc, Rts, SW, RW> {
        let builder = self.pd.qp_builder(cq, cq);
        let builder = builder.max_send_wr(depth).max_recv_wr(depth);
        let builder = builder.max_send_sge(4).max_recv_sge(4);
        // SAFETY: the fake copies nothing; only tests do, to where the elements are.
        let builder = unsafe { builder.receives_elsewhere() };
        self.connect(builder.create_for().unwrap())
    }

    /// A queue pair for datagrams, ready to send.
    pub(crate) fn ud(&self, cq: &CompletionQueue) -> QueuePair<Ud, Rts, Addressed<Buf>, Buf> {
        let builder = self.pd.qp_builder::<Ud>(cq, cq).max_recv_wr(1);
        let qp = builder.create_for().unwrap();
        let qp = qp.to_init(&Attributes::<Ud, Init>::new(1, 7));
        let qp = qp.map_err(|refused| refused.error).unwrap();
        let qp = qp.to_rtr(&Attributes::<Ud, Rtr>::new());
        let qp = qp.map_err(|refused| refused.error).unwrap();
        let qp = qp.to_rts(&Attributes::<Ud, Rts>::new(Psn::default()));
        qp.map_err(|refused| refused.error).unwrap()
    }

    /// Posts one request to `remote`, and lets the request complete. Returns the request.
    pub(crate) fn perform<W: Gather + 'static>(
        &self,
        remote: RemoteToken,
        post: impl FnOnce(&mut QueuePair<verbs::Rc, Rts, W>),
    ) -> PostedSend {
        let mut cq = self.cq(8);
        let mut qp: QueuePair<verbs::Rc, Rts, W> = self.rc(&cq, 2);
        post(&mut qp);
        let posted = self.fake.sends(qp.qp_num())[0].clone();
        assert_eq!(posted.remote, Some((remote.addr, remote.rkey)));
        self.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
        let wc = cq.poll().unwrap().next().unwrap();
        wc.ok().unwrap();
        assert!(qp.complete(wc).is_ok());
        posted
    }

    /// Brings a queue pair up, with a nonexistent peer.
    pub(crate) fn connect<SW: Gather, RW: Scatter>(
        &self,
        qp: QueuePair<verbs::Rc, Reset, SW, RW>,
    ) -> QueuePair<verbs::Rc, Rts, SW, RW> {
        let psn = Psn::from_low_bits(1);
        let address_vector = AddressVector::global(1, 1, Gid([0xfe; 16]));
        let qp = qp.to_init(&Attributes::<verbs::Rc, Init>::new(1));
        let qp = qp.map_err(|refused| refused.error).unwrap();
        let qp = qp.to_rtr(&Attributes::<verbs::Rc, Rtr>::new(
            &address_vector,
            QpNum::from_low_bits(9),
            psn,
        ));
        let qp = qp.map_err(|refused| refused.error).unwrap();
        let qp = qp.to_rts(&Attributes::<verbs::Rc, Rts>::new(psn));
        qp.map_err(|refused| refused.error).unwrap()
    }
}

/// The text of an error. Miri's text of an error number ends with the number, which the standard library appends again.
pub(crate) fn error_text(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    match text.rsplit_once(" (os error ") {
        Some((once, _)) if cfg!(miri) && once.contains(" (os error ") => once.to_owned(),
        _ => text,
    }
}
