//! What every connection has: a queue pair. The completion queues, with a channel each, are shared, as
//! in C: there, they are made with the first queue pair, and stay in the attributes for the others.

use std::io;

use cm::{CmId, phases::HasDevice};
use verbs::{CompletionQueue, Init, ProtectionDomain, QueuePair, Rc, Result};

/// How many connections share two completion queues. Nothing completes, but a queue has room for
/// all that could.
const ROOM: u32 = 1024;

/// What connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pd: ProtectionDomain,
    send: CompletionQueue,
    receive: CompletionQueue,
}

impl Shared {
    fn new(pd: ProtectionDomain) -> Result<Self> {
        let cq = || pd.context().cq_builder(ROOM).waitable().create();
        let (send, receive) = (cq()?, cq()?);
        Ok(Self { pd, send, receive })
    }

    /// Whether there is room for one more connection.
    fn has_room(&self) -> bool {
        self.send.available() > 0 && self.receive.available() > 0
    }
}

/// Makes a queue pair for a connection, and what it shares if there is no more room in that.
pub(crate) fn create<P: HasDevice>(
    shared: &mut Option<Shared>,
    id: &CmId<P>,
) -> Result<QueuePair<Rc, Init>> {
    let context = id.context()?;
    let shared = match shared {
        Some(shared) if *shared.pd.context() == context => {
            if !shared.has_room() {
                *shared = Shared::new(shared.pd.clone())?;
            }
            shared
        }
        other => other.insert(Shared::new(context.alloc_pd()?)?),
    };
    let qp = shared
        .pd
        .qp_builder(&shared.send, &shared.receive)
        .max_send_wr(1)
        .max_recv_wr(1)
        .create()?;
    Ok(id.init_qp(qp)?)
}

/// The peer may just have ended the connection, too, and its event be on the way.
pub(crate) fn unless_ended(disconnected: Result<()>) -> Result<()> {
    disconnected.or_else(|err| match err.kind() {
        io::ErrorKind::InvalidInput => Ok(()),
        _ => Err(err),
    })
}
