//! One connection and the messages on it.

use anyhow::anyhow;
use cm::{CmId, Connection, phases::HasDevice};
use verbs::{
    Buf, Completed, CompletionQueue, Init, ProtectionDomain, QueuePair, Rts, SharedBuf, op,
};

/// A queue pair of the active side before connecting.
pub(crate) type InitQp = QueuePair<verbs::Rc, Init, SharedBuf, Buf>;
/// A queue pair of the passive side after accepting.
pub(crate) type ReadyQp = QueuePair<verbs::Rc, Rts, SharedBuf, Buf>;

/// Buffers and counters of a connection's messages.
#[derive(Debug)]
pub(crate) struct Messages {
    cq: CompletionQueue,
    /// Payload of each send; `None` without messages.
    message: Option<SharedBuf>,
    /// Number of messages in each direction.
    count: u32,
    /// Number of sends posted and of messages received.
    sent: u32,
    received: u32,
}

/// An established connection.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) connection: Connection<SharedBuf, Buf>,
    pub(crate) messages: Messages,
}

impl Messages {
    /// Creates a queue pair for a connection, and posts a receive for every expected message.
    pub(crate) fn prepare<P: HasDevice>(
        id: &CmId<P>,
        count: u32,
        size: u32,
    ) -> anyhow::Result<(InitQp, Self)> {
        let pd = id.context()?.alloc_pd()?;
        let depth = count.max(1);
        let cq = pd
            .context()
            .cq_builder(depth.saturating_mul(2))
            .waitable()
            .create()?;
        let qp = pd
            .qp_builder(&cq, &cq)
            .max_send_wr(depth)
            .max_recv_wr(depth)
            .create_for()?;
        let mut qp: InitQp = id.init_qp(qp)?;
        for _ in 0..count {
            qp.post_recv(pd.alloc_buf(usize::try_from(size)?)?)?;
        }
        let message = match count {
            0 => None,
            _ => Some(zeros(&pd, size)?.freeze()),
        };
        let messages = Self {
            cq,
            message,
            count,
            sent: 0,
            received: 0,
        };
        Ok((qp, messages))
    }
}

/// Allocates a message of zeros.
fn zeros(pd: &ProtectionDomain, size: u32) -> anyhow::Result<Buf> {
    let mut buf = pd.alloc_buf(usize::try_from(size)?)?;
    buf.set_full();
    Ok(buf)
}

impl Node {
    /// Posts all sends, without waiting for completions.
    pub(crate) fn post_sends(&mut self) -> anyhow::Result<()> {
        let qp = self.connection.qp_mut();
        if let Some(message) = &self.messages.message {
            for _ in 0..self.messages.count {
                qp.post(op::Send::new(message.clone()))?;
            }
        }
        Ok(())
    }

    /// Blocks until all sends have completed.
    pub(crate) fn complete_sends(&mut self) -> anyhow::Result<()> {
        self.complete_until(|messages| messages.sent == messages.count)
    }

    /// Blocks until all messages of the peer have been received.
    pub(crate) fn complete_receives(&mut self) -> anyhow::Result<()> {
        self.complete_until(|messages| messages.received == messages.count)
    }

    fn complete_until(&mut self, done: impl Fn(&Messages) -> bool) -> anyhow::Result<()> {
        let Self {
            connection,
            messages,
        } = self;
        while !done(messages) {
            for wc in messages.cq.wait(None)? {
                let completed = connection.qp_mut().complete(wc);
                let completed = completed.map_err(|wc| anyhow!("{wc:?} belongs to no request"))?;
                completed.ok()?;
                match completed {
                    Completed::Send(_) => messages.sent += 1,
                    Completed::Receive(_) => messages.received += 1,
                }
            }
        }
        Ok(())
    }
}
