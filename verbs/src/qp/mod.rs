//! Queue pairs: making them, bringing them up, and posting to them.

mod attributes;
mod batch;
mod bind;
mod builder;
mod inflight;
mod legal;
mod multicast;
mod pair;
mod queues;
mod refusal;
mod share;
mod signaling;
mod state;
mod teardown;
mod transport;
mod work_queue;

pub use attributes::Attributes;
pub use batch::Batch;
pub use builder::QueuePairBuilder;
pub use pair::{Completed, QueuePair};
pub use queues::{Completion, ReceiveQueue, SendQueue};
pub use state::{CanPostReceive, Init, Reset, Rtr, Rts, State};
pub use teardown::Leftover;
pub use transport::{Connected, Datagram, Rc, Reliable, Transport, Uc, Ud};
pub use work_queue::{WorkQueue, WorkQueueBuilder, WqFlags};

pub(crate) use work_queue::WqInner;
