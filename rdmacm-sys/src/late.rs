//! Functions newer than rdma-core 39, looked up at run time, as in [`ibverbs_sys::late`].

use crate::{rdma_addrinfo, rdma_cm_event_type, rdma_cm_id};
use core::ffi::{c_char, c_int};
use ibverbs_sys::late;
use libc::epoll_event;

late! {
    /// `rdma_resolve_addrinfo(id, node, service, hints)`—Starts an asynchronous name resolution. Since rdma-core 60.
    fn rdma_resolve_addrinfo(
        id: *mut rdma_cm_id,
        node: *const c_char,
        service: *const c_char,
        hints: *const rdma_addrinfo,
    ) -> c_int;

    /// `rdma_query_addrinfo(id, info)`—Returns the result of the resolution. Since rdma-core 60.
    fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int;

    /// `rdma_write_cm_event(id, event, status, arg)`—Posts an event to the identifier's channel. Since rdma-core 60.
    fn rdma_write_cm_event(
        id: *mut rdma_cm_id,
        event: rdma_cm_event_type,
        status: c_int,
        arg: u64,
    ) -> c_int;

    /// `repoll_create(flags)`—Creates an epoll instance with support for rsockets. Since rdma-core 65.
    fn repoll_create(flags: c_int) -> c_int;

    /// `repoll_ctl(epfd, op, fd, event)`—Adds, changes or removes a descriptor. Since rdma-core 65.
    fn repoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;

    /// `repoll_wait(epfd, events, maxevents, timeout)`—Blocks until an event or the timeout, in ms. Since rdma-core 65.
    fn repoll_wait(
        epfd: c_int,
        events: *mut epoll_event,
        maxevents: c_int,
        timeout: c_int,
    ) -> c_int;
}
