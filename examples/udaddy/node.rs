//! One queue pair, and the datagrams that go out of it and come in.

use anyhow::Context as _;
use cm::{CmId, Destination, phases::HasDevice};
use verbs::{
    Addressed, Buf, Completed, CompletionQueue, GRH_LEN, ProtectionDomain, QueuePair, Rts,
    SharedBuf, Ud,
};

use super::options::Options;
use crate::cm_tool::datagrams::prepare;

/// The key of the port spaces' datagrams (`RDMA_UDP_QKEY`).
const QKEY: u32 = 0x0123_4567;

/// A queue pair for one peer.
#[derive(Debug)]
pub struct Node {
    pub(super) qp: QueuePair<Ud, Rts, Addressed<SharedBuf>, Buf>,
    cq: CompletionQueue,
    pub(super) pd: ProtectionDomain,
    message: SharedBuf,
    port_num: u8,
    /// Where the peer takes datagrams. A server learns it from the first one.
    pub(super) peer: Option<Destination>,
    received: u32,
}

impl Node {
    /// With all receives posted.
    ///
    /// # Errors
    /// The device cannot do that, or not take messages of that size.
    pub fn new<P: HasDevice>(id: &CmId<P>, options: &Options) -> anyhow::Result<Self> {
        let (count, size) = (options.message_count, options.message_size);
        let ctx = id.context()?;
        let port_num = id.port_num();
        let (pd, cq) = prepare("udaddy", (&ctx, port_num), count, size)?;
        let qp = pd.qp_builder::<Ud>(&cq, &cq).max_send_wr(count.max(1));
        let qp = qp.max_recv_wr(count.max(1)).create_for()?;
        let mut qp = id.ready_datagram_qp(qp)?;
        for _ in 0..count {
            qp.post_recv(pd.alloc_buf(GRH_LEN + size as usize)?)?;
        }
        Ok(Self {
            message: pd.alloc_buf(size.max(1) as usize)?.freeze(),
            qp,
            cq,
            pd,
            port_num,
            peer: None,
            received: 0,
        })
    }

    /// Sends all messages, each with the number of this queue pair.
    ///
    /// # Errors
    /// The device has failed.
    pub fn send_all(&mut self, options: &Options) -> anyhow::Result<()> {
        let peer = self.peer.as_ref().context("the peer is not known")?;
        for _ in 0..options.message_count {
            let datagram = peer.send(self.message.clone());
            self.qp.post(datagram.imm_data(self.qp.qp_num().get()))?;
        }
        Ok(())
    }

    /// Waits until all messages of the peer have arrived.
    ///
    /// # Errors
    /// The device has failed, or the peer does not say where it is.
    pub fn receive_all(&mut self, options: &Options) -> anyhow::Result<()> {
        while self.received < options.message_count {
            self.take()?;
        }
        Ok(())
    }

    /// Waits until all messages are on their way.
    ///
    /// # Errors
    /// The device has failed.
    pub fn sent_all(&mut self) -> anyhow::Result<()> {
        while self.qp.send_queue().in_flight() > 0 {
            self.take()?;
        }
        Ok(())
    }

    /// Waits for completions, and takes them.
    fn take(&mut self) -> anyhow::Result<()> {
        for wc in self.cq.wait(None)? {
            wc.ok()?;
            let done = self
                .qp
                .complete(wc)
                .ok()
                .context("a completion of nothing")?;
            let Completed::Receive(done) = done else {
                continue;
            };
            self.received += 1;
            if self.peer.is_none() {
                let qp_num = done
                    .imm_data()
                    .context("the peer does not say where it is")?;
                let received = done.received()?;
                self.peer = Some(Destination {
                    ah: self.pd.create_ah_from_wc(&done, received, self.port_num)?,
                    qp_num: verbs::QpNum::new(qp_num)?,
                    qkey: QKEY,
                });
            }
        }
        Ok(())
    }
}
