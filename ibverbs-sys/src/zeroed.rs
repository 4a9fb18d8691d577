//! `zeroed()`: initial value of structs filled in for a call, as `= {}` in C.
//!
//! Not `Default`, because an all-zero struct is rarely a valid argument.

use core::mem::MaybeUninit;

macro_rules! zeroed {
    ($($name:ident)*) => {$(
        impl crate::$name {
            /// All fields zero, NULL or `None`.
            #[inline]
            #[must_use]
            pub const fn zeroed() -> Self {
                // SAFETY: the fields are integers, raw pointers, optional functions, and structs
                // and unions of them; zero is a value of each.
                unsafe { MaybeUninit::zeroed().assume_init() }
            }
        }
    )*};
}

zeroed! {
    ibv_ah_attr ibv_alloc_dm_attr ibv_async_event
    ibv_comp_cntr_caps ibv_comp_cntr_init_attr ibv_counter_attach_attr ibv_counters_init_attr
    ibv_cq_init_attr_ex ibv_data_buf ibv_device_attr ibv_device_attr_ex ibv_dmah_init_attr ibv_ece
    ibv_flow_action_esp ibv_flow_action_esp_attr ibv_flow_action_esp_encap ibv_flow_attr
    ibv_flow_spec ibv_gid_entry ibv_global_route ibv_grh ibv_modify_cq_attr ibv_mr_init_attr ibv_mw_bind
    ibv_mw_bind_info ibv_ops_wr ibv_parent_domain_init_attr ibv_path_data ibv_path_record
    ibv_poll_cq_attr ibv_port_attr ibv_qp_attach_comp_cntr_attr ibv_qp_attr ibv_qp_cap ibv_qp_init_attr ibv_qp_init_attr_ex
    ibv_qp_open_attr ibv_qp_rate_limit_attr ibv_query_device_ex_input ibv_recv_wr
    ibv_rwq_ind_table_init_attr ibv_rx_hash_conf ibv_sa_mcmember_rec ibv_sa_path_rec
    ibv_sa_service_rec ibv_send_wr ibv_sge ibv_srq_attr ibv_srq_init_attr ibv_srq_init_attr_ex
    ibv_td_init_attr ibv_values_ex ibv_wc ibv_wc_tm_info ibv_wq_attr ibv_wq_init_attr
    ibv_xrcd_init_attr
}
