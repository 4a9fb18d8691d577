//! The phases in which the program has an identifier, as types.

use crate::phase::Phase;

mod sealed {
    pub trait Sealed {}
}

/// A phase in which the program has an identifier.
pub trait IdPhase: sealed::Sealed + 'static {
    /// The name of the phase.
    const NAME: &'static str;
    #[doc(hidden)]
    const PHASE: PhaseTag;
}

/// A phase in which the device is known.
pub trait HasDevice: IdPhase {}

/// The phase as the state machine knows it.
#[derive(Debug)]
pub struct PhaseTag(pub(crate) Phase);

macro_rules! phases {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(());

        impl sealed::Sealed for $name {}

        impl IdPhase for $name {
            const NAME: &'static str = stringify!($name);
            const PHASE: PhaseTag = PhaseTag(Phase::$name);
        }
    )*};
}

phases! {
    /// Just made, or bound to a local address.
    Idle;
    /// The peer's address is resolved, and with it the device.
    AddrResolved;
    /// The way to the peer is known: ready to connect.
    RouteResolved;
    /// The peer has accepted: ready to establish the connection.
    Responded;
    /// Waiting for connection requests.
    Listening;
    /// A peer's connection request: to be accepted or rejected.
    Requested;
    /// One end of an established connection.
    Connected;
    /// A peer's queue pair for datagrams is known.
    ServiceResolved;
    /// A peer has been told of this side's queue pair for datagrams.
    Answered;
    /// Of no more use: the connection has failed.
    Closed;
}

impl HasDevice for AddrResolved {}
impl HasDevice for RouteResolved {}
impl HasDevice for Responded {}
impl HasDevice for Requested {}
impl HasDevice for Connected {}
impl HasDevice for ServiceResolved {}
impl HasDevice for Answered {}
