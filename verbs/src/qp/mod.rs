//! Queue pairs: creation, transitions, and posting.
//!
//! | item | is |
//! |---|---|
//! | [`QueuePair`], [`QueuePairBuilder`] | a send queue and a receive queue |
//! | [`Reset`], [`Init`], [`Rtr`], [`Rts`], [`Sqd`] | its [`State`]s, as types; [`QpState`] as a value |
//! | [`Rc`], [`Uc`], [`Ud`] | its [`Transport`]s: reliable and unreliable connections, datagrams |
//! | [`XrcSend`], [`XrcRecv`], [`XrcReceiver`] | extended reliable connections |
//! | [`RawPacket`], [`VendorTransport`] | Ethernet frames; transports of a vendor |
//! | [`Attributes`], [`AlternatePath`], [`MigState`], [`Ece`] | parameters of a transition |
//! | [`Psn`], [`QpNum`], [`AckTimeout`], [`RetryCount`], [`RnrRetry`], [`RnrTimer`] | their numbers, checked at construction |
//! | [`SendQueue`], [`ReceiveQueue`] | the halves of a queue pair |
//! | [`QpHandle`] | its shareable part |
//! | [`QpId`], [`QpKey`], [`QpMap`] | its identity in completions; the program's key, and values, by identity |
//! | [`Batch`], [`RecvBatch`], [`ExtendedBatch`] | requests posted together |
//! | [`Completed`], [`Completion`], [`Failed`], [`Leftover`] | work returned |
//! | [`Explanation`] | a failed request, explained by the attributes of its queue pair |
//! | [`QpAttr`], [`QpCap`], [`QpFlags`], [`RateLimit`] | queried attributes, limits, options |
//! | [`Multicast`] | membership in a group |
//!
//! # References
//! [ibv_create_qp(3)](https://man7.org/linux/man-pages/man3/ibv_create_qp.3.html),
//! [ibv_create_qp_ex(3)](https://man7.org/linux/man-pages/man3/ibv_create_qp_ex.3.html),
//! [ibv_modify_qp(3)](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html),
//! [ibv_query_qp(3)](https://man7.org/linux/man-pages/man3/ibv_query_qp.3.html),
//! [ibv_post_send(3)](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html),
//! [ibv_post_recv(3)](https://man7.org/linux/man-pages/man3/ibv_post_recv.3.html)

mod attached;
mod attributes;
mod batch;
mod bind;
mod builder;
mod completion;
mod explain;
mod extended;
mod extended_batch;
mod flags;
#[cfg_attr(not(feature = "flight-recorder"), path = "no_flight_recorder.rs")]
mod flight_recorder;
mod handle;
pub(crate) mod inflight;
pub(crate) mod key;
mod legal;
mod limits;
mod map;
mod member;
mod modify;
mod multicast;
mod number;
mod pair;
mod query;
mod queues;
mod rate;
mod recv_batch;
pub(crate) mod refusal;
mod share;
mod signaling;
mod slots;
mod staging;
mod state;
mod table;
mod teardown;
mod transport;
mod tso;
pub(crate) mod unordered;
mod xrc_receiver;

pub use attributes::{AlternatePath, Attributes, MigState};
pub use batch::Batch;
pub use builder::QueuePairBuilder;
pub use completion::{Completion, Failed};
pub use explain::Explanation;
pub use extended_batch::ExtendedBatch;
pub use flags::QpFlags;
#[cfg(feature = "flight-recorder")]
pub use flight_recorder::FlightRecord;
pub use handle::QpHandle;
pub use key::QpKey;
pub use map::QpMap;
pub use multicast::Multicast;
pub use pair::{Completed, QueuePair};
pub use query::{QpAttr, QpCap, WrOpcode};
pub use queues::{ReceiveQueue, SendQueue};
pub use rate::RateLimit;
pub use recv_batch::RecvBatch;
pub use state::{
    CanAttachCounter, CanPostReceive, CanPostSend, Init, QpState, Reset, Rtr, Rts, Sqd, State,
};
pub use teardown::Leftover;
pub use transport::{
    Connected, Datagram, Partitioned, Queued, RawPacket, Rc, Reliable, Requester, Responder,
    Routed, Transport, Uc, Ud, VendorTransport, XrcRecv, XrcSend,
};
pub use xrc_receiver::XrcReceiver;

pub(crate) use member::Member;

pub use crate::{
    bounded::{AckTimeout, Psn, QpNum, RetryCount, RnrRetry, RnrTimer},
    ece::Ece,
    wr_id::QpId,
};
