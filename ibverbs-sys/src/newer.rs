//! Types and values newer than rdma-core 39, for builds with older headers.
//!
//! Each is declared only if the headers lack it, so the functions in [`late`](crate::late) have the same signature in
//! every build. With the headers of rdma-core 65 the file is not compiled.

/// Declares an enum as bindgen does: an integer with named values.
macro_rules! enumeration {
    ($(#[$doc:meta])* $name:ident { $($value:ident = $number:expr;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(
            /// The value in C.
            pub core::ffi::c_uint,
        );

        values! { $name { $($value = $number;)* } }
    };
}

/// Adds values to an enum of the headers.
macro_rules! values {
    ($name:ident { $($value:ident = $number:expr;)* }) => {
        impl $name {$(
            #[doc = concat!("`", stringify!($value), "`")]
            pub const $value: Self = Self($number);
        )*}
    };
}

/// rdma-core 44.
#[cfg(not(ibv_atomic_write))]
mod atomic_write {
    use crate::{ibv_qp_create_send_ops_flags, ibv_wc_opcode, ibv_wr_opcode};

    values! { ibv_wr_opcode { IBV_WR_ATOMIC_WRITE = 15; } }
    values! { ibv_wc_opcode { IBV_WC_ATOMIC_WRITE = 9; } }
    values! { ibv_qp_create_send_ops_flags { IBV_QP_EX_WITH_ATOMIC_WRITE = 1 << 12; } }
}

/// rdma-core 45.
#[cfg(not(ibv_flush))]
mod flush {
    use crate::{ibv_access_flags, ibv_qp_create_send_ops_flags, ibv_wc_opcode, ibv_wr_opcode};

    values! { ibv_wr_opcode { IBV_WR_FLUSH = 14; } }
    values! { ibv_wc_opcode { IBV_WC_FLUSH = 8; } }
    values! { ibv_qp_create_send_ops_flags { IBV_QP_EX_WITH_FLUSH = 1 << 11; } }
    values! { ibv_access_flags {
        IBV_ACCESS_FLUSH_GLOBAL = 1 << 8;
        IBV_ACCESS_FLUSH_PERSISTENT = 1 << 9;
    } }

    enumeration! {
        /// Placement of flushed data.
        ibv_placement_type {
            IBV_FLUSH_GLOBAL = 1 << 0;
            IBV_FLUSH_PERSISTENT = 1 << 1;
        }
    }
    enumeration! {
        /// Selectivity of a flush: a range or a whole memory region.
        ibv_selectivity_level {
            IBV_FLUSH_RANGE = 0;
            IBV_FLUSH_MR = 1;
        }
    }
}
#[cfg(not(ibv_flush))]
pub use flush::*;

/// rdma-core 46.
#[cfg(not(ibv_data_in_order_caps))]
mod data_in_order {
    enumeration! {
        /// Flags of [`ibv_query_qp_data_in_order`](crate::ibv_query_qp_data_in_order).
        ibv_query_qp_data_in_order_flags {
            IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS = 1 << 0;
        }
    }
    enumeration! {
        /// Ordering guarantees of a queue pair.
        ibv_query_qp_data_in_order_caps {
            IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG = 1 << 0;
            IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES = 1 << 1;
        }
    }
}
#[cfg(not(ibv_data_in_order_caps))]
pub use data_in_order::*;

/// rdma-core 49.
#[cfg(not(ibv_active_speed_ex))]
mod xdr {
    use crate::ibv_port_cap_flags2;

    values! { ibv_port_cap_flags2 { IBV_PORT_LINK_SPEED_XDR_SUP = 1 << 12; } }
}

/// rdma-core 58.
#[cfg(not(ibv_odp_flush))]
mod odp {
    use crate::ibv_odp_transport_cap_bits;

    values! { ibv_odp_transport_cap_bits {
        IBV_ODP_SUPPORT_FLUSH = 1 << 6;
        IBV_ODP_SUPPORT_ATOMIC_WRITE = 1 << 7;
    } }
}

/// rdma-core 59.
#[cfg(not(ibv_reg_mr_ex))]
mod mr_ex {
    use core::ffi::{c_int, c_void};

    enumeration! {
        /// Mask of the valid fields of [`ibv_mr_init_attr`].
        ibv_mr_init_attr_mask {
            IBV_REG_MR_MASK_IOVA = 1 << 0;
            IBV_REG_MR_MASK_ADDR = 1 << 1;
            IBV_REG_MR_MASK_FD = 1 << 2;
            IBV_REG_MR_MASK_FD_OFFSET = 1 << 3;
            IBV_REG_MR_MASK_DMAH = 1 << 4;
        }
    }

    /// Attributes for [`ibv_reg_mr_ex`](crate::late::ibv_reg_mr_ex).
    #[derive(Clone, Copy, Debug)]
    #[repr(C)]
    pub struct ibv_mr_init_attr {
        /// Length in bytes.
        pub length: usize,
        /// Access rights: `ibv_access_flags`.
        pub access: c_int,
        /// Valid fields: [`ibv_mr_init_attr_mask`].
        pub comp_mask: u64,
        /// Address for the device.
        pub iova: u64,
        /// Address in this process.
        pub addr: *mut c_void,
        /// A dma-buf file descriptor.
        pub fd: c_int,
        /// Offset in the dma-buf.
        pub fd_offset: u64,
        /// DMA handle with access hints.
        pub dmah: *mut crate::ibv_dmah,
        /// Buffer allocated by the provider.
        pub buf: *mut crate::ibv_buf,
    }

    #[cfg(target_pointer_width = "64")]
    const _: () = assert!(size_of::<ibv_mr_init_attr>() == 72);
}
#[cfg(not(ibv_reg_mr_ex))]
pub use mr_ex::*;

/// rdma-core 59.
#[cfg(not(ibv_dmah))]
mod dmah {
    use crate::ibv_context;

    /// DMA handle: hints about a device's memory accesses, for the processor's cache.
    #[derive(Debug)]
    #[repr(C)]
    pub struct ibv_dmah {
        /// The device's context.
        pub context: *mut ibv_context,
    }

    enumeration! {
        /// Mask of the valid fields of [`ibv_dmah_init_attr`].
        ibv_dmah_init_attr_mask {
            IBV_DMAH_INIT_ATTR_MASK_CPU_ID = 1 << 0;
            IBV_DMAH_INIT_ATTR_MASK_PH = 1 << 1;
            IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE = 1 << 2;
        }
    }
    enumeration! {
        /// Kind of memory accessed: volatile or persistent.
        ibv_tph_mem_type {
            IBV_TPH_MEM_TYPE_VM = 0;
            IBV_TPH_MEM_TYPE_PM = 1;
        }
    }

    /// Attributes for [`ibv_alloc_dmah`](crate::late::ibv_alloc_dmah).
    #[derive(Clone, Copy, Debug)]
    #[repr(C)]
    pub struct ibv_dmah_init_attr {
        /// Valid fields: [`ibv_dmah_init_attr_mask`].
        pub comp_mask: u32,
        /// Processor whose cache is the target.
        pub cpu_id: u32,
        /// TLP processing hint.
        pub ph: u8,
        /// Memory type: [`ibv_tph_mem_type`].
        pub tph_mem_type: u8,
    }

    const _: () = assert!(size_of::<ibv_dmah_init_attr>() == 12);
}
#[cfg(not(ibv_dmah))]
pub use dmah::*;

/// rdma-core 60.
#[cfg(not(ibv_data_in_order_device))]
mod data_in_order_device {
    use crate::ibv_query_qp_data_in_order_flags;

    values! { ibv_query_qp_data_in_order_flags {
        IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY = 1 << 1;
    } }
}

/// rdma-core 62.
#[cfg(not(ibv_query_port_speed))]
mod port_speed {
    use crate::ibv_event_type;

    values! { ibv_event_type { IBV_EVENT_DEVICE_SPEED_CHANGE = 20; } }
}

/// rdma-core 64.
#[cfg(not(ibv_buf))]
mod buf {
    use crate::{ibv_mr_init_attr_mask, ibv_parent_domain_init_attr_mask};

    /// Opaque buffer allocated by the provider.
    #[derive(Debug)]
    #[repr(C)]
    pub struct ibv_buf {
        _unused: [u8; 0],
    }

    values! { ibv_mr_init_attr_mask { IBV_REG_MR_MASK_BUF = 1 << 5; } }
    values! { ibv_parent_domain_init_attr_mask {
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC = 1 << 2;
    } }

    /// A flag of `ibv_device_attr_ex::device_cap_flags_ex`: DMA goes through bounce buffers.
    pub const IBV_DEVICE_CC_DMA_BOUNCE: u64 = 1 << 41;
}
#[cfg(not(ibv_buf))]
pub use buf::*;

/// rdma-core 65.
mod comp_cntr {
    use crate::ibv_context;

    enumeration! {
        /// Events counted by a completion counter attached to a queue pair.
        ibv_qp_attach_comp_cntr_op {
            IBV_QP_ATTACH_COMP_CNTR_OP_SEND = 1 << 0;
            IBV_QP_ATTACH_COMP_CNTR_OP_RECV = 1 << 1;
            IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ = 1 << 2;
            IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ = 1 << 3;
            IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE = 1 << 4;
            IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE = 1 << 5;
        }
    }
    enumeration! {
        /// Unit of a completion counter.
        ibv_comp_cntr_type {
            IBV_COMP_CNTR_TYPE_WRS = 0;
            IBV_COMP_CNTR_TYPE_BYTES = 1;
        }
    }

    /// Completion counter capabilities of a device.
    #[derive(Clone, Copy, Debug)]
    #[repr(C)]
    pub struct ibv_comp_cntr_caps {
        /// Maximum value of a counter.
        pub max_value: u64,
        /// Maximum number of counters.
        pub max_counters: u32,
        /// Supported events: [`ibv_qp_attach_comp_cntr_op`].
        pub supported_qp_attach_ops: u32,
    }

    /// Completion counter.
    #[derive(Debug)]
    #[repr(C)]
    pub struct ibv_comp_cntr {
        /// The device's context.
        pub context: *mut ibv_context,
        /// The kernel's handle.
        pub handle: u32,
    }

    /// Attributes for [`ibv_create_comp_cntr`](crate::late::ibv_create_comp_cntr).
    #[derive(Clone, Copy, Debug)]
    #[repr(C)]
    pub struct ibv_comp_cntr_init_attr {
        /// Must be 0: no bits are defined.
        pub comp_mask: u32,
        /// Unit of the counter.
        pub type_: ibv_comp_cntr_type,
        /// Must be 0: no bits are defined.
        pub flags: u32,
    }

    /// Events to count on a queue pair.
    #[derive(Clone, Copy, Debug)]
    #[repr(C)]
    pub struct ibv_qp_attach_comp_cntr_attr {
        /// Must be 0: no bits are defined.
        pub comp_mask: u32,
        /// Counted events: [`ibv_qp_attach_comp_cntr_op`].
        pub op_mask: u32,
    }

    const _: () = {
        assert!(size_of::<ibv_comp_cntr_caps>() == 16);
        assert!(size_of::<ibv_comp_cntr_init_attr>() == 12);
        assert!(size_of::<ibv_qp_attach_comp_cntr_attr>() == 8);
    };
}
pub use comp_cntr::*;
