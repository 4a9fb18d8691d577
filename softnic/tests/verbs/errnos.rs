//! Results of refused calls, function by function, as in the manual pages of libibverbs: null with `errno`, an error
//! number, or -1.

use std::{ffi::c_int, ptr};

use ibverbs_sys as ffi;
use softnic::Fabric;

use crate::end::Connected;

/// A call of C on live objects.
macro_rules! c {
    ($call:expr) => {
        // SAFETY: the objects are live, and the places are the caller's.
        unsafe { $call }
    };
}

/// The error number of a null result.
fn refusal<T>(object: *mut T) -> c_int {
    assert!(object.is_null());
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// The error number of a result of -1.
fn minus_one(result: c_int) -> c_int {
    assert_eq!(result, -1);
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// An error number that is `errno` as well, as libibverbs leaves it after the kernel's call; 0 after a success.
fn noted(result: c_int) -> c_int {
    if result > 0 {
        let errno = std::io::Error::last_os_error().raw_os_error();
        assert_eq!(errno, Some(result));
    }
    result
}

fn check(table: &[(&str, c_int, c_int)]) {
    for (call, found, expected) in table {
        assert_eq!(found, expected, "{call}");
    }
}

/// The objects in use by others, the last one first.
#[test]
fn object_in_use_is_not_destroyed() {
    let this = Connected::new(Fabric::new());
    let ctx = this.a.ctx.as_raw();
    let pd = c!(ffi::ibv_alloc_pd(ctx));
    let channel = c!(ffi::ibv_create_comp_channel(ctx));
    let cq = c!(ffi::ibv_create_cq(ctx, 4, ptr::null_mut(), channel, 0));
    let mut init = srq_attr(4);
    let srq = c!(ffi::ibv_create_srq(pd, &raw mut init));
    let qp = queue_pair(pd, cq, srq, ffi::ibv_qp_type::IBV_QPT_UD);
    let group = ffi::ibv_gid::from_raw([0xff, 0xe, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(c!(ffi::ibv_attach_mcast(qp, &raw const group, 0)), 0);
    let busy = libc::EBUSY;
    check(&[
        ("ibv_destroy_qp", noted(c!(ffi::ibv_destroy_qp(qp))), busy),
        (
            "ibv_destroy_srq",
            noted(c!(ffi::ibv_destroy_srq(srq))),
            busy,
        ),
        ("ibv_destroy_cq", noted(c!(ffi::ibv_destroy_cq(cq))), busy),
        ("channel", c!(ffi::ibv_destroy_comp_channel(channel)), busy),
        ("ibv_dealloc_pd", noted(c!(ffi::ibv_dealloc_pd(pd))), busy),
        (
            "detach",
            c!(ffi::ibv_detach_mcast(qp, &raw const group, 0)),
            0,
        ),
        (
            "detach again",
            c!(ffi::ibv_detach_mcast(qp, &raw const group, 0)),
            libc::EINVAL,
        ),
        ("ibv_destroy_qp", c!(ffi::ibv_destroy_qp(qp)), 0),
        ("ibv_destroy_srq", c!(ffi::ibv_destroy_srq(srq)), 0),
        ("ibv_destroy_cq", c!(ffi::ibv_destroy_cq(cq)), 0),
        ("channel", c!(ffi::ibv_destroy_comp_channel(channel)), 0),
        ("ibv_dealloc_pd", c!(ffi::ibv_dealloc_pd(pd)), 0),
    ]);
}

fn srq_attr(max_wr: u32) -> ffi::ibv_srq_init_attr {
    let mut attr = ffi::ibv_srq_attr::zeroed();
    (attr.max_wr, attr.max_sge) = (max_wr, 1);
    ffi::ibv_srq_init_attr {
        srq_context: ptr::null_mut(),
        attr,
    }
}

fn init_attr(
    cq: *mut ffi::ibv_cq,
    srq: *mut ffi::ibv_srq,
    kind: ffi::ibv_qp_type,
) -> ffi::ibv_qp_init_attr {
    let mut attr = ffi::ibv_qp_init_attr::zeroed();
    (attr.send_cq, attr.recv_cq, attr.srq) = (cq, cq, srq);
    attr.qp_type = kind;
    (attr.cap.max_send_wr, attr.cap.max_send_sge) = (1, 1);
    attr
}

fn queue_pair(
    pd: *mut ffi::ibv_pd,
    cq: *mut ffi::ibv_cq,
    srq: *mut ffi::ibv_srq,
    kind: ffi::ibv_qp_type,
) -> *mut ffi::ibv_qp {
    let mut attr = init_attr(cq, srq, kind);
    let qp = c!(ffi::ibv_create_qp(pd, &raw mut attr));
    assert!(!qp.is_null());
    qp
}

#[test]
fn creation_with_a_wrong_argument_sets_errno() {
    let this = Connected::new(Fabric::new());
    let (ctx, pd) = (this.a.ctx.as_raw(), this.a.pd.as_raw());
    let cq = this.a.cq.as_raw();
    let none = ptr::null_mut();
    let memory: *mut std::ffi::c_void = ptr::with_exposed_provenance_mut(0x1000);
    let remote_only = ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
    let mut huge = init_attr(cq, ptr::null_mut(), ffi::ibv_qp_type::IBV_QPT_RC);
    huge.cap.max_send_wr = u32::MAX;
    let mut foreign = init_attr(
        ptr::null_mut(),
        ptr::null_mut(),
        ffi::ibv_qp_type::IBV_QPT_RC,
    );
    let mut no_receives = srq_attr(0);
    let mut no_route = ffi::ibv_ah_attr::zeroed();
    no_route.port_num = 1;
    let invalid = libc::EINVAL;
    let create_cq = |cqe, vector| c!(ffi::ibv_create_cq(ctx, cqe, none, ptr::null_mut(), vector));
    check(&[
        ("ibv_create_cq, no entry", refusal(create_cq(0, 0)), invalid),
        ("ibv_create_cq, vector", refusal(create_cq(1, 7)), invalid),
        (
            "ibv_reg_mr, rights",
            refusal(c!(ffi::ibv_reg_mr(pd, memory, 8, remote_only))),
            invalid,
        ),
        (
            "ibv_create_qp, capacity",
            refusal(c!(ffi::ibv_create_qp(pd, &raw mut huge))),
            invalid,
        ),
        (
            "ibv_create_qp, no queue",
            refusal(c!(ffi::ibv_create_qp(pd, &raw mut foreign))),
            invalid,
        ),
        (
            "ibv_create_srq",
            refusal(c!(ffi::ibv_create_srq(pd, &raw mut no_receives))),
            invalid,
        ),
        (
            "ibv_create_ah, no route",
            refusal(c!(ffi::ibv_create_ah(pd, &raw mut no_route))),
            invalid,
        ),
        (
            "ibv_alloc_mw, type",
            refusal(c!(ffi::ibv_alloc_mw(pd, ffi::ibv_mw_type(9)))),
            invalid,
        ),
    ]);
}

#[test]
fn query_of_a_missing_entry_reports_an_error() {
    let this = Connected::new(Fabric::new());
    let ctx = this.a.ctx.as_raw();
    let mut gid = ffi::ibv_gid::default();
    let mut entry = ffi::ibv_gid_entry::zeroed();
    let mut pkey = ffi::__be16::from_ne(0);
    let mut port = ffi::ibv_port_attr::zeroed();
    let size = size_of_val(&entry);
    let unknown = ffi::__be16::from_ne(1);
    let mut entry = |index, flags, size| {
        c!(ffi::_ibv_query_gid_ex(
            ctx,
            1,
            index,
            &raw mut entry,
            flags,
            size
        ))
    };
    let invalid = libc::EINVAL;
    check(&[
        (
            "gid",
            minus_one(c!(ffi::ibv_query_gid(ctx, 1, 99, &raw mut gid))),
            invalid,
        ),
        (
            "gid, port",
            minus_one(c!(ffi::ibv_query_gid(ctx, 2, 0, &raw mut gid))),
            invalid,
        ),
        ("gid_ex, empty", entry(5, 0, size), libc::ENODATA),
        ("gid_ex, index", entry(99, 0, size), invalid),
        ("gid_ex, flags", entry(0, 1, size), invalid),
        ("gid_ex, size", entry(0, 0, size - 8), invalid),
        ("gid_ex", entry(0, 0, size), 0),
        (
            "pkey",
            minus_one(c!(ffi::ibv_query_pkey(ctx, 1, 9, &raw mut pkey))),
            invalid,
        ),
        (
            "pkey_index",
            minus_one(c!(ffi::ibv_get_pkey_index(ctx, 1, unknown))),
            invalid,
        ),
        (
            "port",
            c!(ffi::ibv_query_port(ctx, 9, &raw mut port)),
            invalid,
        ),
    ]);
}

#[test]
fn refused_change_returns_an_error_number() {
    let this = Connected::new(Fabric::new());
    let ctx = this.a.ctx.as_raw();
    let cq = c!(ffi::ibv_create_cq(
        ctx,
        4,
        ptr::null_mut(),
        ptr::null_mut(),
        0
    ));
    let pd = this.a.pd.as_raw();
    let mut init = srq_attr(4);
    let srq = c!(ffi::ibv_create_srq(pd, &raw mut init));
    let qp = queue_pair(pd, cq, srq, ffi::ibv_qp_type::IBV_QPT_RC);
    let limit = ffi::ibv_srq_attr_mask::IBV_SRQ_LIMIT.0.cast_signed();
    let mut high = init.attr;
    high.srq_limit = 99;
    let mut state = ffi::ibv_qp_attr::zeroed();
    state.qp_state = ffi::ibv_qp_state::IBV_QPS_RTS;
    let to_state = ffi::ibv_qp_attr_mask::IBV_QP_STATE.0.cast_signed();
    let group = ffi::ibv_gid::from_raw([0xff, 0xe, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let invalid = libc::EINVAL;
    check(&[
        ("ibv_resize_cq", c!(ffi::ibv_resize_cq(cq, 0)), invalid),
        (
            "limit",
            c!(ffi::ibv_modify_srq(srq, &raw mut high, limit)),
            invalid,
        ),
        (
            "mask",
            c!(ffi::ibv_modify_srq(srq, &raw mut high, 1 << 9)),
            invalid,
        ),
        (
            "to RTS",
            c!(ffi::ibv_modify_qp(qp, &raw mut state, to_state)),
            invalid,
        ),
        (
            "RC",
            c!(ffi::ibv_attach_mcast(qp, &raw const group, 0)),
            invalid,
        ),
        ("post", post_send(qp, 1), invalid),
        ("receive beside a shared queue", post_recv(qp, 0), invalid),
        (
            "receive with a negative number",
            post_srq_recv(srq, -1),
            invalid,
        ),
        ("receive with two elements", post_srq_recv(srq, 2), invalid),
        ("ibv_destroy_qp", c!(ffi::ibv_destroy_qp(qp)), 0),
        ("ibv_destroy_srq", c!(ffi::ibv_destroy_srq(srq)), 0),
        ("ibv_destroy_cq", c!(ffi::ibv_destroy_cq(cq)), 0),
    ]);
}

#[test]
fn refused_post_on_a_connection_returns_an_error_number() {
    let mut this = Connected::new(Fabric::new());
    let sender = this.qp_a.as_raw();
    let invalid = libc::EINVAL;
    check(&[
        (
            "send with a negative number",
            post_send(sender, -1),
            invalid,
        ),
        ("send with many elements", post_send(sender, 2), invalid),
        (
            "receive with a negative number",
            post_recv(sender, -1),
            invalid,
        ),
        ("receive with many elements", post_recv(sender, 2), invalid),
    ]);
    assert_eq!(this.a.poll(&mut this.qp_a).len(), 0);
}

/// Elements that no call reaches.
fn elements() -> [ffi::ibv_sge; 2] {
    [ffi::ibv_sge::zeroed(); 2]
}

fn post_send(qp: *mut ffi::ibv_qp, num_sge: c_int) -> c_int {
    let mut sges = elements();
    let mut wr = ffi::ibv_send_wr::zeroed();
    wr.opcode = ffi::ibv_wr_opcode::IBV_WR_SEND;
    (wr.sg_list, wr.num_sge) = (sges.as_mut_ptr(), num_sge);
    let mut bad = ptr::null_mut();
    let result = c!(ffi::ibv_post_send(qp, &raw mut wr, &raw mut bad));
    assert!(ptr::eq(bad, &raw const wr), "the request is named");
    result
}

fn receive(sges: &mut [ffi::ibv_sge; 2], num_sge: c_int) -> ffi::ibv_recv_wr {
    ffi::ibv_recv_wr {
        wr_id: 0,
        next: ptr::null_mut(),
        sg_list: sges.as_mut_ptr(),
        num_sge,
    }
}

fn post_recv(qp: *mut ffi::ibv_qp, num_sge: c_int) -> c_int {
    let mut sges = elements();
    let (mut wr, mut bad) = (receive(&mut sges, num_sge), ptr::null_mut());
    let result = c!(ffi::ibv_post_recv(qp, &raw mut wr, &raw mut bad));
    assert!(ptr::eq(bad, &raw const wr), "the receive is named");
    result
}

fn post_srq_recv(srq: *mut ffi::ibv_srq, num_sge: c_int) -> c_int {
    let mut sges = elements();
    let (mut wr, mut bad) = (receive(&mut sges, num_sge), ptr::null_mut());
    let result = c!(ffi::ibv_post_srq_recv(srq, &raw mut wr, &raw mut bad));
    assert!(ptr::eq(bad, &raw const wr), "the receive is named");
    result
}

/// The manual page: "The attributes `max_recv_wr` and `max_recv_sge` are ignored if the QP is to be associated with an SRQ".
#[test]
fn receive_capacities_beside_a_shared_queue_are_ignored() {
    let this = Connected::new(Fabric::new());
    let (pd, cq) = (&this.a.pd, &this.a.cq);
    let srq = pd.create_srq::<verbs::Buf>(4, 1).unwrap();
    let mut attr = init_attr(cq.as_raw(), srq.as_raw(), ffi::ibv_qp_type::IBV_QPT_RC);
    (attr.cap.max_recv_wr, attr.cap.max_recv_sge) = (u32::MAX, 1000);
    let qp = c!(ffi::ibv_create_qp(pd.as_raw(), &raw mut attr));
    assert!(!qp.is_null());
    let (mut found, mut init) = (ffi::ibv_qp_attr::zeroed(), ffi::ibv_qp_init_attr::zeroed());
    let queried = c!(ffi::ibv_query_qp(qp, &raw mut found, 0, &raw mut init));
    let capacities = (found.cap.max_recv_wr, init.cap.max_recv_sge);
    assert_eq!((queried, capacities), (0, (0, 0)));
    assert_eq!(c!(ffi::ibv_destroy_qp(qp)), 0);
    // The builder as well.
    let builder = pd.qp_builder::<verbs::Rc>(cq, cq).srq(&srq);
    let qp = builder.max_recv_wr(u32::MAX).max_recv_sge(1000).create();
    drop(qp.unwrap());
}

/// The device chooses the upper bits of a key, and a request only the lower 8.
#[test]
fn type_2_window_takes_the_low_bits_of_the_requested_key() {
    let this = Connected::new(Fabric::new());
    let pd = this.a.pd.as_raw();
    let mut memory = vec![0_u8; 64];
    let access = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
        | ffi::ibv_access_flags::IBV_ACCESS_MW_BIND.0;
    let start = memory.as_mut_ptr();
    let mr = c!(ffi::ibv_reg_mr(pd, start.cast(), 64, access));
    let mw = c!(ffi::ibv_alloc_mw(pd, ffi::ibv_mw_type::IBV_MW_TYPE_2));
    let key = c!((*mw).rkey);
    let mut wr = ffi::ibv_send_wr::zeroed();
    wr.opcode = ffi::ibv_wr_opcode::IBV_WR_BIND_MW;
    wr.send_flags = ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
    let range = ffi::ibv_mw_bind_info {
        mr,
        addr: start.expose_provenance() as u64,
        length: 64,
        mw_access_flags: ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0,
    };
    wr.set_bind_mw(mw, !key, range);
    let mut bad = ptr::null_mut();
    let qp = this.qp_a.as_raw();
    assert_eq!(c!(ffi::ibv_post_send(qp, &raw mut wr, &raw mut bad)), 0);
    let mut wc = ffi::ibv_wc::zeroed();
    while c!(ffi::ibv_poll_cq(this.a.cq.as_raw(), 1, &raw mut wc)) == 0 {}
    assert_eq!(wc.status, ffi::ibv_wc_status::IBV_WC_SUCCESS);
    assert_eq!(c!((*mw).rkey), key & !0xff | !key & 0xff);
    assert_eq!(c!(ffi::ibv_dealloc_mw(mw)), 0);
    assert_eq!(c!(ffi::ibv_dereg_mr(mr)), 0);
}
