//! Constants of enums without a name, of `rdma_cma.h`, `rsocket.h` and `ib.h`, and some that the
//! headers have only since a later release.
//!
//! A constant has the type of the place where it is used.

use core::ffi::c_int;

/// The most `rdma_conn_param::responder_resources`.
pub const RDMA_MAX_RESP_RES: u8 = 0xff;
/// The most `rdma_conn_param::initiator_depth`.
pub const RDMA_MAX_INIT_DEPTH: u8 = 0xff;

/// A level of [`rdma_set_option`](crate::rdma_set_option): options of the identifier.
pub const RDMA_OPTION_ID: c_int = 0;
/// A level of [`rdma_set_option`](crate::rdma_set_option): options of InfiniBand.
pub const RDMA_OPTION_IB: c_int = 1;

/// An option of the identifier, `u8`: the type of service.
pub const RDMA_OPTION_ID_TOS: c_int = 0;
/// An option of the identifier, `c_int`: may share its address.
pub const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
/// An option of the identifier, `c_int`: IPv6 does not include IPv4.
pub const RDMA_OPTION_ID_AFONLY: c_int = 2;
/// An option of the identifier, `u8`: the timeout of queue pairs.
pub const RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;

/// An option of InfiniBand, an array of `ibv_path_data`: the paths to use.
pub const RDMA_OPTION_IB_PATH: c_int = 1;

/// An option of rsockets at the level [`SOL_RDMA`](crate::SOL_RDMA): the send queue's size.
pub const RDMA_SQSIZE: c_int = 0;
/// An option of rsockets: the receive queue's size.
pub const RDMA_RQSIZE: c_int = 1;
/// An option of rsockets: how much data goes inline.
pub const RDMA_INLINE: c_int = 2;
/// An option of rsockets: how many regions may be mapped.
pub const RDMA_IOMAPSIZE: c_int = 3;
/// An option of rsockets: the paths.
pub const RDMA_ROUTE: c_int = 4;

/// The address family of `sockaddr_ib`.
pub const AF_IB: c_int = 27;
/// The protocol family of `sockaddr_ib`.
pub const PF_IB: c_int = AF_IB;

/// rdma-core 60.
#[cfg(not(rdmacm_addrinfo_async))]
mod addrinfo_async {
    use crate::rdma_cm_event_type;
    use core::ffi::c_int;

    /// A flag of `rdma_addrinfo::ai_flags`: resolve with the subnet's service records.
    pub const RAI_SA: c_int = 0x10;
    /// A flag of `rdma_addrinfo::ai_flags`: resolve with DNS.
    pub const RAI_DNS: c_int = 0x20;

    impl rdma_cm_event_type {
        /// `rdma_resolve_addrinfo` has resolved.
        pub const RDMA_CM_EVENT_ADDRINFO_RESOLVED: Self = Self(16);
        /// `rdma_resolve_addrinfo` has failed.
        pub const RDMA_CM_EVENT_ADDRINFO_ERROR: Self = Self(17);
        /// An event that a program wrote with `rdma_write_cm_event`.
        pub const RDMA_CM_EVENT_USER: Self = Self(18);
        /// An event of the library's own.
        pub const RDMA_CM_EVENT_INTERNAL: Self = Self(19);
    }
}
#[cfg(not(rdmacm_addrinfo_async))]
pub use addrinfo_async::*;
