//! Verbs of NVIDIA's cards (the driver mlx5) for the crate `verbs`: the dynamically connected transport (DC), safe as `verbs` is.
//!
//! **No card has run this crate.** Its tests run on softnic, whose dynamically connected transport has frames of its own: the wire
//! format of the cards is not public.
//!
//! | item | is |
//! |---|---|
//! | [`Dci`], [`bring_up_initiator`] | the sending end, for [`qp_builder`](verbs::ProtectionDomain::qp_builder); its states |
//! | [`Dct`], [`create_target`], [`bring_up_target`] | the receiving end, with an access key; its states |
//! | [`Request`], [`Target`] | messages, RDMA and atomics, by [`ExtendedBatch::push_vendor`](verbs::qp::ExtendedBatch::push_vendor) |
//! | [`is_supported`] | whether a device has the driver mlx5 |
//!
//! An initiator is connected to one target at a time: a request to another one waits for the completion of all earlier requests.
//! Requests are executed once and in order, or the initiator fails, with all of its requests. A target serves any number of
//! initiators with the receives of one [shared receive queue](verbs::SharedReceiveQueue), and the failure of an initiator ends no
//! other's requests.
//!
//! # Examples
//! ```
//! # let (_fabric, ctx) = doctest::device();
//! use mlx5::{Dci, Dct, Request, Target};
//! use verbs::{RemoteAccess, Rts, ah::{AddressVector, Addressed}, attr::Mtu};
//! use verbs::{op::SendOps, qp::{Attributes, Psn}};
//!
//! let (pd, mut cq) = (ctx.alloc_pd()?, ctx.cq_builder(16).waitable().create()?);
//! let vector = AddressVector::global(1, 0, ctx.query_gid(1, 0)?.expect("the port has an address"));
//!
//! // The target, with its key. Its number is known from now on.
//! let mut srq = pd.create_srq::<verbs::Buf>(4, 1)?;
//! srq.post(pd.alloc_buf(64)?)?;
//! let dct = mlx5::create_target(pd.qp_builder::<Dct>(&cq, &cq).srq(&srq), 0x1234)?;
//! let dct = mlx5::bring_up_target(dct, &vector, Mtu::B1024, RemoteAccess::empty())?;
//! let target = Target { number: dct.qp_num(), key: 0x1234 };
//!
//! // The initiator, and a message.
//! let dci = pd.qp_builder::<Dci>(&cq, &cq).send_ops(SendOps::SEND);
//! let dci = dci.create_for::<Addressed<verbs::Buf>, ()>()?;
//! let timers = Attributes::<verbs::Rc, Rts>::new(Psn::default());
//! let mut dci = mlx5::bring_up_initiator(dci, 1, Mtu::B1024, &timers)?;
//! let ah = pd.create_ah(&vector)?;
//! let mut batch = dci.extended_batch()?;
//! let message = Addressed::new(pd.register_buf(*b"hello")?, &ah);
//! batch.push_vendor(Request::send(message, target))?;
//! batch.post()?;
//!
//! let mut count = 0;
//! while count < 2 {
//!     for wc in cq.wait(None)? {
//!         count += 1;
//!         match dci.complete(wc) {
//!             Ok(verbs::Completed::Send(done)) => drop(done.into_work()?),
//!             Ok(verbs::Completed::Receive(_)) => unreachable!("an initiator receives nothing"),
//!             Err(wc) => {
//!                 let message = srq.complete(wc).expect("there is no other queue pair");
//!                 assert_eq!(message.received()?, b"hello");
//!             }
//!         }
//!     }
//! }
//! # Ok::<(), verbs::Error>(())
//! ```
//!
//! # Limits
//! - A target is neither reset nor put into the error state: the driver refuses both. It ends with its destruction.
//! - An initiator has no drained state (SQD).
//! - Both ends use the same path MTU.
//! - Streams of an initiator (`MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS`), inline data, memory windows and remote invalidation have no
//!   counterpart here, and devx has none.

mod dc;
mod request;

pub use dc::{Dci, Dct, bring_up_initiator, bring_up_target, create_target, is_supported};
pub use request::{Request, Target};
