//! A host's device, and the objects of the exchange on it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use verbs::{
    Buf, CompletionQueue, Context, Gid, Init, ProtectionDomain, QueuePair, RemoteAccess,
    RemoteRegion, RemoteToken, Rtr, Rts, Uc, WcStatus,
    ah::AddressVector,
    attr::Mtu,
    op::SendOps,
    qp::{Attributes, Psn, QpNum, Queued, RetryCount, RnrRetry, State},
};

use crate::control::Control;

/// Length of messages of three packets, and of messages of one, which need padding.
pub(crate) const LONG: usize = 600;
pub(crate) const SHORT: usize = 5;

/// Timeout of each step.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Path MTU. The shortest one makes the shortest messages of several packets.
const MTU: Mtu = Mtu::B256;

/// First packet sequence number of connections.
const FIRST_PSN: u32 = 0xff_fffe;

/// `IB_UVERBS_DEVICE_ATOMIC_WRITE`, set by Soft-RoCE since Linux 6.2.
const DEVICE_ATOMIC_WRITE: u64 = 1 << 40;

/// A reliable connection.
pub(crate) type Connection = QueuePair<verbs::Rc, Rts>;

/// The peer's end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) qp_num: QpNum,
    pub(crate) gid: Gid,
    /// The peer's memory.
    pub(crate) memory: RemoteToken,
}

/// Properties of a reliable connection for a refusal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Rights of the peer.
    pub(crate) access: RemoteAccess,
    /// Distance between the first packet's number and the one expected by the peer.
    pub(crate) gap: u32,
    /// Number of retries, of both kinds.
    pub(crate) retries: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            access: RemoteAccess::WRITE | RemoteAccess::READ | RemoteAccess::ATOMIC,
            gap: 0,
            retries: 6,
        }
    }
}

pub(crate) struct Side {
    ctx: Context,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    pub(crate) memory: RemoteRegion,
    gid: Gid,
    sgid_index: u8,
}

impl Side {
    /// Opens the first device, and chooses an address of the family.
    pub(crate) fn new(is_ipv4: bool) -> Result<Self> {
        let devices = verbs::devices()?;
        let ctx = devices.iter().next().context("no device")?.open()?;
        let table = ctx.query_gid_table()?;
        let entry = table
            .iter()
            .find(|entry| entry.gid.to_ip().is_ipv4() == is_ipv4)
            .context("no address of the family")?;
        let (gid, sgid_index) = (entry.gid, u8::try_from(entry.gid_index)?);
        let pd = ctx.alloc_pd()?;
        let cq = ctx.cq_builder(64).waitable().create()?;
        let access = RemoteAccess::WRITE | RemoteAccess::READ | RemoteAccess::ATOMIC;
        Ok(Self {
            memory: pd.alloc_remote(LONG, access)?,
            ctx,
            pd,
            cq,
            gid,
            sgid_index,
        })
    }

    pub(crate) fn has_atomic_write(&self) -> bool {
        let attr = self.ctx.query_device();
        attr.is_ok_and(|attr| attr.as_raw().device_cap_flags_ex & DEVICE_ATOMIC_WRITE != 0)
    }

    /// A buffer with bytes that count.
    pub(crate) fn buf(&self, len: usize) -> Result<Buf> {
        let bytes: Vec<u8> = (0..len).map(|at| at.to_le_bytes()[0]).collect();
        Ok(self.pd.register_buf(bytes)?)
    }

    /// Swaps the ends of a connection.
    pub(crate) fn swap(&self, control: &mut Control, qp_num: QpNum) -> Result<Peer> {
        let token = self.memory.token();
        let [qp_num, gid, addr, rkey] = control.swap([
            qp_num.get().into(),
            u128::from_be_bytes(self.gid.0),
            token.addr.into(),
            token.rkey.into(),
        ])?;
        Ok(Peer {
            qp_num: QpNum::new(u32::try_from(qp_num)?)?,
            gid: Gid(gid.to_be_bytes()),
            memory: RemoteToken {
                addr: u64::try_from(addr)?,
                len: token.len,
                rkey: u32::try_from(rkey)?,
            },
        })
    }

    pub(crate) fn vector(&self, peer: &Peer) -> AddressVector {
        AddressVector::global(1, self.sgid_index, peer.gid)
    }

    /// A reliable connection, with `receives` receives posted.
    pub(crate) fn reliable(
        &self,
        control: &mut Control,
        options: Options,
        receives: usize,
    ) -> Result<(Connection, Peer)> {
        let builder = self.pd.qp_builder::<verbs::Rc>(&self.cq, &self.cq);
        let builder = builder.max_send_wr(16).max_recv_wr(16);
        let ops = SendOps::all() - SendOps::TSO - SendOps::FLUSH;
        let qp = builder.send_ops(ops).create()?;
        let peer = self.swap(control, qp.qp_num())?;
        let init = Attributes::<verbs::Rc, Init>::new(1).access(options.access);
        let rtr = Attributes::<verbs::Rc, Rtr>::new(
            &self.vector(&peer),
            peer.qp_num,
            Psn::from_low_bits(FIRST_PSN),
        );
        let rtr = rtr.mtu(MTU).max_dest_rd_atomic(4);
        let first = Psn::from_low_bits(FIRST_PSN + options.gap);
        let rts = Attributes::<verbs::Rc, Rts>::new(first)
            .retry_count(RetryCount::new(options.retries)?)
            .rnr_retry(RnrRetry::new(options.retries)?)
            .max_rd_atomic(4);
        let mut qp = qp.to_init(&init)?;
        for _ in 0..receives {
            qp.post_recv(self.pd.alloc_buf(LONG)?)
                .map_err(|refused| refused.error)?;
        }
        let qp = qp.to_rtr(&rtr)?.to_rts(&rts)?;
        control.barrier()?;
        Ok((qp, peer))
    }

    /// An unreliable connection, with `receives` receives posted.
    pub(crate) fn unreliable(
        &self,
        control: &mut Control,
        receives: usize,
    ) -> Result<(QueuePair<Uc, Rts>, Peer)> {
        let builder = self.pd.qp_builder::<Uc>(&self.cq, &self.cq);
        let qp = builder.max_send_wr(16).max_recv_wr(16).create()?;
        let peer = self.swap(control, qp.qp_num())?;
        let psn = Psn::from_low_bits(FIRST_PSN);
        let init = Attributes::<Uc, Init>::new(1).access(RemoteAccess::WRITE);
        let rtr = Attributes::<Uc, Rtr>::new(&self.vector(&peer), peer.qp_num, psn).mtu(MTU);
        let mut qp = qp.to_init(&init)?;
        for _ in 0..receives {
            qp.post_recv(self.pd.alloc_buf(LONG)?)
                .map_err(|refused| refused.error)?;
        }
        let qp = qp.to_rtr(&rtr)?;
        let qp = qp.to_rts(&Attributes::<Uc, Rts>::new(psn))?;
        control.barrier()?;
        Ok((qp, peer))
    }

    /// Waits for completions of a queue pair, and returns their statuses.
    pub(crate) fn statuses<T: Queued, S: State, SW, RW>(
        &mut self,
        qp: &mut QueuePair<T, S, SW, RW>,
        count: usize,
    ) -> Result<Vec<WcStatus>> {
        let mut statuses = Vec::new();
        while statuses.len() < count {
            let completions = self.cq.wait(Some(TIMEOUT))?;
            ensure!(completions.len() > 0, "{} of {count}", statuses.len());
            for wc in completions {
                statuses.push(wc.status());
                ensure!(
                    qp.complete(wc).is_ok(),
                    "a completion of another queue pair"
                );
            }
        }
        Ok(statuses)
    }

    /// Waits for successful completions of a queue pair.
    pub(crate) fn complete<T: Queued, S: State, SW, RW>(
        &mut self,
        qp: &mut QueuePair<T, S, SW, RW>,
        count: usize,
    ) -> Result<()> {
        let statuses = self.statuses(qp, count)?;
        let all_succeed = statuses.iter().all(|status| *status == WcStatus::SUCCESS);
        ensure!(all_succeed, "{statuses:?}");
        Ok(())
    }
}
