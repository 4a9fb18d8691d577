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
//! use verbs::{Completed, Rc, op::Send};
//!
//! let devices = verbs::devices()?;
//! let ctx = devices.find("rxe0").expect("no such device").open()?;
//! let pd = ctx.alloc_pd()?;
//! let mut cq = ctx.cq_builder(16).waitable().create()?;
//! let qp = pd.qp_builder::<Rc>(&cq, &cq).create()?;
//! let mut qp = connect(qp); // with the crate `cm`, or by hand
//!
//! qp.post_recv(pd.alloc_buf(1024)?)?; // the device's, until something has arrived
//! qp.post(Send::new(pd.register_buf(*b"hello")?))?; // the device's, until it has been sent
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
//! | [`BufPool`], [`PoolBuf`] | [`ProtectionDomain::alloc_pool`] | many buffers in one registration |
//! | [`RemoteRegion`] | [`ProtectionDomain::alloc_remote`] | registered memory accessible to peers |
//! | [`MemoryWindow`] | [`ProtectionDomain::alloc_mw`] | access for peers, granted and revoked by request |
//! | [`CompletionChannel`] | [`Context::create_comp_channel`] | a descriptor for completion notifications |
//! | [`CompletionQueue`] | [`Context::cq_builder`] | a queue of completions |
//! | [`SharedReceiveQueue`] | [`ProtectionDomain::create_srq`] | receives for many queue pairs |
//! | [`TagMatchingQueue`] | [`ProtectionDomain::create_tag_matching`] | receives for messages with a tag |
//! | [`QueuePair`] | [`ProtectionDomain::qp_builder`] | a send queue and a receive queue |
//! | [`AddressHandle`] | [`ProtectionDomain::create_ah`] | the destination of datagrams |
//! | [`ExtendedCq`] | [`Context::cq_ex_builder`] | a completion queue with times and more |
//! | [`WorkQueue`], [`IndirectionTable`], [`RssQueuePair`] | [`ProtectionDomain::wq_builder`] | packets spread over receive queues |
//! | [`ExtendedBatch`] | [`SendQueue::extended_batch`] | requests built in the device's own memory |
//! | [`Flow`], [`Counters`] | [`FlowTarget::create_flow`] | packets steered to a queue pair, and counted |
//! | [`CompletionCounter`] | [`Context::create_completion_counter`] | the number of completed requests |
//! | [`DeviceMemory`], [`UnmappedRegion`] | [`Context::alloc_dm`], [`ProtectionDomain::register_dm`] | memory on the device |
//! | [`AsyncEvents`] | [`Context::async_events`] | asynchronous events: port state, queue pair errors, device failure |
//!
//! [`op`] has the requests that can be posted. Borrowed memory can be registered in a [`scope()`],
//! and posted to queue pairs made in the scope.
//!
//! Each object keeps its parents alive. Objects can be dropped in any order; forgetting one leaks
//! the object, and frees nothing still accessible to a device.
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
//! # What is safe about it
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
//! | | [thread](ThreadDomain), [parent](ParentDomainBuilder) and [XRC](XrcDomain) domains | |
//! | memory of vectors, (huge) pages, files and callers; [pools](BufPool) | [on demand](Registration::on_demand), [all of it](Everything), [dma-bufs](ProtectionDomain::register_dmabuf), [null](NullRegion), [changing](RemoteRegion::rereg), [advice](Advice), [the provider's](ProviderMemory) | [hints](DmaHandle) |
//! | | [`TagMatchingQueue`], [`DeviceMemory`], [`Ece`], [import](import_device) | |
//! | | [`Flow`], [`Counters`], [`CompletionCounter`], [`WorkQueue`], [`RssQueuePair`] | |

mod access;
mod addr;
mod ah;
mod attr;
mod bad_wr;
mod bounded;
mod completion_counter;
mod context;
mod counters;
mod cq;
mod device;
mod dm;
mod ece;
pub mod error;
mod event;
pub mod fd;
mod flow;
mod fork;
pub mod hint;
mod import;
mod mr;
mod mtu;
mod mw;
mod named;
mod node;
pub mod op;
mod parent_domain;
mod pd;
mod qp;
mod quirk;
mod recv_limits;
mod recv_list;
mod removal;
mod rss;
mod scope;
mod signals;
mod srq;
mod td;
#[cfg(feature = "tokio")]
pub mod tokio;
pub mod work;
mod wr_id;
mod xrcd;

pub use access::RemoteAccess;
pub use addr::Gid;
pub use ah::{AddressHandle, AddressVector, Addressed, GRH_LEN, GlobalRoute, HasAddress};
pub use attr::{
    AtomicCap, CqModerationCaps, DeviceAttr, DeviceCaps, GidEntry, GidType, LinkLayer, LinkSpeed,
    LinkWidth, OdpCaps, OdpGeneralCaps, OdpTransportCaps, PacketPacingCaps, PciAtomicCaps,
    PciAtomicSizes, PhysState, Pkey, PortAttr, PortCaps, PortCaps2, PortState, QpTypes,
    RawPacketCaps, RssCaps, RxHashFields, RxHashFunctions, TagMatchingCaps, TagMatchingFlags,
    TsoCaps,
};
pub use bounded::{AckTimeout, Psn, QpNum, RetryCount, RnrRetry, RnrTimer, SrqNum};
pub use completion_counter::{CompletionCounter, CompletionCounterCaps, CountedOps, CountedUnit};
pub use context::Context;
pub use counters::{CounterKind, Counters, ReadCounters};
pub use cq::{
    Attempts, ChannelWaker, CompletionChannel, CompletionQueue, CompletionQueueBuilder,
    Completions, CqHandle, CqKey, ExtendedCompletion, ExtendedCq, ExtendedCqBuilder, ExtendedPoll,
    Notify, TagMatch, WcError, WcFields, WcOpcode, WcStatus, WorkCompletion,
};
pub use device::{Device, DeviceList, Guid, devices};
pub use dm::DeviceMemory;
pub use ece::Ece;
pub use error::{Error, Refused, Result};
pub use event::{AsyncEvent, AsyncEvents, EventObject, EventType, KernelHandle};
pub use flow::{
    EspFilter, EthFilter, Flow, FlowFlags, FlowKind, FlowRule, FlowSpec, FlowTarget, GreFilter,
    Ipv4ExtFilter, Ipv4Filter, Ipv6Filter, Matching, MplsFilter, TcpUdpFilter, TunnelFilter,
};
pub use fork::{ForkStatus, fork_generation, fork_init, fork_status};
pub use import::{ImportedRegion, import_device};
pub use mr::{
    Advice, Buf, BufPool, DmaBufRange, DmaHandle, DmaHints, Everything, HugePage, Mapping, Memory,
    NotReregistered, NullBuf, NullRegion, OwnedMemory, PoolBuf, Prefix, ProviderMemory, RawMemory,
    Registration, RemoteRegion, RemoteRegistration, RemoteToken, Reregistration, SharedBuf,
    SharedMemory, TphMemory, UnmappedRegion,
};
pub use mtu::Mtu;
pub use mw::{MemoryWindow, WindowType};
pub use node::{NodeType, TransportType};
pub use parent_domain::{Allocation, ParentDomainBuilder, QueueAllocator};
pub use pd::ProtectionDomain;
pub use qp::{
    AlternatePath, Attributes, Batch, CanAttachCounter, CanPostReceive, CanPostSend, Completed,
    Completion, Connected, Datagram, Driver, ExtendedBatch, Failed, Init, Leftover, MigState,
    Multicast, Partitioned, QpAttr, QpCap, QpFlags, QpState, QueuePair, QueuePairBuilder, Queued,
    RateLimit, RawPacket, Rc, ReceiveQueue, RecvBatch, Reliable, Requester, Reset, Responder,
    Routed, Rtr, Rts, SendQueue, Sqd, State, Transport, Uc, Ud, WorkQueue, WorkQueueBuilder,
    WqFlags, WrOpcode, XrcReceiver, XrcRecv, XrcSend,
};
pub use rss::{IndirectionTable, RssQueuePair, RxHash};
pub use scope::{Scope, Scoped, ScopedBuf, ScopedSlice, ScopedWork, scope};
pub use signals::spawn_without_signals;
pub use srq::{
    RendezvousHeader, SharedReceiveQueue, SrqAttr, SrqBatch, TagCompletion, TagEntry, TagEvent,
    TagHeader, TagMatchingQueue, TagMatchingRoom, TagOperation, TagPattern,
};
pub use td::ThreadDomain;
pub use work::{Either, With};
pub use wr_id::QpId;
pub use xrcd::{XrcDomain, XrcdOpen};
