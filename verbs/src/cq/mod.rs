//! Completion queues, their completions, and their notification channels.

mod attempts;
mod channel;
mod completion;
mod extended;
mod extended_wc;
mod notifier;
mod notify_command;
mod queue;
mod resize;
mod room;
mod sleepers;
mod status;
mod waker;

pub use attempts::Attempts;
pub use channel::{CompletionChannel, CqKey};
pub use completion::WorkCompletion;
pub use extended::{ExtendedCq, ExtendedCqBuilder, ExtendedPoll, WcFields};
pub use extended_wc::{ExtendedCompletion, TagMatch};
pub use queue::{CompletionQueue, CompletionQueueBuilder, Completions, CqHandle, Notify};
pub use status::{WcError, WcOpcode, WcStatus};
pub use waker::ChannelWaker;

#[cfg(feature = "tokio")]
pub(crate) use channel::ChannelHandle;
pub(crate) use queue::{Queue, Reservation};
