//! Phases of identifiers owned by the program, as types.

use crate::phase::Phase;

mod sealed {
    pub trait Sealed {}
}

/// A phase with the identifier owned by the program.
pub trait IdPhase: sealed::Sealed + 'static {
    /// Name of the phase.
    const NAME: &'static str;
    #[doc(hidden)]
    const PHASE: PhaseTag;
}

/// A phase with a known device.
pub trait HasDevice: IdPhase {}

/// The phase in the state machine.
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
    /// Created, or bound to a local address.
    Idle;
    /// The peer's address and the device are resolved.
    AddrResolved;
    /// The route to the peer is resolved: ready to connect.
    RouteResolved;
    /// The peer has accepted: ready to establish the connection.
    Responded;
    /// Listening for connection requests.
    Listening;
    /// A peer's connection request, to be accepted or rejected.
    Requested;
    /// One end of an established connection.
    Connected;
    /// The peer's datagram queue pair is known.
    ServiceResolved;
    /// The peer has been sent the address of the local datagram queue pair.
    Answered;
    /// The connection has failed; the identifier can only be dropped.
    Closed;
}

impl HasDevice for AddrResolved {}
impl HasDevice for RouteResolved {}
impl HasDevice for Responded {}
impl HasDevice for Requested {}
impl HasDevice for Connected {}
impl HasDevice for ServiceResolved {}
impl HasDevice for Answered {}
