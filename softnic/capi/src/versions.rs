//! Functions for providers under the versions of each rdma-core. A program or a vendor's library needs the version of its own
//! release.
//!
//! A version script gives each symbol one version, that of Debian 12. Here, each function has a symbol with each further
//! version, which jumps to the function.

use std::arch::global_asm;

/// The jump to a function.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    ($name:ident) => {
        concat!("jmp ", stringify!($name), "@PLT")
    };
}

/// The jump to a function.
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    ($name:ident) => {
        concat!("b ", stringify!($name))
    };
}

/// Defines functions with a version, and the setting `verbs_allow_disassociate_destroy`, which has no effect.
macro_rules! version {
    ($version:literal: $($name:ident)*) => {
        $(global_asm!(
            concat!(".globl ", stringify!($name), "_", $version),
            concat!(".type ", stringify!($name), "_", $version, ", %function"),
            concat!(stringify!($name), "_", $version, ":"),
            jump!($name),
            concat!(
                ".symver ", stringify!($name), "_", $version, ", ", stringify!($name), "@IBVERBS_PRIVATE_", $version,
            ),
        );)*
        global_asm!(
            concat!(".globl register_", $version),
            concat!(".type register_", $version, ", %function"),
            concat!("register_", $version, ":"),
            jump!(verbs_register_driver_34),
            concat!(".symver register_", $version, ", verbs_register_driver_", $version, "@IBVERBS_PRIVATE_", $version),
        );
        global_asm!(
            ".pushsection .bss",
            concat!(".globl allow_", $version),
            concat!(".type allow_", $version, ", %object"),
            concat!(".size allow_", $version, ", 1"),
            concat!("allow_", $version, ": .zero 1"),
            concat!(".symver allow_", $version, ", verbs_allow_disassociate_destroy@IBVERBS_PRIVATE_", $version),
            ".popsection",
        );
    };
}

/// Defines all functions of rdma-core 65 with versions. Those of earlier releases are a part.
macro_rules! versions {
    ($($version:literal)*) => {
        $(version! { $version:
            __ioctl_final_num_attrs
            __verbs_log
            _verbs_init_and_alloc_context
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
            ibv_dmabuf_heap_alloc
            ibv_dmabuf_heap_cc_shared_init
            ibv_dmabuf_heap_destroy
            ibv_dmabuf_heap_free
            ibv_query_gid_type
            ibv_read_ibdev_sysfs_file
            ibv_wr_opcode_str
            verbs_init_cq
            verbs_open_device
            verbs_set_ops
            verbs_uninit_context
        })*
    };
}

versions! { "57" "59" "64" "65" }
