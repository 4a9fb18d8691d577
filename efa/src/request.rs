//! RDMA with an address.

use verbs::{
    RemoteToken,
    ah::HasAddress,
    op::{DatagramWork, VendorDestination, VendorOperation, VendorRequest},
    qp::QpNum,
    work::{Scatter, SgeList},
};

use crate::Srd;

/// Maximum number of elements of RDMA: a descriptor of libefa has one (`EFA_IO_TX_DESC_NUM_RDMA_BUFS`).
const MAX_SGE: u32 = 1;

/// A queue pair, and its Q_Key.
#[derive(Clone, Copy, Debug)]
struct Peer {
    qp: QpNum,
    qkey: u32,
}

impl Peer {
    fn of<W: HasAddress>(self, work: &W) -> VendorDestination<'_> {
        VendorDestination::queue_pair(work.ah(), self.qp, self.qkey)
    }
}

/// `ibv_wr_rdma_write`, `ibv_wr_rdma_write_imm` with `ibv_wr_set_ud_addr`—Writes into the memory of a peer, where the device has
/// [writes](crate::DeviceCaps::RDMA_WRITE). A batch refuses work of several elements.
///
/// ```
/// # use verbs::ah::{AddressVector, Addressed};
/// # let (_fabric, ctx) = doctest::device();
/// # let (pd, cq) = (&ctx.alloc_pd()?, &ctx.create_cq(16)?);
/// # let region = pd.alloc_remote(64, verbs::RemoteAccess::WRITE)?;
/// # let ah = pd.create_ah(&AddressVector::global(1, 0, ctx.query_gid(1, 0)?.expect("a GID")))?;
/// use efa::{Srd, WriteTo};
/// use verbs::op::SendOps;
/// let builder = pd.qp_builder::<Srd>(cq, cq).send_ops(SendOps::RDMA_WRITE);
/// let mut qp = efa::bring_up(builder.create_for::<_, verbs::Buf>()?, 1, 7)?;
/// # let (peer, token) = (qp.qp_num(), region.token());
/// let work = Addressed::new(pd.register_buf(*b"hello")?, &ah);
/// let mut batch = qp.extended_batch()?;
/// batch.push_vendor(WriteTo::new(work, token, peer, 7))?;
/// batch.post()?;
/// # Ok::<(), verbs::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "post it"]
pub struct WriteTo<W> {
    work: W,
    remote: RemoteToken,
    peer: Peer,
    imm_data: Option<u32>,
}

impl<W: DatagramWork> WriteTo<W> {
    /// Writes the bytes of `work` to the start of `remote`, memory of the queue pair `peer`, whose Q_Key is `qkey`.
    pub fn new(work: W, remote: RemoteToken, peer: QpNum, qkey: u32) -> Self {
        Self {
            work,
            remote,
            peer: Peer { qp: peer, qkey },
            imm_data: None,
        }
    }

    /// Sends a number with the data, and completes one of the peer's receives after the data have been written.
    pub fn imm_data(mut self, imm_data: u32) -> Self {
        self.imm_data = Some(imm_data);
        self
    }
}

// SAFETY: the work owns the memory, which is only read, and its address handle (`DatagramWork`). Assumption: libefa executes RDMA
// with the address of `ibv_wr_set_ud_addr`.
unsafe impl<W: DatagramWork> VendorRequest for WriteTo<W> {
    type Transport = Srd;
    type Work = W;

    fn operation(&self) -> VendorOperation {
        match self.imm_data {
            None => VendorOperation::RdmaWrite(self.remote),
            Some(imm_data) => VendorOperation::RdmaWriteImm(self.remote, imm_data),
        }
    }

    fn destination(&self) -> VendorDestination<'_> {
        self.peer.of(&self.work)
    }

    fn gather(&self, list: &mut SgeList) {
        self.work.gather(list);
    }

    fn into_work(self) -> W {
        self.work
    }

    fn max_sge(&self) -> Option<u32> {
        Some(MAX_SGE)
    }
}

/// `ibv_wr_rdma_read` with `ibv_wr_set_ud_addr`—Reads from the memory of a peer, where the device has
/// [reads](crate::DeviceCaps::RDMA_READ). A batch refuses work of several elements.
#[derive(Clone, Debug)]
#[must_use = "post it"]
pub struct ReadFrom<W> {
    work: W,
    remote: RemoteToken,
    peer: Peer,
}

impl<W: Scatter + HasAddress> ReadFrom<W> {
    /// Reads the start of `remote`, memory of the queue pair `peer`, whose Q_Key is `qkey`, as many bytes as `work` has.
    pub fn new(work: W, remote: RemoteToken, peer: QpNum, qkey: u32) -> Self {
        let peer = Peer { qp: peer, qkey };
        Self { work, remote, peer }
    }
}

// SAFETY: the work owns the memory, which is the device's to write, and its address handle. Assumption: libefa executes RDMA with
// the address of `ibv_wr_set_ud_addr`.
unsafe impl<W: Scatter + HasAddress> VendorRequest for ReadFrom<W> {
    type Transport = Srd;
    type Work = W;

    fn operation(&self) -> VendorOperation {
        VendorOperation::RdmaRead(self.remote)
    }

    fn destination(&self) -> VendorDestination<'_> {
        self.peer.of(&self.work)
    }

    fn gather(&self, list: &mut SgeList) {
        self.work.gather(list);
    }

    fn into_work(self) -> W {
        self.work
    }

    fn max_sge(&self) -> Option<u32> {
        Some(MAX_SGE)
    }
}
