//! What every connection has: a queue pair, and as in C two completion queues with a channel each.

use std::io;

use cm::{CmId, phases::HasDevice};
use verbs::{CompletionQueue, Init, ProtectionDomain, QueuePair, Rc, Result};

/// A queue pair of a connection, and its completion queues, of which nothing is ever read.
#[derive(Debug)]
pub(crate) struct Queues {
    _send: CompletionQueue,
    _receive: CompletionQueue,
}

/// Makes a queue pair for a connection. All share a protection domain, which the first one makes.
pub(crate) fn create<P: HasDevice>(
    shared: &mut Option<ProtectionDomain>,
    id: &CmId<P>,
) -> Result<(QueuePair<Rc, Init>, Queues)> {
    let context = id.context()?;
    let pd = match shared {
        Some(pd) if *pd.context() == context => pd,
        other => other.insert(context.alloc_pd()?),
    };
    let cq = || context.cq_builder(1).waitable().create();
    let (send, receive) = (cq()?, cq()?);
    let qp = pd
        .qp_builder(&send, &receive)
        .max_send_wr(1)
        .max_recv_wr(1)
        .create()?;
    let queues = Queues {
        _send: send,
        _receive: receive,
    };
    Ok((id.init_qp(qp)?, queues))
}

/// The peer may just have ended the connection, too, and its event be on the way.
pub(crate) fn unless_ended(disconnected: Result<()>) -> Result<()> {
    disconnected.or_else(|err| match err.kind() {
        io::ErrorKind::InvalidInput => Ok(()),
        _ => Err(err),
    })
}
