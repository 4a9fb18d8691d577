//! Resources of a queue pair.

use anyhow::Result;
use cm::{CmId, Connection, phases::HasDevice};
use verbs::{CompletionQueue, Context, Init, ProtectionDomain, QueuePair};

use crate::TEST_TIMEOUT;

pub(crate) struct Side {
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
}

impl Side {
    pub(crate) fn new(ctx: &Context) -> Result<Self> {
        Ok(Self {
            pd: ctx.alloc_pd()?,
            cq: ctx.cq_builder(16).waitable().create()?,
        })
    }

    /// Creates a queue pair with a receive posted.
    pub(crate) fn qp<P: HasDevice>(&mut self, id: &CmId<P>) -> Result<QueuePair<verbs::Rc, Init>> {
        let builder = self.pd.qp_builder(&self.cq, &self.cq);
        let qp = builder.max_send_wr(4).max_recv_wr(4).create()?;
        let mut qp = id.init_qp(qp).map_err(|refused| refused.error)?;
        qp.post_recv(self.pd.alloc_buf(64)?)
            .map_err(|refused| refused.error)?;
        Ok(qp)
    }

    /// Takes up to `count` completions, and returns a word for each; a missing one is `hangs`.
    pub(crate) fn completions(
        &mut self,
        connection: &mut Connection,
        count: usize,
    ) -> Result<Vec<&'static str>> {
        let mut kinds = Vec::new();
        while kinds.len() < count {
            let before = kinds.len();
            for wc in self.cq.wait(Some(TEST_TIMEOUT))? {
                kinds.push(match (wc.ok().is_ok(), wc.is_receive()) {
                    (true, true) => "received",
                    (true, false) => "sent",
                    (false, _) => "flushed",
                });
                drop(connection.qp_mut().complete(wc));
            }
            if kinds.len() == before {
                kinds.push("hangs");
                break;
            }
        }
        Ok(kinds)
    }
}
