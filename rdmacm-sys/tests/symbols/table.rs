//! Addresses of the functions of rdma-core 39 to 44. A function missing from the crate fails to compile, a function
//! missing from the library fails to link.

macro_rules! table {
    ($($name:ident)*) => {
        &[$((stringify!($name), rdmacm_sys::$name as *const ())),*]
    };
}

pub(crate) const TABLE: &[(&str, *const ())] = table! {
    rdma_create_event_channel rdma_destroy_event_channel rdma_create_id rdma_create_ep
    rdma_destroy_ep rdma_destroy_id rdma_bind_addr rdma_resolve_addr rdma_resolve_route
    rdma_create_qp rdma_create_qp_ex rdma_destroy_qp rdma_connect rdma_establish rdma_listen
    rdma_get_request rdma_accept rdma_reject rdma_reject_ece rdma_notify rdma_disconnect
    rdma_join_multicast rdma_leave_multicast rdma_join_multicast_ex rdma_get_cm_event
    rdma_ack_cm_event rdma_get_src_port rdma_get_dst_port rdma_get_local_addr rdma_get_peer_addr
    rdma_get_devices rdma_free_devices rdma_event_str rdma_set_option rdma_migrate_id
    rdma_getaddrinfo rdma_freeaddrinfo rdma_init_qp_attr rdma_set_local_ece rdma_get_remote_ece
    rdma_seterrno rdma_create_srq rdma_create_srq_ex rdma_destroy_srq rdma_reg_msgs
    rdma_reg_read rdma_reg_write rdma_dereg_mr rdma_post_recvv rdma_post_sendv rdma_post_readv
    rdma_post_writev rdma_post_recv rdma_post_send rdma_post_read rdma_post_write
    rdma_post_ud_send rdma_get_send_comp rdma_get_recv_comp rsocket rbind rlisten raccept
    rconnect rshutdown rclose rrecv rrecvfrom rrecvmsg rsend rsendto rsendmsg rread rreadv
    rwrite rwritev rpoll rselect rgetpeername rgetsockname rsetsockopt rgetsockopt rfcntl riomap
    riounmap riowrite ib_addr_any ib_addr_loopback ib_addr_set ib_addr_cmp
};
