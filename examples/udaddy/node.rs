//! One queue pair and the datagrams on it.

use anyhow::Context as _;
use cm::{CmId, Destination, phases::HasDevice};
use verbs::{
    Buf, Completed, CompletionQueue, ProtectionDomain, QueuePair, Rts, SharedBuf, Ud,
    ah::{Addressed, GRH_LEN},
};

use super::options::Options;
use crate::cm_tool::datagrams::prepare;

/// Q_Key of datagram port spaces (`RDMA_UDP_QKEY`).
const QKEY: u32 = 0x0123_4567;

/// A queue pair for one peer.
#[derive(Debug)]
pub struct Node {
    pub(super) qp: QueuePair<Ud, Rts, Addressed<SharedBuf>, Buf>,
    cq: CompletionQueue,
    pub(super) pd: ProtectionDomain,
    message: SharedBuf,
    port_num: u8,
    /// Destination of the peer. A server takes the destination from the first datagram.
    pub(super) peer: Option<Destination>,
    received: u32,
}

impl Node {
    /// Creates the queue pair, with all receives posted.
    ///
    /// # Errors
    /// The device is at a limit, or the message size is above the MTU.
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

    /// Posts all sends, each with this queue pair's number as immediate data.
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

    /// Blocks until all messages of the peer have been received.
    ///
    /// # Errors
    /// The device has failed, or a message has no source address.
    pub fn receive_all(&mut self, options: &Options) -> anyhow::Result<()> {
        while self.received < options.message_count {
            self.take()?;
        }
        Ok(())
    }

    /// Blocks until all sends have completed.
    ///
    /// # Errors
    /// The device has failed.
    pub fn sent_all(&mut self) -> anyhow::Result<()> {
        while self.qp.send_queue().in_flight() > 0 {
            self.take()?;
        }
        Ok(())
    }

    /// Waits for completions, and processes them.
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
                    .context("no source address in the peer's message")?;
                let received = done.received()?;
                self.peer = Some(Destination {
                    ah: self.pd.create_ah_from_wc(&done, received, self.port_num)?,
                    qp_num: verbs::qp::QpNum::new(qp_num)?,
                    qkey: QKEY,
                });
            }
        }
        Ok(())
    }
}
