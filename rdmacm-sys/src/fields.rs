//! Accessors for fields of C's anonymous unions, for a newer field, and `zeroed()`, the initial value of structs filled
//! in for a call.

use crate::{
    ib_addr, rdma_addr, rdma_addrinfo, rdma_cm_event, rdma_cm_join_mc_attr_ex, rdma_conn_param,
    rdma_ud_param, sockaddr_ib,
};
use core::mem::MaybeUninit;
use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

macro_rules! addresses {
    ($($name:ident -> $type:ident in $union:ident;)*) => {
        impl rdma_addr {$(
            #[doc = concat!("Points to `", stringify!($name), "`, of the address it can be.")]
            #[inline]
            #[must_use]
            pub const fn $name(&self) -> *const $type {
                (&raw const self.$union).cast()
            }
        )*}
    };
}

addresses! {
    src_addr -> sockaddr in __bindgen_anon_1;
    src_sin -> sockaddr_in in __bindgen_anon_1;
    src_sin6 -> sockaddr_in6 in __bindgen_anon_1;
    src_storage -> sockaddr_storage in __bindgen_anon_1;
    dst_addr -> sockaddr in __bindgen_anon_2;
    dst_sin -> sockaddr_in in __bindgen_anon_2;
    dst_sin6 -> sockaddr_in6 in __bindgen_anon_2;
    dst_storage -> sockaddr_storage in __bindgen_anon_2;
}

impl rdma_cm_event {
    /// Pointer to `param.arg`, the argument of `rdma_write_cm_event`. Valid for `RDMA_CM_EVENT_USER`, since
    /// rdma-core 60.
    #[inline]
    #[must_use]
    pub const fn arg(&self) -> *const u64 {
        (&raw const self.param).cast()
    }
}

macro_rules! zeroed {
    ($($name:ident)*) => {$(
        impl $name {
            /// All fields zero or NULL.
            #[inline]
            #[must_use]
            pub const fn zeroed() -> Self {
                // SAFETY: the fields are integers, raw pointers, and structs and unions of them;
                // zero is a value of each.
                unsafe { MaybeUninit::zeroed().assume_init() }
            }
        }
    )*};
}

zeroed! {
    ib_addr rdma_addrinfo rdma_cm_join_mc_attr_ex rdma_conn_param rdma_ud_param sockaddr_ib
}
