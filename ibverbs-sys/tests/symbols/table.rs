//! Addresses of the functions of rdma-core 44, and of the crate's own functions from newer releases. A function
//! missing from the crate fails to compile, a function missing from the library fails to link.

macro_rules! table {
    ($($name:ident)*) => {
        &[$((stringify!($name), ibverbs_sys::$name as *const ())),*]
    };
}

pub(crate) const TABLE: &[(&str, *const ())] = table! {
    ibv_wc_status_str ibv_rate_to_mult mult_to_ibv_rate ibv_rate_to_mbps mbps_to_ibv_rate
    ibv_qp_to_qp_ex ibv_wr_atomic_cmp_swp ibv_wr_atomic_fetch_add ibv_wr_bind_mw
    ibv_wr_local_inv ibv_wr_rdma_read ibv_wr_rdma_write ibv_wr_rdma_write_imm ibv_wr_send
    ibv_wr_send_imm ibv_wr_send_inv ibv_wr_send_tso ibv_wr_set_ud_addr ibv_wr_set_xrc_srqn
    ibv_wr_set_inline_data ibv_wr_set_inline_data_list ibv_wr_set_sge ibv_wr_set_sge_list
    ibv_wr_start ibv_wr_complete ibv_wr_abort ibv_wr_atomic_write ibv_cq_ex_to_cq ibv_start_poll
    ibv_next_poll ibv_end_poll ibv_wc_read_opcode ibv_wc_read_vendor_err ibv_wc_read_byte_len
    ibv_wc_read_imm_data ibv_wc_read_invalidated_rkey ibv_wc_read_qp_num ibv_wc_read_src_qp
    ibv_wc_read_wc_flags ibv_wc_read_slid ibv_wc_read_sl ibv_wc_read_dlid_path_bits
    ibv_wc_read_completion_ts ibv_wc_read_completion_wallclock_ns ibv_wc_read_cvlan
    ibv_wc_read_flow_tag ibv_wc_read_tm_info ibv_post_wq_recv verbs_get_ctx ibv_get_device_list
    ibv_free_device_list ibv_get_device_name ibv_get_device_index ibv_get_device_guid
    ibv_open_device ibv_close_device ibv_import_device ibv_import_pd ibv_unimport_pd
    ibv_import_mr ibv_unimport_mr ibv_import_dm ibv_unimport_dm ibv_get_async_event
    ibv_ack_async_event ibv_query_device ibv_query_port ___ibv_query_port ibv_query_gid
    _ibv_query_gid_ex ibv_query_gid_ex _ibv_query_gid_table ibv_query_gid_table ibv_query_pkey
    ibv_get_pkey_index ibv_alloc_pd ibv_dealloc_pd ibv_create_flow ibv_destroy_flow
    ibv_create_flow_action_esp ibv_modify_flow_action_esp ibv_destroy_flow_action ibv_open_xrcd
    ibv_close_xrcd ibv_reg_mr_iova2 ibv_reg_mr __ibv_reg_mr ibv_reg_mr_iova __ibv_reg_mr_iova
    ibv_reg_dmabuf_mr ibv_rereg_mr ibv_dereg_mr ibv_alloc_mw ibv_dealloc_mw ibv_inc_rkey
    ibv_bind_mw ibv_create_comp_channel ibv_destroy_comp_channel ibv_advise_mr ibv_alloc_dm
    ibv_free_dm ibv_memcpy_to_dm ibv_memcpy_from_dm ibv_alloc_null_mr ibv_reg_dm_mr
    ibv_create_cq ibv_create_cq_ex ibv_resize_cq ibv_destroy_cq ibv_get_cq_event
    ibv_ack_cq_events ibv_poll_cq ibv_req_notify_cq ibv_modify_cq ibv_create_srq
    ibv_create_srq_ex ibv_modify_srq ibv_query_srq ibv_get_srq_num ibv_destroy_srq
    ibv_post_srq_recv ibv_post_srq_ops ibv_create_qp ibv_create_qp_ex ibv_alloc_td
    ibv_dealloc_td ibv_alloc_parent_domain ibv_query_rt_values_ex ibv_query_device_ex
    ibv_open_qp ibv_modify_qp ibv_modify_qp_rate_limit ibv_query_qp_data_in_order ibv_query_qp
    ibv_destroy_qp ibv_create_wq ibv_modify_wq ibv_destroy_wq ibv_create_rwq_ind_table
    ibv_destroy_rwq_ind_table ibv_post_send ibv_post_recv ibv_create_ah ibv_init_ah_from_wc
    ibv_create_ah_from_wc ibv_destroy_ah ibv_attach_mcast ibv_detach_mcast ibv_fork_init
    ibv_is_fork_initialized ibv_node_type_str ibv_port_state_str ibv_event_type_str
    ibv_resolve_eth_l2_from_gid ibv_is_qpt_supported ibv_create_counters ibv_destroy_counters
    ibv_attach_counters_point_flow ibv_read_counters ibv_flow_label_to_udp_sport ibv_set_ece
    ibv_query_ece
    ibv_wr_flush ibv_query_comp_cntr_caps ibv_wr_opcode_str
};
