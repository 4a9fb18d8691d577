//! Safe RDMA verbs: typed objects, and posting that is safe at the cost of C.
//!
//! A device reads or writes the memory of a request later, when the program may have freed or
//! reused that memory. Here, the memory moves into the queue with the request, and returns with the
//! completion, so such a use is impossible. No call needed to move data is `unsafe`, and none of
//! them allocates, copies or locks.
//!
//! ```
//! # let peer = doctest::peer();
//! # let connect = |qp| peer.connect(qp);
//! use verbs::{Completed, op};
//!
//! let ctx = verbs::devices()?.first()?.open()?;
//! let pd = ctx.alloc_pd()?;
//! let mut cq = ctx.cq_builder(16).waitable().create()?;
//! let qp = pd.qp_builder::<verbs::Rc>(&cq, &cq).create()?;
//! let mut qp = connect(qp); // see below
//!
//! qp.post_recv(pd.alloc_buf(1024)?)?; // owned by the queue until a message arrives
//! qp.post(op::Send::new(pd.register_buf(*b"hello")?))?; // owned by the queue until sent
//! for wc in cq.wait(None)? {
//!     match qp.complete(wc).expect("there is no other queue pair") {
//!         Completed::Send(done) => println!("sent {:?}", &**done.work()?),
//!         Completed::Receive(done) => println!("received {:?}", done.received()?),
//!     }
//! }
//! # Ok::<(), verbs::Error>(())
//! ```
//!
//! `connect` stands for the exchange of addresses and the transitions to [`Rts`]: `cm::connect` does
//! both, and [`Attributes`](qp::Attributes) shows the transitions.
//!
//! # The objects, in the order of their creation
//!
//! | object | created by | is |
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
//! | [`ExtendedCq`](cq::ExtendedCq) | [`Context::cq_ex_builder`] | a completion queue with timestamps and other optional fields |
//! | [`WorkQueue`](rss::WorkQueue), [`IndirectionTable`](rss::IndirectionTable), [`RssQueuePair`](rss::RssQueuePair) | [`ProtectionDomain::wq_builder`] | packets spread over receive queues |
//! | [`ExtendedBatch`](qp::ExtendedBatch) | [`SendQueue::extended_batch`](qp::SendQueue::extended_batch) | requests posted together by `ibv_wr_*` |
//! | [`Flow`](flow::Flow), [`Counters`](counters::Counters) | [`FlowTarget::create_flow`](flow::FlowTarget::create_flow) | packets steered to a queue pair, and counted |
//! | [`CompletionCounter`](completion_counter::CompletionCounter) | [`Context::create_completion_counter`] | the number of completed requests |
//! | [`DeviceMemory`](dm::DeviceMemory), [`UnmappedRegion`](mr::UnmappedRegion) | [`Context::alloc_dm`], [`ProtectionDomain::register_dm`] | memory on the device |
//! | [`AsyncEvents`](event::AsyncEvents) | [`Context::async_events`] | asynchronous events: port state, queue pair errors, device failure |
//!
//! [`op`] has the requests that can be posted. Borrowed memory can be registered in a [`scope()`],
//! and posted to queue pairs created in the scope.
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
//! [`functions`] has the counterpart of every function, constant and field. A search of this
//! documentation for a name of C also finds the counterpart.
//!
//! Without a counterpart in C: [`error`], [`hint`], [`mod@scope`], [`port_counters`], [`fd`], [`signals`], [`mod@exit`] and, with
//! its feature, `tokio`.
//!
//! # A queue pair's life
//!
//! ```text
//! Reset ──to_init──▶ Init ──to_rtr──▶ Rtr ──to_rts──▶ Rts ──to_sqd──▶ Sqd
//!                                                         ◀──to_rts──
//!                    post_recv        post_recv       post_recv, post
//! ```
//!
//! In [`Sqd`](qp::Sqd), the send queue is stopped. Every state has a way back to [`Reset`]:
//! [`to_reset`](QueuePair::to_reset).
//!
//! State and transport are types, so a request not allowed by the state or the transport does not
//! compile. Transitions made by the device are data: a failed queue pair returns all work with
//! the status [`WcStatus::WR_FLUSH_ERR`].
//!
//! # Safety guarantees
//!
//! - *Memory in flight*: posting moves the work into the queue. Dropping the queue pair first
//!   destroys the C object, which ends the device's access, and then drops the work; if the device
//!   refuses the destruction, the work is leaked, not freed.
//! - *Completions*: a [`WorkCompletion`] is accepted only by its own queue, once. A completion
//!   cannot be kept over the next poll of the completion queue, so none can become stale. The work of
//!   a completion dropped unread returns with the next completion. On iWARP's send queues, where
//!   requests overtake each other, the work returns when the queue pair is destroyed or reset.
//! - *Overflow*: a completion queue has an entry for each request that its queue pairs can have in
//!   flight, and refuses a queue pair beyond its capacity.
//! - *Unsignaled requests*: can be posted without limit. The queue requests completions often
//!   enough to recover its slots.
//! - *Remote memory*: no reference exists to bytes that a peer may write. The program copies in and
//!   out, and the RKey is revoked before the memory is freed.
//!
//! These rest on sentences about C, the kernel and devices. [`assumptions`] lists them, each with its source and its test.
//!
//! # Features
//!
//! - `bindgen` (default): regenerate the bindings from the installed headers; see `ibverbs-sys`.
//! - `dlopen`: libibverbs is loaded at the first call, so that a program starts without the library, and is built
//!   without it; without the library, [`devices`] returns an error.
//! - `flight-recorder`: [`QueuePairBuilder`](qp::QueuePairBuilder)`::flight_recorder` keeps the last posts and completions of a
//!   queue pair, and [`QueuePair`]`::flight_record` displays them after a failure. Without the feature nothing of this is in
//!   the posting code.
//! - `tokio`: awaiting completions and events, in the module `tokio`. Import names of this crate one by one: `use verbs::*`
//!   would import this module too, and hide the crate `tokio`.
//! - `tracing`: events with the target `verbs` for a subscriber of the crate `tracing`: at `DEBUG` each transition of a
//!   queue pair, with the peer's queue pair number and GID, and each asynchronous event taken; at `WARN` refused
//!   transitions, and queue pairs that could not be destroyed. Posting and polling emit nothing.
//!
//! # Limits
//!
//! Not supported: encryption by flows (`ibv_create_flow_action_esp`), removed from all drivers of Linux.
//! A request has at most [128](work::MAX_SGE) elements.
//!
//! No RDMA card has been tested. Features missing in Soft-RoCE (Linux 6.12, rdma-core 44) are tested
//! on a fake device, in memory; their refusal is tested on Soft-RoCE. Sending and receiving is
//! tested on Soft-iWARP as well, by way of the crate `cm`; overtaking requests, specific to iWARP,
//! on both.
//!
//! Newer Soft-RoCE has more. The tests below have passed on Linux 7.2 with rdma-core 65:
//!
//! | feature | Soft-RoCE's since | rdma-core's since |
//! |---|---|---|
//! | [`op::AtomicWrite`] | Linux 6.2 | 44 |
//! | [`op::Flush`] | Linux 6.2 | 45 |
//! | [`on_demand`](mr::Registration::on_demand): messages of RC and UD, also to an SRQ; reads, writes and atomics of RC; all at the start of a page | Linux 6.15 | 44 |
//! | atomic writes and flushes of memory paged on demand | Linux 6.16 | 45 |
//! | [`advise`](ProtectionDomain::advise) | Linux 6.17 | 59 |
//! | [`alloc_provider_memory`](ProtectionDomain::alloc_provider_memory) | any | 64 |
//!
//! Paging on demand of Linux 7.2 accesses the start of a page, at any offset: a fault of the driver. On Soft-RoCE only whole
//! pages are registered on demand, so that the device accesses no memory of another owner.
//!
//! | subject | tested on Soft-RoCE | tested on a fake device | untested |
//! |---|---|---|---|
//! | [`attr`] | devices, ports, GIDs, P_Keys | extended attributes, the clock | [`query_port_speed`](Context::query_port_speed) |
//! | [`event`] | completion queues, drained send queues, shared receive queues, ports | all other events | |
//! | [`cq`] | batches, resizing, all waits, extended queues | moderation, timestamps, VLAN and flow tags, queues of one thread | |
//! | [`qp`] | all states, queries, draining, extended batches | changed and alternate paths, rates, XRC, raw packets, queue pairs of a vendor, [`Ece`](qp::Ece) | |
//! | [`op`] | sends, reads, writes, atomics, atomic writes, inline data, invalidation | segmentation, flushes | |
//! | [`mr`], [`mw`] | memory of vectors, huge pages, files and callers; pools; windows | on-demand paging, dma-bufs, null regions, changes, the provider's memory, [hints](mr::DmaHandle) | |
//! | [`srq`] | shared receive queues | tag matching | |
//! | [`pd`], [`xrcd`] | protection domains | thread, parent and XRC domains | |
//! | [`ah`] | address handles, multicast groups | | |
//! | [`dm`], [`flow`], [`counters`], [`completion_counter`], [`rss`], [`import`] | their refusal | everything | |
//! | failures | refused calls and requests | a failure of each step of each creation | |

mod access;
mod addr;
pub mod ah;
#[doc = include_str!("../ASSUMPTIONS.md")]
pub mod assumptions {}
pub mod attr;
mod bad_wr;
mod bounded;
pub mod completion_counter;
mod context;
pub mod counters;
pub mod cq;
pub mod device;
pub mod dm;
mod doorbell;
mod ece;
pub mod error;
pub mod event;
pub mod exit;
pub mod fd;
pub mod flow;
pub mod fork;
#[doc = include_str!("../FUNCTIONS.md")]
pub mod functions {}
pub mod hint;
pub mod import;
mod masked_failures;
pub mod mr;
mod mtu;
pub mod mw;
mod named;
mod newtype;
mod node;
pub mod op;
pub mod panics;
mod parent_domain;
pub mod pd;
pub mod port_counters;
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
#[cfg(feature = "tracing")]
mod trace;
pub mod waiting;
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
