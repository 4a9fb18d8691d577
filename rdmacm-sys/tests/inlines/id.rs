//! Inlines of `rdma_cma.h` and `rdma_verbs.h`.

use crate::both;
use crate::library::{ERROR, EVENT};
use crate::world::{Outcome, World, called, token};
use ibverbs_sys::*;
use rdmacm_sys::rdma_cm_id;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

/// A device, and an identifier with a queue pair on the device.
struct Connection {
    world: Box<World>,
    id: Box<rdma_cm_id>,
    mr: Box<ibv_mr>,
}

impl Connection {
    fn new() -> Self {
        let mut world = World::new();
        let ops = &mut world.vctx.context.ops;
        ops.post_send = Some(post_send);
        ops.post_recv = Some(post_recv);
        ops.post_srq_recv = Some(post_srq_recv);
        ops.poll_cq = Some(poll_cq);
        ops.req_notify_cq = Some(req_notify_cq);
        // SAFETY: the struct consists of integers and pointers; zero is valid.
        let mut id: Box<rdma_cm_id> = Box::new(unsafe { MaybeUninit::zeroed().assume_init() });
        // SAFETY: the struct consists of integers and pointers; zero is valid.
        let mut mr: Box<ibv_mr> = Box::new(unsafe { MaybeUninit::zeroed().assume_init() });
        id.pd = &raw mut world.pd;
        id.qp = &raw mut world.qp;
        id.send_cq = &raw mut world.cq;
        id.recv_cq = &raw mut world.cq;
        id.send_cq_channel = token(20);
        id.recv_cq_channel = token(21);
        mr.addr = token(1);
        mr.length = 0x1000;
        mr.lkey = 33;
        ERROR.set(0);
        Self { world, id, mr }
    }

    fn id(&mut self) -> *mut rdma_cm_id {
        &raw mut *self.id
    }

    fn mr(&mut self) -> *mut ibv_mr {
        &raw mut *self.mr
    }
}

/// Text form of a request's fields used by its operation.
fn describe(wr: &ibv_send_wr) -> String {
    // SAFETY: the request's operation decides which fields of the unions are valid.
    let rest = unsafe {
        match wr.opcode {
            ibv_wr_opcode::IBV_WR_SEND if wr.send_flags & DATAGRAM != 0 => {
                format!(
                    "{:?}",
                    (wr.wr.ud.ah, wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey)
                )
            }
            ibv_wr_opcode::IBV_WR_SEND => String::new(),
            _ => format!("{:?}", (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey)),
        }
    };
    let sges = sges(wr.sg_list, wr.num_sge);
    format!(
        "{} {:?} {sges} {:?} {} {rest}",
        wr.wr_id, wr.next, wr.opcode, wr.send_flags
    )
}

/// Flag for [`describe`] only: the send is a datagram.
const DATAGRAM: u32 = 1 << 31;

fn sges(list: *mut ibv_sge, number: c_int) -> String {
    let number = usize::try_from(number).unwrap();
    // SAFETY: a request's list has `number` elements.
    format!("{:?}", unsafe { std::slice::from_raw_parts(list, number) })
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    _: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the request is a local variable of the caller.
    called("post_send", &[format!("{qp:?}"), describe(unsafe { &*wr })]);
    ERROR.get()
}

fn describe_recv(function: &str, queue: *mut c_void, wr: *mut ibv_recv_wr) -> c_int {
    // SAFETY: the request is a local variable of the caller.
    let wr = unsafe { &*wr };
    let sges = sges(wr.sg_list, wr.num_sge);
    called(
        function,
        &[format!("{queue:?} {} {:?} {sges}", wr.wr_id, wr.next)],
    );
    ERROR.get()
}

unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    _: *mut *mut ibv_recv_wr,
) -> c_int {
    describe_recv("post_recv", qp.cast(), wr)
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    _: *mut *mut ibv_recv_wr,
) -> c_int {
    describe_recv("post_srq_recv", srq.cast(), wr)
}

thread_local! {
    /// Results of polling, the last first.
    static POLLED: RefCell<Vec<c_int>> = const { RefCell::new(Vec::new()) };
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, number: c_int, wc: *mut ibv_wc) -> c_int {
    called("poll_cq", &[format!("{cq:?} {number} {wc:?}")]);
    POLLED.with_borrow_mut(|polled| polled.pop().unwrap())
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    called("req_notify_cq", &[format!("{cq:?} {solicited_only}")]);
    ERROR.get()
}

#[cfg_attr(stub, ignore = "needs the headers of librdmacm-dev")]
#[test]
fn addresses_point_into_the_identifier() {
    let mut connection = Connection::new();
    let id = connection.id();
    both!(rdma_get_local_addr: fn(*mut rdma_cm_id) -> *mut libc::sockaddr, id);
    both!(rdma_get_peer_addr: fn(*mut rdma_cm_id) -> *mut libc::sockaddr, id);
}

#[cfg_attr(stub, ignore = "needs the headers of librdmacm-dev")]
#[test]
fn seterrno_of_error_returns_minus_one() {
    let original: unsafe extern "C" fn(c_int) -> c_int =
        crate::original::original!("rdma_seterrno");
    for error in [0, libc::EINVAL, -1] {
        let rust = crate::world::observe(|| rdmacm_sys::rdma_seterrno(error).to_string());
        // SAFETY: the function only sets errno.
        let c = crate::world::observe(|| unsafe { original(error) }.to_string());
        assert_eq!(rust, c);
    }
}

#[cfg_attr(stub, ignore = "needs the headers of librdmacm-dev")]
#[test]
fn reg_functions_register_with_their_access_rights() {
    type Register = fn(&mut Connection) -> Outcome;
    macro_rules! register {
        ($name:ident) => {
            |connection| {
                let id = connection.id();
                both!(
                    $name: fn(*mut rdma_cm_id, *mut c_void, usize) -> *mut ibv_mr,
                    id, token(1), 2
                )
            }
        };
    }
    let functions: [Register; 3] = [
        register!(rdma_reg_msgs),
        register!(rdma_reg_read),
        register!(rdma_reg_write),
    ];
    for (register, access) in functions.iter().zip([1, 5, 3]) {
        let outcome = register(&mut Connection::new());
        assert!(
            outcome.calls[0].ends_with(&format!(" 2 {access})")),
            "{outcome:?}"
        );
    }
}

#[cfg_attr(stub, ignore = "needs the headers of librdmacm-dev")]
#[test]
fn dereg_mr_with_error_sets_errno() {
    for error in [0, libc::EBUSY] {
        ERROR.set(error);
        both!(rdma_dereg_mr: fn(*mut ibv_mr) -> c_int, token(1));
    }
}

#[cfg_attr(stub, ignore = "needs the headers of librdmacm-dev")]
#[test]
fn post_recv_with_srq_posts_to_the_srq() {
    let mut connection = Connection::new();
    let (id, mr) = (connection.id(), connection.mr());
    for (srq, error) in [
        (false, 0),
        (true, 0),
        (false, libc::ENOMEM),
        (true, libc::ENOMEM),
    ] {
        ERROR.set(error);
        connection.id.srq = if srq {
            &raw mut connection.world.srq
        } else {
            ptr::null_mut()
        };
        let outcome = both!(
            rdma_post_recv: fn(
                *mut rdma_cm_id, *mut c_void, *mut c_void, usize, *mut ibv_mr
            ) -> c_int,
            id, token(5), token(1), 16, mr
        );
        assert_eq!(outcome.calls[0].starts_with("post_srq_recv("), srq);
        assert_eq!(outcome.errno, error);
    }
    let mut list = [ibv_sge {
        addr: 1,
        length: 2,
        lkey: 3,
    }; 2];
    both!(
        rdma_post_recvv: fn(*mut rdma_cm_id, *mut c_void, *mut ibv_sge, c_int) -> c_int,
        id, token(5), list.as_mut_ptr(), 2
    );
}

#[cfg_attr(stub, ignore = "needs the headers of librdmacm-dev")]
#[test]
fn post_functions_in_rust_and_c_agree() {
    let mut connection = Connection::new();
    let id = connection.id();
    let mut list = [ibv_sge {
        addr: 1,
        length: 2,
        lkey: 3,
    }; 2];
    let list = list.as_mut_ptr();
    for mr in [connection.mr(), ptr::null_mut()] {
        both!(
            rdma_post_send: fn(
                *mut rdma_cm_id, *mut c_void, *mut c_void, usize, *mut ibv_mr, c_int
            ) -> c_int,
            id, token(5), token(1), 16, mr, 2
        );
        both!(
            rdma_post_write: fn(
                *mut rdma_cm_id, *mut c_void, *mut c_void, usize, *mut ibv_mr, c_int, u64, u32
            ) -> c_int,
            id, token(5), token(1), 16, mr, 2, 3, 4
        );
        both!(
            rdma_post_ud_send: fn(
                *mut rdma_cm_id, *mut c_void, *mut c_void, usize, *mut ibv_mr, c_int,
                *mut ibv_ah, u32
            ) -> c_int,
            id, token(5), token(1), 16, mr, c_int::MIN, token(6), 7
        );
    }
    let mr = connection.mr();
    both!(
        rdma_post_read: fn(
            *mut rdma_cm_id, *mut c_void, *mut c_void, usize, *mut ibv_mr, c_int, u64, u32
        ) -> c_int,
        id, token(5), token(1), 16, mr, 2, 3, 4
    );
    both!(
        rdma_post_sendv: fn(*mut rdma_cm_id, *mut c_void, *mut ibv_sge, c_int, c_int) -> c_int,
        id, token(5), list, 2, 2
    );
    both!(
        rdma_post_readv: fn(
            *mut rdma_cm_id, *mut c_void, *mut ibv_sge, c_int, c_int, u64, u32
        ) -> c_int,
        id, token(5), list, 2, 2, 3, 4
    );
    ERROR.set(libc::ENOMEM);
    let outcome = both!(
        rdma_post_writev: fn(
            *mut rdma_cm_id, *mut c_void, *mut ibv_sge, c_int, c_int, u64, u32
        ) -> c_int,
        id, token(5), list, 2, 2, 3, 4
    );
    assert_eq!(
        (outcome.returned, outcome.errno),
        (Ok("-1".to_owned()), libc::ENOMEM)
    );
}

#[cfg_attr(stub, ignore = "needs the headers of librdmacm-dev")]
#[test]
fn get_comp_functions_in_rust_and_c_agree() {
    // Results of polling in order, and results of the other calls.
    let cases: [(&[c_int], c_int); 7] = [
        (&[1], 0),
        (&[-5], 0),
        (&[0, 1], 0),
        (&[0, 0, 1], 0),
        (&[0, 0, 0, 0, 1], 0),
        (&[0, -5], 0),
        (&[0], libc::EINVAL),
    ];
    for (polled, error) in cases {
        let mut connection = Connection::new();
        let id = connection.id();
        EVENT.set((&raw mut connection.world.cq, id.cast()));
        ERROR.set(error);
        let twice: Vec<_> = polled.iter().chain(polled).rev().copied().collect();
        POLLED.set(twice.clone());
        both!(rdma_get_send_comp: fn(*mut rdma_cm_id, *mut ibv_wc) -> c_int, id, token(1));
        POLLED.set(twice);
        both!(rdma_get_recv_comp: fn(*mut rdma_cm_id, *mut ibv_wc) -> c_int, id, token(1));
    }
}
