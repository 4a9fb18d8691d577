//! The states of a queue pair, as types.
//!
//! ```text
//! Reset ──to_init──▶ Init ──to_rtr──▶ Rtr ──to_rts──▶ Rts
//!                     post receives    receives arrive   post sends
//! ```
//!
//! A transition consumes the queue pair and returns it in the next state, or gives it back with the
//! error. What the device or the peer changes is not a type: a queue pair that has failed keeps its
//! type, and what is posted to it comes back with a completion that says so.

use std::fmt::Debug;

use ibverbs_sys::ibv_qp_state;

mod sealed {
    pub trait Sealed {}
}

/// A state of a queue pair, as the caller has brought it about.
pub trait State: sealed::Sealed + Debug + Send + Sync + 'static {
    /// The number C knows the state by.
    #[doc(hidden)]
    const RAW: ibv_qp_state;
    /// The name of the state.
    const NAME: &'static str;
}

/// A state in which receives can be posted: every one but [`Reset`].
pub trait CanPostReceive: State {}

macro_rules! states {
    ($($(#[$doc:meta])* $name:ident = $raw:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(());

        impl sealed::Sealed for $name {}

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
}

impl CanPostReceive for Init {}
impl CanPostReceive for Rtr {}
impl CanPostReceive for Rts {}
