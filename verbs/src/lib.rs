//! Safe RDMA verbs: typed objects, and posting that is safe at the cost of C.
//!
//! A device reads or writes the memory of a request later, when the program may have freed or
//! reused that memory. Here, the memory moves into the queue with the request, and returns with the
//! completion, so such a use is impossible. No call needed to move data is `unsafe`, and none of
//! them allocates, copies or locks.
//!
//! ```no_run
//! # use verbs::{QueuePair, Reset, Result, Rts};
//! # fn f(connect: impl FnOnce(QueuePair<verbs::Rc, Reset>) -> QueuePair<verbs::Rc, Rts>) -> Result<()> {
//! use verbs::{Completed, op};
//!
//! let devices = verbs::devices()?;
//! let ctx = devices.find("rxe0").expect("no such device").open()?;
//! let pd = ctx.alloc_pd()?;
//! let mut cq = ctx.cq_builder(16).waitable().create()?;
//! let qp = pd.qp_builder::<verbs::Rc>(&cq, &cq).create()?;
//! let mut qp = connect(qp); // with the crate `cm`, or by hand
//!
//! qp.post_recv(pd.alloc_buf(1024)?)?; // the device's, until something has arrived
//! qp.post(op::Send::new(pd.register_buf(*b"hello")?))?; // the device's, until it has been sent
//! for wc in cq.wait(None)? {
//!     match qp.complete(wc).expect("there is no other queue pair") {
//!         Completed::Send(done) => println!("sent {:?}", &**done.work()?),
//!         Completed::Receive(done) => println!("received {:?}", done.received()?),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # The objects, in the order in which they are made
//!
//! | object | made by | is |
//! |---|---|---|
//! | [`Device`] | [`devices`] | an RDMA device of this machine |
//! | [`Context`] | [`Device::open`] | the device, open |
//! | [`ProtectionDomain`] | [`Context::alloc_pd`] | the common domain of memory and queue pairs |
//! | [`Buf`], [`SharedBuf`] | [`ProtectionDomain::alloc_buf`], [`register`](ProtectionDomain::register) | registered memory of this process |
//! | [`BufPool`](mr::BufPool), [`PoolBuf`](mr::PoolBuf) | [`ProtectionDomain::alloc_pool`] | many buffers in one registration |
//! | [`RemoteRegion`] | [`ProtectionDomain::alloc_remote`] | registered memory accessible to peers |
//! | [`MemoryWindow`] | [`ProtectionDomain::alloc_mw`] | access for peers, granted and revoked by request |
//! | [`CompletionChannel`](cq::CompletionChannel) | [`Context::create_comp_channel`] | a descriptor for completion notifications |
//! | [`CompletionQueue`] | [`Context::cq_builder`] | a queue of completions |
//! | [`SharedReceiveQueue`] | [`ProtectionDomain::create_srq`] | receives for many queue pairs |
//! | [`TagMatchingQueue`](srq::TagMatchingQueue) | [`ProtectionDomain::create_tag_matching`] | receives for messages with a tag |
//! | [`QueuePair`] | [`ProtectionDomain::qp_builder`] | a send queue and a receive queue |
//! | [`AddressHandle`] | [`ProtectionDomain::create_ah`] | the destination of datagrams |
//! | [`ExtendedCq`](cq::ExtendedCq) | [`Context::cq_ex_builder`] | a completion queue with times and more |
//! | [`WorkQueue`](rss::WorkQueue), [`IndirectionTable`](rss::IndirectionTable), [`RssQueuePair`](rss::RssQueuePair) | [`ProtectionDomain::wq_builder`] | packets spread over receive queues |
//! | [`ExtendedBatch`](qp::ExtendedBatch) | [`SendQueue::extended_batch`](qp::SendQueue::extended_batch) | requests built in the device's own memory |
//! | [`Flow`](flow::Flow), [`Counters`](counters::Counters) | [`FlowTarget::create_flow`](flow::FlowTarget::create_flow) | packets steered to a queue pair, and counted |
//! | [`CompletionCounter`](completion_counter::CompletionCounter) | [`Context::create_completion_counter`] | the number of completed requests |
//! | [`DeviceMemory`](dm::DeviceMemory), [`UnmappedRegion`](mr::UnmappedRegion) | [`Context::alloc_dm`], [`ProtectionDomain::register_dm`] | memory on the device |
//! | [`AsyncEvents`](event::AsyncEvents) | [`Context::async_events`] | asynchronous events: port state, queue pair errors, device failure |
//!
//! [`op`] has the requests that can be posted. Borrowed memory can be registered in a [`scope()`],
//! and posted to queue pairs made in the scope.
//!
//! Each object keeps its parents alive. Objects can be dropped in any order; forgetting one leaks
//! the object, and frees nothing still accessible to a device.
//!
//! # Names
//!
//! The modules are named for C's objects: `ibv_create_cq` and everything about completion queues is
//! in [`cq`], and `ibv_modify_qp` in [`qp`]. The root re-exports the names in the signatures of a
//! program that sends and receives; all other names are in their module only. Two kinds of names
//! would hide names of the standard library, and are written with their path: the requests, as in
//! `op::Send`, and the transport `verbs::Rc`.
//!
//! | C | module |
//! |---|---|
//! | `ibv_get_device_list`, `ibv_open_device` | [`device`] |
//! | `ibv_query_device`, `ibv_query_port`, `ibv_query_gid`, `ibv_query_pkey` | [`attr`] |
//! | `ibv_get_async_event` | [`event`] |
//! | `ibv_alloc_pd`, `ibv_alloc_td`, `ibv_alloc_parent_domain` | [`pd`] |
//! | `ibv_open_xrcd` | [`xrcd`] |
//! | `ibv_reg_mr`, `ibv_rereg_mr`, `ibv_advise_mr`, `ibv_alloc_dmah` | [`mr`] |
//! | `ibv_alloc_mw`; `ibv_alloc_dm` | [`mw`]; [`dm`] |
//! | `ibv_create_comp_channel`, `ibv_create_cq`, `ibv_create_cq_ex`, `ibv_poll_cq` | [`cq`] |
//! | `ibv_create_qp`, `ibv_modify_qp`, `ibv_query_qp`, `ibv_attach_mcast`, `ibv_query_ece` | [`qp`] |
//! | `ibv_create_srq`, `ibv_post_srq_ops` | [`srq`] |
//! | `ibv_create_ah`, `ibv_init_ah_from_wc` | [`ah`] |
//! | `ibv_post_send`, `ibv_wr_start` | [`op`] the requests, [`work`] their memory |
//! | `ibv_create_wq`, `ibv_create_rwq_ind_table` | [`rss`] |
//! | `ibv_create_flow`; `ibv_create_counters` | [`flow`]; [`counters`] |
//! | `ibv_create_comp_cntr` | [`completion_counter`] |
//! | `ibv_import_device`, `ibv_import_pd`, `ibv_import_mr` | [`import`] |
//! | `ibv_fork_init` | [`fork`] |
//!
//! Without a counterpart in C: [`error`], [`hint`], [`mod@scope`], [`fd`], [`signals`] and, with
//! its feature, `tokio`.
//!
//! # A queue pair's life
//!
//! ```text
//! QueuePair<T, Reset> ─to_init▶ QueuePair<T, Init> ─to_rtr▶ QueuePair<T, Rtr> ─to_rts▶ QueuePair<T, Rts>
//!                                   post_recv                  post_recv               post_recv, post
//! ```
//!
//! From there, [`to_sqd`](QueuePair::to_sqd) stops the send queue for a while.
//!
//! State and transport are types, so a request not allowed by the state or the transport does not
//! compile. Transitions made by the device are data: a failed queue pair returns everything with
//! the status [`WcStatus::WR_FLUSH_ERR`].
//!
//! # Safety guarantees
//!
//! - *Memory in flight*: posting moves a work into the queue. Dropping the queue pair first
//!   destroys the C object, which ends the device's access, and then drops the work; if the device
//!   refuses the destruction, the work is leaked, not freed.
//! - *Completions*: a [`WorkCompletion`] is accepted only by its own queue, once. A completion
//!   cannot be kept over the next poll of the completion queue, so none can become stale. The next
//!   completion makes up for one dropped unread, except on iWARP's send queues: requests overtake
//!   each other there, so such a work returns only when the queue pair is destroyed or reset.
//! - *Overflow*: a completion queue has an entry for everything that its queue pairs can have in
//!   flight, and refuses a queue pair beyond its capacity.
//! - *Unsignaled requests*: can be posted without limit. The queue requests completions often
//!   enough to recover its slots.
//! - *Remote memory*: no reference exists to bytes that a peer may write. The program copies in and
//!   out, and the RKey is revoked before the memory is freed.
//!
//! # Features
//!
//! - `bindgen` (default): regenerate the bindings from the installed headers; see `ibverbs-sys`.
//! - `tokio`: awaiting completions and events, in the module `tokio`.
//!
//! # Limits
//!
//! Not here: encryption by flows (`ibv_create_flow_action_esp`), removed from all drivers of Linux.
//! A request has at most [128](work::MAX_SGE) elements.
//!
//! No RDMA card has been tried. Features missing in Soft-RoCE (kernel 6.1, rdma-core 44) are tested
//! on a fake device, in memory; their refusal is tested on Soft-RoCE. Sending and receiving is
//! tested on Soft-iWARP as well, by way of the crate `cm`; overtaking requests, specific to iWARP,
//! on both.
//!
//! | tested on Soft-RoCE | tested on a fake device | untested |
//! |---|---|---|
//! | devices, attributes of devices, ports, GIDs, P_Keys | extended attributes, the clock | [`query_port_speed`](Context::query_port_speed) |
//! | events of completion queues, send queues that drain, shared receive queues, ports | all other events | |
//! | extended batches | segmentation, flushing, atomic writes, a device that lacks or refuses them | |
//! | batches, resizing, waiting in every way, extended queues | moderation; times, VLAN and flow tags, tag matching; queues of one thread | |
//! | draining, querying | other ways, alternate paths, rates; XRC, raw packets, queue pairs of a device's maker | |
//! | memory, queue pairs, address handles, multicast groups, windows, shared receive queues | failing at each step | |
//! | | [thread](pd::ThreadDomain), [parent](pd::ParentDomainBuilder) and [XRC](xrcd::XrcDomain) domains | |
//! | memory of vectors, (huge) pages, files and callers; [pools](mr::BufPool) | [on demand](mr::Registration::on_demand), [all of it](mr::Everything), [dma-bufs](ProtectionDomain::register_dmabuf), [null](mr::NullRegion), [changing](RemoteRegion::rereg), [advice](mr::Advice), [the provider's](mr::ProviderMemory) | [hints](mr::DmaHandle) |
//! | | [`TagMatchingQueue`](srq::TagMatchingQueue), [`DeviceMemory`](dm::DeviceMemory), [`Ece`](qp::Ece), [import](import::import_device) | |
//! | | [`Flow`](flow::Flow), [`Counters`](counters::Counters), [`CompletionCounter`](completion_counter::CompletionCounter), [`WorkQueue`](rss::WorkQueue), [`RssQueuePair`](rss::RssQueuePair) | |

mod access;
mod addr;
pub mod ah;
pub mod attr;
mod bad_wr;
mod bounded;
pub mod completion_counter;
mod context;
pub mod counters;
pub mod cq;
pub mod device;
pub mod dm;
mod ece;
pub mod error;
pub mod event;
pub mod fd;
pub mod flow;
pub mod fork;
pub mod hint;
pub mod import;
pub mod mr;
mod mtu;
pub mod mw;
mod named;
mod node;
pub mod op;
mod parent_domain;
pub mod pd;
pub mod qp;
mod quirk;
mod recv_limits;
mod recv_list;
mod removal;
pub mod rss;
pub mod scope;
pub mod signals;
pub mod srq;
mod td;
#[cfg(feature = "tokio")]
pub mod tokio;
pub mod work;
mod wr_id;
pub mod xrcd;

// The names of programs that send and receive. "Where is a name of `verbs` public?" in DESIGN.md has the reasons.
pub use ah::{AddressHandle, Gid};
pub use cq::{CompletionQueue, WcStatus, WorkCompletion};
pub use device::{Context, Device, devices};
pub use error::{Error, Result};
pub use mr::{Buf, RemoteAccess, RemoteRegion, RemoteToken, SharedBuf};
pub use mw::MemoryWindow;
pub use pd::ProtectionDomain;
pub use qp::{Completed, Init, QueuePair, Rc, Reset, Rtr, Rts, Uc, Ud};
pub use scope::scope;
pub use srq::SharedReceiveQueue;
