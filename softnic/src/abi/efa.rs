//! The functions of libefa, on devices without a card and on those of the card efa: queue pairs of reliable datagrams, and the
//! source addresses of completions.

use std::{
    ffi::{c_int, c_void},
    mem::offset_of,
    ptr,
};

use efa_sys::{efadv_ah_attr, efadv_cq, efadv_cq_init_attr, efadv_device_attr, efadv_qp_init_attr};
use ibverbs_sys as ffi;

use super::{
    cq::Cq,
    cq_ex, null,
    object::Object,
    qp::Vendor,
    qp_ex,
    query::{self, MAX_INLINE, MAX_SGE, MAX_WR},
};
use crate::engine::{MAX_RDMA, QpKind};

/// Type of queue pairs of reliable datagrams.
const SRD: u32 = 0;

/// The flag of queues with source addresses.
const WITH_SGID: u64 = 1 << 0;

/// Capabilities: reads, the number of RNR retries, source addresses, writes.
const CAPS: u32 = 0b1111;

/// Whether libefa's functions serve a device.
///
/// # Safety
/// - `ctx` is an open context.
unsafe fn is_efa(ctx: *mut ffi::ibv_context) -> bool {
    // SAFETY: the caller's promise.
    unsafe { qp_ex::serves(ctx, QpKind::Srd) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_create_qp_ex(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_qp_init_attr_ex,
    efa: *mut efadv_qp_init_attr,
    len: u32,
) -> *mut ffi::ibv_qp {
    // SAFETY: an open context.
    if !unsafe { is_efa(ctx) } {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's attributes.
    let attr = unsafe { &mut *attr };
    if (len as usize) < size_of::<efadv_qp_init_attr>() {
        return null(libc::EINVAL);
    }
    // SAFETY: the caller's attributes, of this length.
    let efa = unsafe { &*efa };
    if attr.qp_type != ffi::ibv_qp_type::IBV_QPT_DRIVER || efa.comp_mask != 0 {
        return null(libc::EINVAL);
    }
    if efa.driver_qp_type != SRD {
        return null(libc::EOPNOTSUPP);
    }
    if !attr.srq.is_null() {
        return null(libc::EINVAL);
    }
    let vendor = Vendor {
        kind: QpKind::Srd,
        dct_key: 0,
    };
    // SAFETY: an open context, and live objects of the caller's.
    unsafe { qp_ex::create(ctx, attr, Some(vendor)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_create_driver_qp(
    pd: *mut ffi::ibv_pd,
    attr: *mut ffi::ibv_qp_init_attr,
    kind: u32,
) -> *mut ffi::ibv_qp {
    // SAFETY: the caller's attributes.
    let plain = unsafe { &mut *attr };
    let mut full = ffi::ibv_qp_init_attr_ex::zeroed();
    full.comp_mask = ffi::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
    full.pd = pd;
    full.qp_context = plain.qp_context;
    full.send_cq = plain.send_cq;
    full.recv_cq = plain.recv_cq;
    full.srq = plain.srq;
    full.cap = plain.cap;
    full.qp_type = plain.qp_type;
    full.sq_sig_all = plain.sq_sig_all;
    let mut efa = efadv_qp_init_attr::zeroed();
    efa.driver_qp_type = kind;
    // SAFETY: a live domain.
    let ctx = unsafe { (*pd).context };
    let len = u32::try_from(size_of_val(&efa)).unwrap_or(0);
    // SAFETY: an open context, and live objects of the caller's.
    let qp = unsafe { efadv_create_qp_ex(ctx, &raw mut full, &raw mut efa, len) };
    plain.cap = full.cap;
    qp
}

#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_query_device(
    ctx: *mut ffi::ibv_context,
    attr: *mut efadv_device_attr,
    len: u32,
) -> c_int {
    // SAFETY: an open context.
    if !unsafe { is_efa(ctx) } {
        return libc::EOPNOTSUPP;
    }
    if (len as usize) < offset_of!(efadv_device_attr, reserved) {
        return libc::EINVAL;
    }
    let narrow = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
    let mut attributes = efadv_device_attr::zeroed();
    attributes.max_sq_wr = MAX_WR;
    attributes.max_rq_wr = MAX_WR;
    attributes.max_sq_sge = narrow(MAX_SGE);
    attributes.max_rq_sge = narrow(MAX_SGE);
    attributes.inline_buf_size = narrow(MAX_INLINE);
    attributes.device_caps = CAPS;
    attributes.max_rdma_size = MAX_RDMA;
    let copied = (len as usize).min(size_of_val(&attributes));
    // SAFETY: the caller's memory has this length.
    unsafe { ptr::write_bytes(attr.cast::<u8>(), 0, len as usize) };
    // SAFETY: as above, and plain data.
    unsafe { ptr::copy_nonoverlapping((&raw const attributes).cast::<u8>(), attr.cast(), copied) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_query_ah(
    _ah: *mut ffi::ibv_ah,
    _attr: *mut efadv_ah_attr,
    _len: u32,
) -> c_int {
    libc::EOPNOTSUPP
}

#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_create_cq(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_cq_init_attr_ex,
    efa: *mut efadv_cq_init_attr,
    len: u32,
) -> *mut ffi::ibv_cq_ex {
    // SAFETY: an open context.
    if !unsafe { is_efa(ctx) } {
        return null(libc::EOPNOTSUPP);
    }
    if (len as usize) < size_of::<efadv_cq_init_attr>() {
        return null(libc::EINVAL);
    }
    // SAFETY: the caller's attributes, of this length.
    let efa = unsafe { &*efa };
    if efa.comp_mask != 0 || efa.wc_flags & !WITH_SGID != 0 {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: an open context, and live objects of the caller's.
    unsafe { cq_ex::create_cq_ex(ctx, attr) }
}

/// The part of every queue for libefa.
pub(super) fn part() -> efadv_cq {
    let mut part = efadv_cq::zeroed();
    part.wc_read_sgid = Some(read_sgid);
    part
}

#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_cq_from_ibv_cq_ex(raw: *mut ffi::ibv_cq_ex) -> *mut efadv_cq {
    raw.wrapping_byte_add(offset_of!(Cq, efa)).cast()
}

/// The address of the sender of the current completion; `-ENOENT` for other completions than received messages.
unsafe extern "C" fn read_sgid(part: *mut efadv_cq, gid: *mut ffi::ibv_gid) -> c_int {
    let raw: *mut c_void = part.wrapping_byte_sub(offset_of!(Cq, efa)).cast();
    // SAFETY: the part of a live queue.
    let cq = unsafe { Cq::borrow(raw.cast()) };
    match cq.polled.with(|polled| polled.src()).flatten() {
        Some(src) => {
            // SAFETY: the caller's place.
            unsafe { *gid = query::gid(src) };
            0
        }
        None => -libc::ENOENT,
    }
}
