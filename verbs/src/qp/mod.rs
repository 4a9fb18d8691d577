//! Queue pairs: creation, transitions, and posting.

mod attached;
mod attributes;
mod batch;
mod bind;
mod builder;
mod completion;
mod extended;
mod extended_batch;
mod flags;
mod inflight;
mod legal;
mod member;
mod modify;
mod multicast;
mod pair;
mod query;
mod queues;
mod rate;
mod recv_batch;
mod refusal;
mod share;
mod signaling;
mod slots;
mod staging;
mod state;
mod table;
mod teardown;
mod transport;
mod tso;
mod unordered;
mod work_queue;
mod xrc_receiver;

pub use attributes::{AlternatePath, Attributes, MigState};
pub use batch::Batch;
pub use builder::QueuePairBuilder;
pub use completion::{Completion, Failed};
pub use extended_batch::ExtendedBatch;
pub use flags::QpFlags;
pub use multicast::Multicast;
pub use pair::{Completed, QueuePair};
pub use query::{QpAttr, QpCap, WrOpcode};
pub use queues::{ReceiveQueue, SendQueue};
pub use rate::RateLimit;
pub use recv_batch::RecvBatch;
pub use state::{
    CanAttachCounter, CanPostReceive, CanPostSend, Init, QpState, Reset, Rtr, Rts, Sqd, State,
};
pub use teardown::Leftover;
pub use transport::{
    Connected, Datagram, Driver, Partitioned, Queued, RawPacket, Rc, Reliable, Requester,
    Responder, Routed, Transport, Uc, Ud, XrcRecv, XrcSend,
};
pub use work_queue::{WorkQueue, WorkQueueBuilder, WqFlags};
pub use xrc_receiver::XrcReceiver;

pub(crate) use member::Member;
pub(crate) use work_queue::WqInner;
