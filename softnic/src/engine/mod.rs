//! The transport of `RoCEv2` without I/O and without a clock: one RDMA device.
//!
//! Inputs of an [`Engine`] are calls of the program, frames of peers and the time; outputs are frames, completions and
//! events:
//!
//! | in | out |
//! |---|---|
//! | objects: [`Engine::register`], [`Engine::create_qp`], [`Engine::modify_qp`] … | [`Engine::poll_cq`], completions |
//! | requests: [`Engine::post_send`], [`Engine::post_recv`] | [`Engine::poll_event`], events |
//! | frames: [`Engine::handle_frame`] | [`Engine::transmit`], frames |
//! | time: [`Engine::handle_timeout`] | [`Engine::next_timeout`], the next deadline |
//!
//! After each call with possible frames, call [`Engine::transmit`] until it returns false. Time is a duration since an
//! arbitrary fixed moment. Memory is accessed only through [`Memory`], after the check of keys, bounds and rights.
//!
//! Source: InfiniBand Architecture Specification, volume 1, chapters 9 to 11.
#![forbid(unsafe_code)]

mod access;
mod completion;
mod cq;
mod device;
mod error;
mod event;
mod ids;
mod keys;
mod late;
mod management;
mod memory;
mod objects;
mod packet;
mod path;
mod psn;
mod qp;
mod request;
mod resources;
mod rnr;
mod srq;
mod transfer;
mod withheld;
mod xrc;

pub use access::Access;
pub use completion::{Completion, CompletionOp, NetworkHeader, Status};
pub use cq::{Armed, Moderation};
pub use device::Engine;
pub use error::EngineError;
pub use event::Event;
pub use ids::{CqId, PdId, QpNum, SrqId, XrcdId};
pub use keys::{Binding, Region, WindowKind};
pub(crate) use management::management_frame;
pub use management::{MANAGEMENT_LEN, ManagementDatagram};
pub use memory::{Atomic, HostRange, Memory, Shared};
pub(crate) use packet::{Outgoing, Packet};
pub use path::Path;
pub use psn::Psn;
pub(crate) use qp::transition;
pub use qp::{
    AttributeMask, Capacity, MAX_RD_ATOMIC, MAX_RDMA, QpAttributes, QpInit, QpKind, State,
};
pub use request::{Destination, Payload, Placement, RecvRequest, Remote, SendOp, SendRequest, Sge};
