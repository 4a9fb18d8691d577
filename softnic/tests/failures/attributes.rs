//! Attributes of the caller after a failed call: as before the call.

use std::{
    ffi::c_int,
    net::{Ipv4Addr, SocketAddrV4},
    ptr,
};

use ibverbs_sys as ffi;
use rdmacm_sys as cm;
use softnic::{Call, Card, Fabric, Host, Limits, When};

use crate::open;

/// Address of the host.
const ADDR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

/// An identifier of the host's address with its channel, destroyed by the drop.
struct Bound(*mut cm::rdma_event_channel, *mut cm::rdma_cm_id);

impl Bound {
    fn new(host: &Host) -> Self {
        let _entered = host.enter();
        // SAFETY: no arguments.
        let channel = unsafe { cm::rdma_create_event_channel() };
        let mut id = ptr::null_mut();
        let space = cm::rdma_port_space::RDMA_PS_TCP;
        // SAFETY: a live channel, and a variable for the identifier.
        let created = unsafe { cm::rdma_create_id(channel, &raw mut id, ptr::null_mut(), space) };
        assert_eq!(created, 0);
        let addr = verbs_addr(SocketAddrV4::new(ADDR, 0));
        // SAFETY: a live identifier, and the address of a socket.
        let bound = unsafe { cm::rdma_bind_addr(id, (&raw const addr).cast_mut().cast()) };
        assert_eq!(bound, 0);
        Self(channel, id)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // SAFETY: destroyed once, without a queue pair.
        assert_eq!(unsafe { cm::rdma_destroy_id(self.1) }, 0);
        // SAFETY: destroyed once, without an identifier.
        unsafe { cm::rdma_destroy_event_channel(self.0) };
    }
}

fn verbs_addr(addr: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: u16::try_from(libc::AF_INET).unwrap(),
        sin_port: addr.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes(addr.ip().octets()),
        },
        sin_zero: [0; 8],
    }
}

/// Attributes of a reliable queue pair without queues.
fn qp_attr() -> ffi::ibv_qp_init_attr {
    let mut attr = ffi::ibv_qp_init_attr::zeroed();
    attr.qp_type = ffi::ibv_qp_type::IBV_QPT_RC;
    (attr.cap.max_send_wr, attr.cap.max_send_sge) = (5, 1);
    (attr.cap.max_recv_wr, attr.cap.max_recv_sge) = (5, 1);
    attr
}

/// The capacities and queues in attributes.
fn parts(attr: &ffi::ibv_qp_init_attr) -> impl PartialEq + std::fmt::Debug + use<> {
    let cap = &attr.cap;
    let sizes = [
        cap.max_send_wr,
        cap.max_recv_wr,
        cap.max_send_sge,
        cap.max_recv_sge,
        cap.max_inline_data,
    ];
    (attr.qp_type, sizes, attr.send_cq, attr.recv_cq, attr.srq)
}

#[track_caller]
fn check_errno(ret: c_int, errno: c_int) {
    assert_eq!(ret, -1);
    let found = std::io::Error::last_os_error().raw_os_error();
    assert_eq!(found, Some(errno));
}

#[test]
fn refused_queue_pair_of_a_card_leaves_the_requested_capacity() {
    let fabric = Fabric::seeded(7).card(Card::ConnectX5);
    let host = fabric.host(ADDR.into());
    host.set_limits(Limits::new().queue_pairs(1));
    let ctx = open(&host);
    let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(8).unwrap());
    let mut attr = qp_attr();
    (attr.send_cq, attr.recv_cq) = (cq.as_raw(), cq.as_raw());
    let mut extended = ffi::ibv_qp_init_attr_ex::zeroed();
    (extended.send_cq, extended.recv_cq) = (attr.send_cq, attr.recv_cq);
    (extended.qp_type, extended.cap) = (attr.qp_type, attr.cap);
    extended.comp_mask = ffi::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
    extended.pd = pd.as_raw();
    let before = parts(&attr);
    let mut granted = attr;
    // SAFETY: live objects, and attributes of this function.
    let qp = unsafe { ffi::ibv_create_qp(pd.as_raw(), &raw mut granted) };
    assert!(!qp.is_null());
    assert_ne!(parts(&granted), before, "the card rounds up");
    // SAFETY: as above.
    let second = unsafe { ffi::ibv_create_qp(pd.as_raw(), &raw mut attr) };
    assert!(second.is_null());
    assert_eq!(parts(&attr), before);
    // SAFETY: as above.
    let second = unsafe { ffi::ibv_create_qp_ex(ctx.as_raw(), &raw mut extended) };
    assert!(second.is_null());
    assert_eq!(extended.cap.max_send_wr, 5);
    // SAFETY: live until here.
    assert_eq!(unsafe { ffi::ibv_destroy_qp(qp) }, 0);
}

#[test]
fn failed_queue_pair_of_an_identifier_leaves_no_destroyed_queue() {
    let fabric = Fabric::new();
    let host = fabric.host(ADDR.into());
    let id = Bound::new(&host);
    let failing = host.fail(Call::CreateQp, When::Every, libc::ENOMEM);
    let failing_ex = host.fail(Call::CreateQpEx, When::Every, libc::ENOMEM);
    let mut attr = qp_attr();
    let before = parts(&attr);
    // SAFETY: a live identifier, and attributes of this function.
    let ret = unsafe { cm::rdma_create_qp(id.1, ptr::null_mut(), &raw mut attr) };
    check_errno(ret, libc::ENOMEM);
    assert_eq!(parts(&attr), before);

    let mut extended = ffi::ibv_qp_init_attr_ex::zeroed();
    (extended.qp_type, extended.cap) = (attr.qp_type, attr.cap);
    // SAFETY: as above.
    let ret = unsafe { cm::rdma_create_qp_ex(id.1, &raw mut extended) };
    check_errno(ret, libc::ENOMEM);
    assert!(extended.send_cq.is_null() && extended.recv_cq.is_null());
    assert!(extended.pd.is_null());
    assert_eq!(extended.comp_mask, 0);
    assert_eq!((failing.failed(), failing_ex.failed()), (1, 1));
}

/// The completion queue that the call makes for extended connections is destroyed: the books are checked at the drop.
#[test]
fn failed_shared_queue_of_an_identifier_leaves_the_attributes() {
    let fabric = Fabric::new();
    let host = fabric.host(ADDR.into());
    let ctx = open(&host);
    let id = Bound::new(&host);
    let failing = host.fail(Call::CreateSrqEx, When::Every, libc::ENOMEM);
    // SAFETY: live.
    let ctx_of_id = unsafe { (*id.1).verbs };
    drop(ctx);
    let mut xrcd_attr = ffi::ibv_xrcd_init_attr::zeroed();
    xrcd_attr.comp_mask = ffi::ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_FD.0
        | ffi::ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_OFLAGS.0;
    (xrcd_attr.fd, xrcd_attr.oflags) = (-1, libc::O_CREAT);
    // SAFETY: an open context, and attributes of this function.
    let xrcd = unsafe { ffi::ibv_open_xrcd(ctx_of_id, &raw mut xrcd_attr) };
    assert!(!xrcd.is_null());
    let mut attr = ffi::ibv_srq_init_attr_ex::zeroed();
    attr.srq_type = ffi::ibv_srq_type::IBV_SRQT_XRC;
    (attr.attr.max_wr, attr.attr.max_sge) = (4, 1);
    attr.xrcd = xrcd;
    let mask = ffi::ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE.0
        | ffi::ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_XRCD.0;
    attr.comp_mask = mask;
    // SAFETY: a live identifier, and attributes of this function.
    let ret = unsafe { cm::rdma_create_srq_ex(id.1, &raw mut attr) };
    check_errno(ret, libc::ENOMEM);
    assert_eq!(failing.failed(), 1);
    assert_eq!(attr.comp_mask, mask);
    assert!(attr.pd.is_null() && attr.cq.is_null());
    // SAFETY: live until here.
    assert_eq!(unsafe { ffi::ibv_close_xrcd(xrcd) }, 0);
}

#[test]
fn failed_endpoint_leaves_the_type_of_its_queue_pair() {
    let fabric = Fabric::new();
    let host = fabric.host(ADDR.into());
    let _entered = host.enter();
    let mut info = cm::rdma_addrinfo::zeroed();
    info.ai_flags = cm::RAI_PASSIVE;
    info.ai_port_space = c_int::try_from(cm::rdma_port_space::RDMA_PS_TCP.0).unwrap();
    info.ai_qp_type = c_int::try_from(ffi::ibv_qp_type::IBV_QPT_RC.0).unwrap();
    let mut attr = qp_attr();
    attr.qp_type = ffi::ibv_qp_type::IBV_QPT_UD;
    let mut id = ptr::null_mut();
    // SAFETY: information without an address, attributes, and a variable for the identifier.
    let ret =
        unsafe { cm::rdma_create_ep(&raw mut id, &raw mut info, ptr::null_mut(), &raw mut attr) };
    check_errno(ret, libc::EINVAL);
    assert_eq!(attr.qp_type, ffi::ibv_qp_type::IBV_QPT_UD);
    assert!(id.is_null());
}
