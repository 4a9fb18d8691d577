//! One host's device, with a completion queue.

use softnic::Host;
use verbs::{
    Buf, CompletionQueue, Context, Gid, Init, ProtectionDomain, QueuePair, RemoteAccess, Reset,
    Rtr, Rts, WorkCompletion,
    ah::AddressVector,
    attr::Mtu,
    qp::{AckTimeout, Attributes, Psn, QpNum, RetryCount},
};

use crate::Result;

pub(crate) type Connection = QueuePair<verbs::Rc, Rts, Buf, Buf>;

/// Buffers of completed requests.
#[derive(Default)]
pub(crate) struct Returned {
    pub(crate) sends: Vec<Buf>,
    pub(crate) receives: Vec<Buf>,
}

pub(crate) struct End {
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    gid: Gid,
    _ctx: Context,
}

impl End {
    pub(crate) fn new(host: &Host, entries: u32) -> Result<Self> {
        let ctx = host.run(|| -> Result<Context> {
            let devices = verbs::devices()?;
            let device = devices.iter().next().ok_or("the host has no device")?;
            Ok(device.open()?)
        })?;
        Ok(Self {
            pd: ctx.alloc_pd()?,
            cq: ctx.create_cq(entries)?,
            gid: ctx.query_gid(1, 0)?.ok_or("the port has no GID")?,
            _ctx: ctx,
        })
    }

    /// A queue pair with room for `depth` requests in each direction.
    pub(crate) fn create_qp(&self, depth: u32) -> Result<QueuePair<verbs::Rc, Reset, Buf, Buf>> {
        let builder = self.pd.qp_builder::<verbs::Rc>(&self.cq, &self.cq);
        Ok(builder.max_send_wr(depth).max_recv_wr(depth).create()?)
    }

    /// Connects a queue pair with a queue pair of `peer`.
    pub(crate) fn connect(
        qp: QueuePair<verbs::Rc, Reset, Buf, Buf>,
        (peer, peer_num): (&Self, QpNum),
        mtu: Mtu,
    ) -> Result<Connection> {
        let psn = Psn::from_low_bits(0);
        let path = AddressVector::global(1, 0, peer.gid);
        let init = Attributes::<verbs::Rc, Init>::new(1).access(RemoteAccess::WRITE);
        let rtr = Attributes::<verbs::Rc, Rtr>::new(&path, peer_num, psn).mtu(mtu);
        let timeout = AckTimeout::new(10)?;
        let retries = RetryCount::new(7)?;
        let rts = Attributes::<verbs::Rc, Rts>::new(psn)
            .timeout(timeout)
            .retry_count(retries);
        let qp = qp.to_init(&init).map_err(|refused| refused.error)?;
        let qp = qp.to_rtr(&rtr).map_err(|refused| refused.error)?;
        Ok(qp.to_rts(&rts).map_err(|refused| refused.error)?)
    }
}

impl Returned {
    /// Takes the buffer of a request of `qp`.
    pub(crate) fn take(&mut self, qp: &mut Connection, wc: WorkCompletion<'_>) -> Result<()> {
        let done = qp.complete(wc);
        match done.map_err(|_| "a completion of another queue pair")? {
            verbs::Completed::Send(done) => {
                self.sends
                    .push(done.into_work().map_err(|failed| failed.error)?);
            }
            verbs::Completed::Receive(done) => {
                self.receives
                    .push(done.into_work().map_err(|failed| failed.error)?);
            }
        }
        Ok(())
    }
}
