//! Safe RDMA verbs: typed objects, and posting that is safe at the cost of C.
//!
//! A device that is told to read or write memory does so later, when the program may have freed or
//! reused it. Here, the memory moves into the queue with the request, and comes back with its
//! completion, so that cannot happen: no call of this crate that a program needs to move data is
//! `unsafe`, and none of them allocates, copies or locks.
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
//! | [`ProtectionDomain`] | [`Context::alloc_pd`] | what memory and queue pairs must share to work together |
//! | [`Buf`], [`SharedBuf`] | [`ProtectionDomain::alloc_buf`], [`register`](ProtectionDomain::register) | registered memory of this process |
//! | [`BufPool`], [`PoolBuf`] | [`ProtectionDomain::alloc_pool`] | many buffers in one registration |
//! | [`RemoteRegion`] | [`ProtectionDomain::alloc_remote`] | registered memory that peers can reach |
//! | [`MemoryWindow`] | [`ProtectionDomain::alloc_mw`] | access for peers that comes and goes by request |
//! | [`CompletionChannel`] | [`Context::create_comp_channel`] | a descriptor that announces completions |
//! | [`CompletionQueue`] | [`Context::cq_builder`] | where completions arrive |
//! | [`SharedReceiveQueue`] | [`ProtectionDomain::create_srq`] | receives for many queue pairs |
//! | [`TagMatchingQueue`] | [`ProtectionDomain::create_tag_matching`] | receives that wait for messages with a tag |
//! | [`QueuePair`] | [`ProtectionDomain::qp_builder`] | a send queue and a receive queue |
//! | [`AddressHandle`] | [`ProtectionDomain::create_ah`] | where datagrams are sent to |
//! | [`ExtendedCq`] | [`Context::cq_ex_builder`] | a completion queue with times and more |
//! | [`WorkQueue`], [`IndirectionTable`], [`RssQueuePair`] | [`ProtectionDomain::wq_builder`] | packets spread over receive queues |
//! | [`ExtendedBatch`] | [`SendQueue::extended_batch`] | requests built in the device's own memory |
//! | [`Flow`], [`Counters`] | [`FlowTarget::create_flow`] | packets steered to a queue pair, and counted |
//! | [`CompletionCounter`] | [`Context::create_completion_counter`] | how many requests have completed |
//! | [`DeviceMemory`], [`UnmappedRegion`] | [`Context::alloc_dm`], [`ProtectionDomain::register_dm`] | memory on the device |
//! | [`AsyncEvents`] | [`Context::async_events`] | what happens without having been asked for |
//!
//! What can be posted is in [`op`]. Memory that is only borrowed can be registered in a
//! [`scope()`], and posted to the queue pairs that are made there.
//!
//! Each keeps what it was made of alive. They can be dropped in any order, and forgetting one leaks
//! it, and frees nothing that a device could still touch.
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
//! The state and the transport are types, so a request that the state or the transport does not
//! allow does not compile. What the device does by itself is data: a queue pair that has failed
//! gives everything back with the status
//! [`WcStatus::WR_FLUSH_ERR`].
//!
//! # What is safe about it
//!
//! - *Memory in flight*: posting moves a work into the queue. Dropping the queue pair destroys it
//!   first, which ends the device's access, and then drops the work; if the device refuses to let
//!   go, the work is given up, not freed.
//! - *Completions*: a [`WorkCompletion`] is believed only by the queue it belongs to, once. It
//!   cannot be kept while the completion queue is polled again, so it cannot become stale. One that
//!   is dropped unread is made good by the next, except on iWARP's send queues: requests overtake
//!   each other there, so its work comes back only when the queue pair is destroyed or reset.
//! - *Overflow*: a completion queue has an entry for everything its queue pairs can have in flight,
//!   and refuses the queue pair for which it has not.
//! - *Unsignaled requests*: they can be posted for ever. The queue asks for a completion often
//!   enough to get its slots back.
//! - *Remote memory*: nobody has a reference to bytes that a peer may write. They are copied in and
//!   out, and the RKey is revoked before the memory is freed.
//!
//! # Features
//!
//! - `bindgen` (default): regenerate the bindings from the installed headers; see `ibverbs-sys`.
//! - `tokio`: completions and events that can be awaited, in the module `tokio`.
//!
//! # Limits
//!
//! Not here: encryption by flows (`ibv_create_flow_action_esp`), which no driver of Linux has any more.
//! A request has at most [128](work::MAX_SGE) elements.
//!
//! No RDMA card has been tried. What Soft-RoCE (kernel 6.1, rdma-core 44) cannot do is tested on a
//! fake device, in memory; there, its failing is tested on Soft-RoCE. Sending and receiving is
//! tested on Soft-iWARP as well, by way of the crate `cm`; requests that overtake each other there,
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
    ChannelWaker, CompletionChannel, CompletionQueue, CompletionQueueBuilder, Completions,
    CqHandle, CqKey, ExtendedCompletion, ExtendedCq, ExtendedCqBuilder, ExtendedPoll, Notify,
    TagMatch, WcError, WcFields, WcOpcode, WcStatus, WorkCompletion,
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
