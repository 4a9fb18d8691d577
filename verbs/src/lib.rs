//! Safe RDMA verbs: typed objects, and posting that is safe at the cost of C.
mod context;
mod cq;
mod device;
pub mod error;
pub mod fd;
mod mr;
mod pd;
mod qp;
pub mod work;
mod wr_id;

pub use context::Context;
pub use cq::{
    CompletionChannel, CompletionQueue, CompletionQueueBuilder, Completions, CqHandle, CqKey,
    Notify, WcError, WcOpcode, WcStatus, WorkCompletion,
};
pub use device::{Device, DeviceList, Guid, devices};
pub use error::{Error, Refused, Result};
pub use mr::{Buf, SharedBuf};
pub use pd::ProtectionDomain;
pub use qp::{
    Attributes, CanPostReceive, Completed, Completion, Connected, Init, QueuePair,
    QueuePairBuilder, Rc, ReceiveQueue, Reset, Rtr, Rts, SendQueue, State, Transport, Uc, Ud,
};
pub use work::With;
pub use wr_id::QpId;

/// What can be posted to a send queue.
pub mod op {
    pub use crate::qp::{Send, SendRequest};
}
