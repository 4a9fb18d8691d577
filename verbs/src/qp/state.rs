//! The states of a queue pair, as types.
//!
//! ```text
//! Reset ──to_init──▶ Init ──to_rtr──▶ Rtr ──to_rts──▶ Rts ──to_sqd──▶ Sqd
//!                     post receives    receives arrive   post sends       sends wait
//!                                                        ▲───────to_rts───┘
//! ```
//!
//! A transition consumes the queue pair and returns it in the next state, or in the error. Changes
//! by the device or the peer are not types: a failed queue pair keeps its type, and requests posted
//! later return with a completion of the failure.

use std::fmt::Debug;

use ibverbs_sys::ibv_qp_state;

use crate::named::named;

mod sealed {
    pub trait SealedState {}
}

/// A state of a queue pair, as set by the caller.
pub trait State: sealed::SealedState + Debug + Send + Sync + 'static {
    /// The number C knows the state by.
    #[doc(hidden)]
    const RAW: ibv_qp_state;
    /// The name of the state.
    const NAME: &'static str;
}

/// A state in which receives can be posted: every state but [`Reset`].
#[diagnostic::on_unimplemented(
    message = "receives cannot be posted in the state `{Self}`",
    label = "this state takes no receives",
    note = "call `to_init` first"
)]
pub trait CanPostReceive: State {}

/// A state in which requests can be posted: [`Rts`], and [`Sqd`], where they wait.
#[diagnostic::on_unimplemented(
    message = "requests cannot be posted in the state `{Self}`",
    label = "this state takes no requests",
    note = "connect the queue pair first: `to_init`, `to_rtr`, `to_rts`, or an endpoint of `cm`"
)]
pub trait CanPostSend: CanPostReceive {}

/// A state in which a [counter](crate::completion_counter::CompletionCounter) can be attached:
/// [`Reset`] and [`Init`].
pub trait CanAttachCounter: State {}

macro_rules! states {
    ($($(#[$doc:meta])* $name:ident = $raw:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(());

        impl sealed::SealedState for $name {}

        impl State for $name {
            const RAW: ibv_qp_state = ibv_qp_state::$raw;
            const NAME: &'static str = stringify!($name);
        }
    )*};
}

states! {
    /// Just made: nothing can be posted.
    Reset = IBV_QPS_RESET;
    /// Initialised: receives can be posted, and nothing arrives yet.
    Init = IBV_QPS_INIT;
    /// Ready to receive: posted receives are filled.
    Rtr = IBV_QPS_RTR;
    /// Ready to send: everything can be posted.
    Rts = IBV_QPS_RTS;
    /// Send queue drained, or being drained: requests in progress are finished, and the others
    /// wait. The path can be changed meanwhile.
    Sqd = IBV_QPS_SQD;
}

impl CanAttachCounter for Reset {}
impl CanAttachCounter for Init {}
impl CanPostReceive for Init {}
impl CanPostReceive for Rtr {}
impl CanPostReceive for Rts {}
impl CanPostReceive for Sqd {}
impl CanPostSend for Rts {}
impl CanPostSend for Sqd {}

named! {
    /// `ibv_qp_state`—The state of a queue pair as reported by the device, possibly changed by the
    /// device itself.
    #[doc(alias = "ibv_qp_state")]
    QpState(u32) {
        /// The initial state.
        #[doc(alias = "IBV_QPS_RESET")]
        RESET = ibv_qp_state::IBV_QPS_RESET.0;
        /// Initialised.
        #[doc(alias = "IBV_QPS_INIT")]
        INIT = ibv_qp_state::IBV_QPS_INIT.0;
        /// Ready to receive.
        #[doc(alias = "IBV_QPS_RTR")]
        RTR = ibv_qp_state::IBV_QPS_RTR.0;
        /// Ready to send.
        #[doc(alias = "IBV_QPS_RTS")]
        RTS = ibv_qp_state::IBV_QPS_RTS.0;
        /// The send queue is drained, or being drained.
        #[doc(alias = "IBV_QPS_SQD")]
        SQD = ibv_qp_state::IBV_QPS_SQD.0;
        /// The send queue has failed, on an unreliable transport. Receives still work, and
        /// [`QueuePair::modify`](crate::QueuePair::modify) to [`Rts`] resumes sending.
        #[doc(alias = "IBV_QPS_SQE")]
        SQE = ibv_qp_state::IBV_QPS_SQE.0;
        /// The queue pair has failed: all work returns with the status
        /// [`WR_FLUSH_ERR`](crate::WcStatus::WR_FLUSH_ERR).
        #[doc(alias = "IBV_QPS_ERR")]
        ERR = ibv_qp_state::IBV_QPS_ERR.0;
        /// The device does not know.
        #[doc(alias = "IBV_QPS_UNKNOWN")]
        UNKNOWN = ibv_qp_state::IBV_QPS_UNKNOWN.0;
    }
}
