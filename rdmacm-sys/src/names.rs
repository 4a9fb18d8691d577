//! Constants of anonymous enums in `rdma_cma.h`, `rsocket.h` and `ib.h`, and constants newer than rdma-core 39.
//!
//! Each constant has the type required at its place of use.

use core::ffi::c_int;

/// Maximum of `rdma_conn_param::responder_resources`.
pub const RDMA_MAX_RESP_RES: u8 = 0xff;
/// Maximum of `rdma_conn_param::initiator_depth`.
pub const RDMA_MAX_INIT_DEPTH: u8 = 0xff;

/// Level of [`rdma_set_option`](crate::rdma_set_option): options of the identifier.
pub const RDMA_OPTION_ID: c_int = 0;
/// Level of [`rdma_set_option`](crate::rdma_set_option): options of InfiniBand.
pub const RDMA_OPTION_IB: c_int = 1;

/// Identifier option, `u8`: type of service.
pub const RDMA_OPTION_ID_TOS: c_int = 0;
/// Identifier option, `c_int`: permit reuse of the local address.
pub const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
/// Identifier option, `c_int`: an IPv6 listener does not accept IPv4.
pub const RDMA_OPTION_ID_AFONLY: c_int = 2;
/// Identifier option, `u8`: local ACK timeout of the queue pair, encoded as 4.096 µs · 2ⁿ.
pub const RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;

/// InfiniBand option, an array of `ibv_path_data`: paths to use.
pub const RDMA_OPTION_IB_PATH: c_int = 1;

/// rsocket option at the level [`SOL_RDMA`](crate::SOL_RDMA): size of the send queue.
pub const RDMA_SQSIZE: c_int = 0;
/// rsocket option: size of the receive queue.
pub const RDMA_RQSIZE: c_int = 1;
/// rsocket option: maximum size of inline data in bytes.
pub const RDMA_INLINE: c_int = 2;
/// rsocket option: maximum number of mapped regions.
pub const RDMA_IOMAPSIZE: c_int = 3;
/// rsocket option: paths to use.
pub const RDMA_ROUTE: c_int = 4;

/// Address family of `sockaddr_ib`.
pub const AF_IB: c_int = 27;
/// Protocol family of `sockaddr_ib`.
pub const PF_IB: c_int = AF_IB;

/// rdma-core 60.
#[cfg(not(rdmacm_addrinfo_async))]
mod addrinfo_async {
    use crate::rdma_cm_event_type;
    use core::ffi::c_int;

    /// Flag of `rdma_addrinfo::ai_flags`: resolve with the subnet's service records.
    pub const RAI_SA: c_int = 0x10;
    /// Flag of `rdma_addrinfo::ai_flags`: resolve with DNS.
    pub const RAI_DNS: c_int = 0x20;

    impl rdma_cm_event_type {
        /// `rdma_resolve_addrinfo` succeeded.
        pub const RDMA_CM_EVENT_ADDRINFO_RESOLVED: Self = Self(16);
        /// `rdma_resolve_addrinfo` failed.
        pub const RDMA_CM_EVENT_ADDRINFO_ERROR: Self = Self(17);
        /// Event written by `rdma_write_cm_event`.
        pub const RDMA_CM_EVENT_USER: Self = Self(18);
        /// Internal event of the library.
        pub const RDMA_CM_EVENT_INTERNAL: Self = Self(19);
    }
}
#[cfg(not(rdmacm_addrinfo_async))]
pub use addrinfo_async::*;
