//! The static inlines in Rust behave like the C originals, on an in-memory provider: same calls with the same
//! arguments, same return value, same errno.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a test calls C and Rust side by side"
)]

#[path = "../compiler/mod.rs"]
mod compiler;

mod dispatch;
mod library;
mod original;
mod own;
mod sample;
mod world;

const INCLUDE: &str = env!("IBVERBS_INCLUDE");
const HEADERS: &[&str] = &["infiniband/verbs.h"];

/// Functions with a C original.
const NAMES: &str = "
    verbs_get_ctx ibv_query_device_ex ibv_query_rt_values_ex ibv_is_qpt_supported ___ibv_query_port
    ibv_query_gid_ex ibv_query_gid_table ibv_create_flow ibv_destroy_flow
    ibv_create_flow_action_esp ibv_modify_flow_action_esp ibv_destroy_flow_action ibv_open_xrcd
    ibv_close_xrcd __ibv_reg_mr __ibv_reg_mr_iova ibv_advise_mr ibv_alloc_null_mr ibv_alloc_mw
    ibv_dealloc_mw ibv_inc_rkey ibv_bind_mw ibv_alloc_dm ibv_free_dm ibv_memcpy_to_dm
    ibv_memcpy_from_dm ibv_reg_dm_mr ibv_create_cq_ex ibv_poll_cq ibv_req_notify_cq ibv_modify_cq
    ibv_cq_ex_to_cq ibv_start_poll ibv_next_poll ibv_end_poll ibv_wc_read_opcode
    ibv_wc_read_vendor_err ibv_wc_read_byte_len ibv_wc_read_imm_data ibv_wc_read_invalidated_rkey
    ibv_wc_read_qp_num ibv_wc_read_src_qp ibv_wc_read_wc_flags ibv_wc_read_slid ibv_wc_read_sl
    ibv_wc_read_dlid_path_bits ibv_wc_read_completion_ts ibv_wc_read_completion_wallclock_ns
    ibv_wc_read_cvlan ibv_wc_read_flow_tag ibv_wc_read_tm_info ibv_create_srq_ex ibv_get_srq_num
    ibv_post_srq_recv ibv_post_srq_ops ibv_create_qp_ex ibv_open_qp ibv_modify_qp_rate_limit
    ibv_post_send ibv_post_recv ibv_wr_atomic_cmp_swp ibv_wr_atomic_fetch_add ibv_wr_bind_mw
    ibv_wr_local_inv ibv_wr_rdma_read ibv_wr_rdma_write ibv_wr_rdma_write_imm ibv_wr_send
    ibv_wr_send_imm ibv_wr_send_inv ibv_wr_send_tso ibv_wr_set_ud_addr ibv_wr_set_xrc_srqn
    ibv_wr_set_inline_data ibv_wr_set_inline_data_list ibv_wr_set_sge ibv_wr_set_sge_list
    ibv_wr_start ibv_wr_complete ibv_wr_abort ibv_alloc_td ibv_dealloc_td ibv_alloc_parent_domain
    ibv_post_wq_recv ibv_create_wq ibv_modify_wq ibv_destroy_wq ibv_create_rwq_ind_table
    ibv_destroy_rwq_ind_table ibv_create_counters ibv_destroy_counters
    ibv_attach_counters_point_flow ibv_read_counters ibv_flow_label_to_udp_sport";

/// Functions with a C original only in newer headers.
const NEWER: &[&str] = &[
    #[cfg(ibv_atomic_write)]
    "ibv_wr_atomic_write",
    #[cfg(ibv_flush)]
    "ibv_wr_flush",
];
