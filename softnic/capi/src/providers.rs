//! Functions for providers: libraries of vendors, such as libmlx5, that a program loads need them, and find no device.
//!
//! Functions are declared without the arguments of C, which the caller removes.

use std::{
    ffi::{c_int, c_uint, c_void},
    ptr,
    sync::atomic::AtomicBool,
};

use crate::set_errno;

/// Calls a macro with the names of functions for providers of rdma-core 65, by their results. Those of earlier releases are a part.
#[macro_export]
macro_rules! functions_for_providers {
    ($macro:ident! $($argument:tt)*) => {
        $macro! {
            $($argument)*
            ignored {
                __verbs_log
                ibv_dmabuf_heap_destroy
                ibv_dmabuf_heap_free
                verbs_init_cq
                verbs_set_ops
                verbs_uninit_context
            }
            without_object {
                _verbs_init_and_alloc_context
                ibv_dmabuf_heap_alloc
                ibv_dmabuf_heap_cc_shared_init
                verbs_open_device
            }
            failing {
                execute_ioctl
                ibv_cmd_advise_mr
                ibv_cmd_alloc_dm
                ibv_cmd_alloc_dmah
                ibv_cmd_alloc_mw
                ibv_cmd_alloc_pd
                ibv_cmd_attach_mcast
                ibv_cmd_close_xrcd
                ibv_cmd_create_ah
                ibv_cmd_create_comp_cntr
                ibv_cmd_create_counters
                ibv_cmd_create_cq
                ibv_cmd_create_cq_ex
                ibv_cmd_create_cq_ex2
                ibv_cmd_create_flow
                ibv_cmd_create_flow_action_esp
                ibv_cmd_create_qp
                ibv_cmd_create_qp_ex
                ibv_cmd_create_qp_ex2
                ibv_cmd_create_rwq_ind_table
                ibv_cmd_create_srq
                ibv_cmd_create_srq_ex
                ibv_cmd_create_wq
                ibv_cmd_dealloc_mw
                ibv_cmd_dealloc_pd
                ibv_cmd_dereg_mr
                ibv_cmd_destroy_ah
                ibv_cmd_destroy_comp_cntr
                ibv_cmd_destroy_counters
                ibv_cmd_destroy_cq
                ibv_cmd_destroy_flow
                ibv_cmd_destroy_flow_action
                ibv_cmd_destroy_qp
                ibv_cmd_destroy_rwq_ind_table
                ibv_cmd_destroy_srq
                ibv_cmd_destroy_wq
                ibv_cmd_detach_mcast
                ibv_cmd_export_dmabuf_fd
                ibv_cmd_free_dm
                ibv_cmd_free_dmah
                ibv_cmd_get_context
                ibv_cmd_inc_comp_cntr
                ibv_cmd_inc_err_comp_cntr
                ibv_cmd_modify_cq
                ibv_cmd_modify_flow_action_esp
                ibv_cmd_modify_qp
                ibv_cmd_modify_qp_ex
                ibv_cmd_modify_srq
                ibv_cmd_modify_wq
                ibv_cmd_open_qp
                ibv_cmd_open_xrcd
                ibv_cmd_poll_cq
                ibv_cmd_post_recv
                ibv_cmd_post_send
                ibv_cmd_post_srq_recv
                ibv_cmd_qp_attach_comp_cntr
                ibv_cmd_query_comp_cntr_caps
                ibv_cmd_query_context
                ibv_cmd_query_device_any
                ibv_cmd_query_mr
                ibv_cmd_query_port
                ibv_cmd_query_port_speed
                ibv_cmd_query_qp
                ibv_cmd_query_srq
                ibv_cmd_read_comp_cntr
                ibv_cmd_read_counters
                ibv_cmd_read_err_comp_cntr
                ibv_cmd_reg_dm_mr
                ibv_cmd_reg_dmabuf_mr
                ibv_cmd_reg_mr
                ibv_cmd_reg_mr_ex
                ibv_cmd_req_notify_cq
                ibv_cmd_rereg_mr
                ibv_cmd_resize_cq
                ibv_cmd_set_comp_cntr
                ibv_cmd_set_err_comp_cntr
            }
        }
    };
}

/// Whether objects may be destroyed after a removal, a setting of libibverbs; without effect.
#[unsafe(no_mangle)]
static verbs_allow_disassociate_destroy: AtomicBool = AtomicBool::new(false);

#[unsafe(no_mangle)]
extern "C" fn verbs_register_driver_34() {}

#[unsafe(no_mangle)]
extern "C" fn __ioctl_final_num_attrs() -> c_uint {
    0
}

/// Declares functions without effect, functions that return null with `errno` set, and functions that return the error number.
macro_rules! declare {
    (ignored { $($ignored:ident)* } without_object { $($object:ident)* } failing { $($failing:ident)* }) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $ignored() {}
        )*
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $object() -> *mut c_void {
                set_errno(libc::EOPNOTSUPP);
                ptr::null_mut()
            }
        )*
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $failing() -> c_int {
                libc::EOPNOTSUPP
            }
        )*
    };
}

functions_for_providers! { declare! }
