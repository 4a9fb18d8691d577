//! Completion queues, their completions, and the channels that announce them.

mod channel;
mod completion;
mod queue;
mod status;

pub use channel::{CompletionChannel, CqKey};
pub use completion::WorkCompletion;
pub use queue::{CompletionQueue, CompletionQueueBuilder, Completions, CqHandle, Notify};
pub use status::{WcError, WcOpcode, WcStatus};

pub(crate) use queue::Reservation;
