//! Verbs of AWS's Elastic Fabric Adapter for the crate `verbs`: reliable datagrams (SRD), safe as `verbs` is.
//!
//! **No card has run this crate.** Its tests run on softnic, whose reliable datagrams have frames of their own: the wire format
//! of the cards is not public.
//!
//! | item | is |
//! |---|---|
//! | [`Srd`], [`bring_up`] | the transport, for [`qp_builder`](verbs::ProtectionDomain::qp_builder); its states |
//! | [`verbs::op::SendTo`] | sends, also with immediate data, by both APIs |
//! | [`WriteTo`], [`ReadFrom`] | RDMA, by [`ExtendedBatch::push_vendor`](verbs::qp::ExtendedBatch::push_vendor) |
//! | [`create_cq`] | completion queues with the sender's address |
//! | [`query_device`] | limits and capabilities |
//!
//! A queue pair has no peer: each request names an address handle, a queue pair and a Q_Key. A message arrives once, or its
//! request fails. Messages arrive and complete in any order, and a failure concerns its own request only: the queue pair stays
//! ready. A send is at most one packet of the port's MTU; received messages have no global route header before them.
//!
//! # Examples
//! ```
//! # let (_fabric, ctx) = doctest::device();
//! use efa::Srd;
//! use verbs::{QueuePair, ah::{AddressVector, Addressed}, op};
//!
//! let (pd, mut cq) = (ctx.alloc_pd()?, ctx.cq_builder(16).waitable().create()?);
//! let qp = pd.qp_builder::<Srd>(&cq, &cq).max_send_wr(8).max_recv_wr(4).create_for()?;
//! let mut qp = efa::bring_up(qp, 1, 0x1234)?;
//! qp.post_recv(pd.alloc_buf(64)?)?;
//!
//! // A message to itself.
//! let gid = ctx.query_gid(1, 0)?.expect("the port has an address");
//! let ah = pd.create_ah(&AddressVector::global(1, 0, gid))?;
//! let message = Addressed::new(pd.register_buf(*b"hello")?, &ah);
//! qp.post(op::SendTo::new(message, qp.qp_num(), 0x1234))?;
//! while qp.send_queue().in_flight() + qp.receive_queue().in_flight() > 0 {
//!     for wc in cq.wait(None)? {
//!         qp.complete(wc).expect("there is no other queue pair").ok()?;
//!     }
//! }
//! # Ok::<(), verbs::Error>(())
//! ```
//!
//! # Limits
//! - `ibv_post_send` of libefa takes sends only; RDMA needs [`send_ops`](verbs::qp::QueuePairBuilder::send_ops), and rdma-core 47
//!   for writes.
//! - libefa refuses solicited and fenced requests, and shared receive queues.
//! - RDMA has one element, or the batch fails with `EINVAL`, and no inline data: libefa copies inline data over the memory that an
//!   RDMA request names. So a [`VendorRequest`](verbs::op::VendorRequest) has none.
//! - A queue pair cannot be [reset](verbs::QueuePair::to_reset), and is destroyed only when all of its work has returned, as by
//!   [`drain`](verbs::QueuePair::drain): libefa looks up the request of a completion when polled. A queue pair dropped with work in
//!   flight is leaked with the work.
//! - A receive has at least one byte: libefa accepts one without, and never completes it.
//! - Options of rdma-core after 44, such as service levels and writes without a receive, have no counterpart here.

mod cq;
mod device;
mod request;
mod srd;

pub use cq::create_cq;
pub use device::{DeviceAttr, DeviceCaps, query_device};
pub use request::{ReadFrom, WriteTo};
pub use srd::{Srd, bring_up};
