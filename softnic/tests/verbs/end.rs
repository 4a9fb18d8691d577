//! One end of a connection: a host's device, and a test's objects on the device.

use std::time::Duration;

use softnic::{Fabric, Host};
use verbs::{
    Buf, Completed, CompletionQueue, Context, Gid, Init, ProtectionDomain, QueuePair, RemoteAccess,
    Reset, Rtr, Rts, WcStatus,
    ah::AddressVector,
    cq::WcOpcode,
    qp::{AckTimeout, Attributes, Psn, RetryCount},
    work::Scatter,
};

/// Timeout of waiting tests.
pub(crate) const TEST_TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

/// A reliable connection, ready to send.
pub(crate) type Connection = QueuePair<verbs::Rc, Rts, Buf, Buf>;

/// A host's device, with a protection domain and a completion queue.
pub(crate) struct End {
    pub(crate) ctx: Context,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    pub(crate) gid: Gid,
}

/// A polled completion: whether of a receive, and the work.
pub(crate) struct Done {
    pub(crate) is_receive: bool,
    pub(crate) status: WcStatus,
    pub(crate) opcode: Option<WcOpcode>,
    pub(crate) len: usize,
    pub(crate) imm: Option<u32>,
    pub(crate) buf: Buf,
}

impl End {
    pub(crate) fn new(host: &Host) -> Self {
        let ctx = host.run(|| {
            let devices = verbs::devices().unwrap();
            devices.iter().next().unwrap().open().unwrap()
        });
        let pd = ctx.alloc_pd().unwrap();
        let cq = ctx.cq_builder(256).waitable().create().unwrap();
        let gid = ctx.query_gid(1, 0).unwrap().unwrap();
        Self { ctx, pd, cq, gid }
    }

    pub(crate) fn qp(&self) -> QueuePair<verbs::Rc, Reset, Buf, Buf> {
        let builder = self.pd.qp_builder::<verbs::Rc>(&self.cq, &self.cq);
        let builder = builder.max_send_wr(64).max_recv_wr(64).max_inline_data(64);
        builder.create().unwrap()
    }

    pub(crate) fn bring_up<RW: Scatter + 'static>(
        &self,
        qp: QueuePair<verbs::Rc, Reset, Buf, RW>,
        peer: (&Self, verbs::qp::QpNum),
    ) -> QueuePair<verbs::Rc, Rts, Buf, RW> {
        let all = RemoteAccess::WRITE | RemoteAccess::READ | RemoteAccess::ATOMIC;
        let all = all | RemoteAccess::FLUSH_GLOBAL | RemoteAccess::FLUSH_PERSISTENT;
        let address_vector = AddressVector::global(1, 0, peer.0.gid);
        let psn = Psn::from_low_bits(0xff_fff0);
        let init = Attributes::<verbs::Rc, Init>::new(1).access(all);
        let rtr =
            Attributes::<verbs::Rc, Rtr>::new(&address_vector, peer.1, psn).max_dest_rd_atomic(4);
        let rts = Attributes::<verbs::Rc, Rts>::new(psn)
            .timeout(AckTimeout::new(8).unwrap())
            .retry_count(RetryCount::new(7).unwrap())
            .max_rd_atomic(4);
        let qp = qp.to_init(&init).map_err(|refused| refused.error).unwrap();
        let qp = qp.to_rtr(&rtr).map_err(|refused| refused.error).unwrap();
        qp.to_rts(&rts).map_err(|refused| refused.error).unwrap()
    }

    /// A registered buffer with a copy of `bytes`.
    pub(crate) fn filled(&self, bytes: &[u8]) -> Buf {
        self.pd.register_buf(bytes).unwrap()
    }

    /// Polls completions without waiting.
    pub(crate) fn poll(&mut self, qp: &mut Connection) -> Vec<Done> {
        self.cq.poll().unwrap().map(|wc| done(qp, wc)).collect()
    }

    /// Waits for `count` completions.
    pub(crate) fn reap(&mut self, qp: &mut Connection, count: usize) -> Vec<Done> {
        let mut all = Vec::new();
        while all.len() < count {
            let completions = self.cq.wait(TEST_TIMEOUT).unwrap();
            assert!(completions.len() > 0, "{} of {count} came", all.len());
            all.extend(completions.map(|wc| done(qp, wc)));
        }
        all
    }
}

fn done(qp: &mut Connection, wc: verbs::WorkCompletion<'_>) -> Done {
    let (opcode, imm) = (wc.opcode(), wc.imm_data());
    let (is_receive, len, (status, buf)) = match qp.complete(wc).unwrap() {
        Completed::Send(done) => (false, done.byte_len(), done.into_parts()),
        Completed::Receive(done) => (true, done.byte_len(), done.into_parts()),
    };
    Done {
        is_receive,
        status,
        opcode,
        len,
        imm,
        buf,
    }
}

/// Two hosts of a fabric with a connection between them.
pub(crate) struct Connected {
    pub(crate) a: End,
    pub(crate) b: End,
    pub(crate) qp_a: Connection,
    pub(crate) qp_b: Connection,
    pub(crate) hosts: [Host; 2],
    /// The fabric. The last field, so dropped last.
    pub(crate) fabric: Fabric,
}

impl Connected {
    pub(crate) fn new(fabric: Fabric) -> Self {
        let hosts = ["10.9.0.1", "10.9.0.2"].map(|addr| fabric.host(addr.parse().unwrap()));
        let [a, b] = [End::new(&hosts[0]), End::new(&hosts[1])];
        let (qp_a, qp_b) = (a.qp(), b.qp());
        let (num_a, num_b) = (qp_a.qp_num(), qp_b.qp_num());
        let qp_a = a.bring_up(qp_a, (&b, num_b));
        let qp_b = b.bring_up(qp_b, (&a, num_a));
        Self {
            a,
            b,
            qp_a,
            qp_b,
            hosts,
            fabric,
        }
    }
}
