//! Queue pairs: making them, bringing them up, and posting to them.

mod attributes;
mod builder;
mod inflight;
mod legal;
mod pair;
mod queues;
mod request;
mod send_wr;
mod state;
mod transport;

pub use attributes::Attributes;
pub use builder::QueuePairBuilder;
pub use pair::{Completed, QueuePair};
pub use queues::{Completion, ReceiveQueue, SendQueue};
pub use request::{Send, SendRequest};
pub use state::{CanPostReceive, Init, Reset, Rtr, Rts, State};
pub use transport::{Connected, Rc, Transport, Uc, Ud};
