//! Queue pairs for connections. The completion queues, with a channel each, are shared as in C: the first
//! queue pair creates both, and the attributes keep both for the next ones.

use std::io;

use cm::{CmId, phases::HasDevice};
use verbs::{CompletionQueue, Init, ProtectionDomain, QueuePair, Result};

/// Number of connections per pair of completion queues. No completion is expected, but the queues have room
/// for every possible one.
const ROOM: u32 = 1024;

/// Completion queues shared by several connections.
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

    /// Whether one more connection fits.
    fn has_room(&self) -> bool {
        self.send.available() > 0 && self.receive.available() > 0
    }
}

/// Creates a queue pair for a connection, and new shared completion queues if the current ones are full.
pub(crate) fn create<P: HasDevice>(
    shared: &mut Option<Shared>,
    id: &CmId<P>,
) -> Result<QueuePair<verbs::Rc, Init>> {
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

/// Ignores the error of a disconnect that raced with the peer's.
pub(crate) fn unless_ended(disconnected: Result<()>) -> Result<()> {
    disconnected.or_else(|err| match err.kind() {
        io::ErrorKind::InvalidInput => Ok(()),
        _ => Err(err),
    })
}
