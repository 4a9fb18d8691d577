//! Blocking calls that share completion queues.
//!
//! A program with one receiver per queue needs [`CompletionQueue::wait`](crate::CompletionQueue::wait)
//! alone. This module is for protocols: several threads wait for different messages of the same
//! queues. One blocked call at a time is the *poller*. The poller sleeps until the completion
//! channel is readable, and handles the completions of all; the other calls are *followers*, and
//! sleep until woken (Leader/Followers). So a message costs no context switch to another thread.
//!
//! | item | is |
//! |---|---|
//! | [`Shared`], [`Guard`] | the state behind its lock |
//! | [`Source`] | the program's part: polling and arming the queues |
//! | [`Waiters`] | blocked calls and tasks, stored in the state |
//! | [`WaitEnd`] | the end of a wait |
//! | [`Standby`], [`Sleep`] | a thread that polls while no call does |
//! | [`EventFd`] | a descriptor to wake a thread, or an event loop |
//!
//! Tasks and event loops wait by [`Waiters::add_task`]; an event loop watches an eventfd, added as the
//! task `Waker::from(Arc<EventFd>)`, or a descriptor of the source ([`Waiters::set_watched`]). Both
//! need a poller besides: a blocked call, or the standby thread.
//!
//! Properties, proven for every interleaving of a few threads (`interleavings.rs`):
//! - No wake-up is lost, and no completion is handled twice.
//! - No waiter is left without a poller: a poller that returns hands over to a follower, and any
//!   call that comes first takes the place.
//! - A poller that does not run, for example because of its priority, is replaced: each follower
//!   checks for unhandled completions, after 1 ms at first, then at increasing intervals of at
//!   most 100 ms per blocked call.
//!
//! # Examples
//! Two threads receive on one queue. Each waits for its own messages, and may handle those of the
//! other:
//! ```
//! use std::{collections::BTreeMap, sync::Arc, thread};
//! use verbs::{
//!     Completed, CompletionQueue, QueuePair, Rts,
//!     cq::{CompletionChannel, CqKey, Notify},
//!     op,
//!     waiting::{Shared, Source, Waiters},
//! };
//!
//! struct Inbox {
//!     cq: CompletionQueue,
//!     qp: QueuePair<verbs::Rc, Rts>,
//!     channel: Arc<CompletionChannel>,
//!     /// Numbers of messages by their first byte, the receiver.
//!     received: BTreeMap<u8, u32>,
//!     waiters: Waiters<u8>,
//! }
//!
//! impl Source for Inbox {
//!     type Interest = u8;
//!     type Error = verbs::Error;
//!
//!     fn waiters(&mut self) -> &mut Waiters<u8> {
//!         &mut self.waiters
//!     }
//!
//!     fn process(&mut self) -> verbs::Result<bool> {
//!         let mut any = false;
//!         for wc in self.cq.poll()? {
//!             any = true;
//!             if let Ok(Completed::Receive(done)) = self.qp.complete(wc) {
//!                 if let Ok(&[to, ..]) = done.received() {
//!                     *self.received.entry(to).or_default() += 1;
//!                     self.waiters.wake_interest(to);
//!                 }
//!             }
//!         }
//!         Ok(any)
//!     }
//!
//!     fn drain_events(&mut self) -> verbs::Result<()> {
//!         while self.channel.try_next()?.is_some() {}
//!         Ok(())
//!     }
//!
//!     fn arm(&mut self) -> verbs::Result<()> {
//!         self.cq.req_notify(Notify::Next)
//!     }
//! }
//!
//! fn receive(inbox: &Shared<Inbox, Arc<CompletionChannel>>, receiver: u8) -> verbs::Result<()> {
//!     let mut state = inbox.lock();
//!     loop {
//!         if let Some(count) = state.received.get_mut(&receiver).filter(|count| **count > 0) {
//!             *count -= 1;
//!             return Ok(());
//!         }
//!         (state, _) = inbox.wait(state, receiver, None, None)?;
//!     }
//! }
//!
//! # let peer = doctest::peer();
//! # let ctx = verbs::devices()?.first()?.open()?;
//! # let pd = ctx.alloc_pd()?;
//! let channel = Arc::new(ctx.create_comp_channel()?);
//! let cq = ctx.cq_builder(16).channel(&channel, CqKey(0)).create()?;
//! # let qp = pd.qp_builder::<verbs::Rc>(&cq, &cq).max_send_wr(2).max_recv_wr(2).create()?;
//! # let mut qp = peer.connect(qp);
//! for _ in 0..2 {
//!     qp.post_recv(pd.alloc_buf(64)?)?;
//! }
//! # for receiver in [2_u8, 1] {
//! #     qp.post(op::Send::new(pd.register_buf([receiver])?))?;
//! # }
//! let state = Inbox {
//!     cq,
//!     qp,
//!     channel: Arc::clone(&channel),
//!     received: BTreeMap::new(),
//!     waiters: Waiters::new(),
//! };
//! let inbox = Shared::new(state, channel);
//! thread::scope(|scope| {
//!     let other = scope.spawn(|| receive(&inbox, 2));
//!     receive(&inbox, 1)?;
//!     other.join().expect("it does not panic")
//! })?;
//! # Ok::<(), verbs::Error>(())
//! ```

mod event_fd;
#[cfg(test)]
mod interleavings;
pub(crate) mod notifier;
mod os;
mod shared;
#[cfg(test)]
mod tests;
mod waiters;

pub use event_fd::{EventFd, unnotified_sleep};
pub use shared::{Guard, Shared, Source, Standby, WaitEnd};
pub use waiters::{Sleep, Waiters};
