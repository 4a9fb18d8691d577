//! The transports, as types.

use std::fmt::Debug;

use ibverbs_sys::ibv_qp_type;

mod sealed {
    pub trait Sealed {}
}

/// A transport service: what a queue pair guarantees, and which requests it carries.
pub trait Transport: sealed::Sealed + Debug + Send + Sync + 'static {
    /// The number C knows the transport by.
    #[doc(hidden)]
    const RAW: ibv_qp_type;
    /// The name of the transport.
    const NAME: &'static str;
}

/// A transport between two queue pairs that know each other.
pub trait Connected: Transport {}

/// A transport that says whether a message has arrived.
pub trait Reliable: Connected {}

/// A transport that sends each message to an address of its own.
pub trait Datagram: Transport {}

macro_rules! transports {
    ($($(#[$doc:meta])* $name:ident = $raw:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(());

        impl sealed::Sealed for $name {}

        impl Transport for $name {
            const RAW: ibv_qp_type = ibv_qp_type::$raw;
            const NAME: &'static str = stringify!($name);
        }
    )*};
}

transports! {
    /// Reliable connection: messages arrive once and in order, or the connection fails. Also the
    /// only transport of iWARP.
    Rc = IBV_QPT_RC;
    /// Unreliable connection: messages arrive in order, or not at all.
    Uc = IBV_QPT_UC;
    /// Unreliable datagram: each message is one packet, addressed on its own.
    Ud = IBV_QPT_UD;
}

impl Connected for Rc {}
impl Connected for Uc {}
impl Reliable for Rc {}
impl Datagram for Ud {}
