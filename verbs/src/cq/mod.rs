//! Completion queues, their completions, and their notification channels.
//!
//! | item | is |
//! |---|---|
//! | [`CompletionQueue`], [`CompletionQueueBuilder`] | a queue of completions, the only poller of its queue |
//! | [`CqHandle`] | the shared part, for creating queue pairs |
//! | [`Completions`], [`WorkCompletion`] | the completions of a poll |
//! | [`WcStatus`], [`WcError`], [`WcOpcode`] | the outcome of a request, its error, its operation |
//! | [`CompletionChannel`], [`Notify`], [`CqKey`] | notifications of several queues on one descriptor |
//! | [`Attempts`] | peer and retries of a queue pair, for the error of a request |
//! | [`ExtendedCq`], [`ExtendedCqBuilder`], [`ExtendedPoll`] | a queue whose completions have more fields |
//! | [`ExtendedCompletion`], [`WcFields`], [`TagMatch`] | these completions, the choice of fields |
//!
//! # References
//! [ibv_create_cq(3)](https://man7.org/linux/man-pages/man3/ibv_create_cq.3.html),
//! [ibv_poll_cq(3)](https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html),
//! [ibv_req_notify_cq(3)](https://man7.org/linux/man-pages/man3/ibv_req_notify_cq.3.html),
//! [ibv_get_cq_event(3)](https://man7.org/linux/man-pages/man3/ibv_get_cq_event.3.html),
//! [ibv_create_cq_ex(3)](https://man7.org/linux/man-pages/man3/ibv_create_cq_ex.3.html)

mod account;
mod attempts;
mod channel;
mod completion;
mod extended;
mod extended_wc;
mod notify;
mod queue;
mod reservation;
mod resize;
mod status;

pub use account::NoEntries;
pub use attempts::Attempts;
pub use channel::{CompletionChannel, CqKey};
pub use completion::WorkCompletion;
pub use extended::{ExtendedCq, ExtendedCqBuilder, ExtendedPoll, WcFields};
pub use extended_wc::{ExtendedCompletion, TagMatch};
pub use notify::Notify;
pub use queue::{CompletionQueue, CompletionQueueBuilder, Completions, CqHandle};
pub use status::{WcError, WcOpcode, WcStatus};

#[cfg(feature = "tokio")]
pub(crate) use channel::ChannelHandle;
pub(crate) use queue::Queue;
pub(crate) use reservation::Reservation;
