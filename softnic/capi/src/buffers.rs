//! Buffers of the provider (`ibv_alloc_buf(3)`), here pages of the process, and registrations by attributes.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ffi::{c_int, c_void},
    ptr,
};

use ibverbs_sys as ffi;

use crate::set_errno;

/// Alignment of a buffer, in bytes: pages of all machines.
const ALIGNMENT: usize = 0x1_0000;

/// Fields of the attributes of a registration (`ibv_mr_init_attr_mask`).
const IOVA: u64 = ffi::ibv_mr_init_attr_mask::IBV_REG_MR_MASK_IOVA.0 as u64;
const ADDR: u64 = ffi::ibv_mr_init_attr_mask::IBV_REG_MR_MASK_ADDR.0 as u64;

/// `IBV_REG_MR_MASK_BUF`, since rdma-core 64.
const BUF: u64 = 1 << 5;

/// A buffer, behind the opaque `ibv_buf` of C.
struct Buffer {
    pd: *mut ffi::ibv_pd,
    addr: *mut u8,
    layout: Layout,
}

impl Buffer {
    /// Whether a range is in the buffer.
    fn contains(&self, addr: usize, len: usize) -> bool {
        let offset = addr.checked_sub(self.addr.addr());
        let end = offset.and_then(|offset| offset.checked_add(len));
        end.is_some_and(|end| end <= self.layout.size())
    }
}

/// Null, with `errno` set.
fn refused<T>(errno: c_int) -> *mut T {
    set_errno(errno);
    ptr::null_mut()
}

/// # Safety
/// `buf` is null or valid for a write.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut ffi::ibv_pd,
    size: usize,
    buf: *mut *mut ffi::ibv_buf,
) -> *mut c_void {
    let Ok(layout) = Layout::from_size_align(size.max(1), ALIGNMENT) else {
        return refused(libc::ENOMEM);
    };
    // SAFETY: the size is not zero.
    let addr = unsafe { alloc_zeroed(layout) };
    if addr.is_null() {
        return refused(libc::ENOMEM);
    }
    let buffer = Box::into_raw(Box::new(Buffer { pd, addr, layout }));
    // SAFETY: guaranteed by the caller.
    unsafe { buf.write(buffer.cast()) };
    addr.cast()
}

/// # Safety
/// `buf` comes from [`ibv_alloc_buf`], and is not used any more.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_buf(buf: *mut ffi::ibv_buf) {
    // SAFETY: made by `Box::into_raw`, and freed once: guaranteed by the caller.
    let buffer = unsafe { Box::from_raw(buf.cast::<Buffer>()) };
    // SAFETY: allocated with this layout.
    unsafe { dealloc(buffer.addr, buffer.layout) };
}

/// Fails: the buffers are no dma-bufs.
#[unsafe(no_mangle)]
extern "C" fn ibv_export_buf_dmabuf_fd(_buf: *mut ffi::ibv_buf) -> c_int {
    set_errno(libc::ENODATA);
    -1
}

/// # Safety
/// `pd` is a live domain, and `buf` a live buffer.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ffi::ibv_pd,
    buf: *mut ffi::ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ffi::ibv_mr {
    // SAFETY: guaranteed by the caller.
    let buffer = unsafe { &*buf.cast::<Buffer>() };
    if buffer.pd != pd || !buffer.contains(addr.addr(), length) {
        return refused(libc::EINVAL);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { ffi::ibv_reg_mr(pd, addr, length, access.cast_unsigned()) }
}

/// Registers memory of the process, or a buffer. Dma-bufs are registered by `ibv_reg_dmabuf_mr` alone, and without hints.
///
/// # Safety
/// `pd` is a live domain, `attr` valid, and its buffer live, if any.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ffi::ibv_pd,
    attr: *mut ffi::ibv_mr_init_attr,
) -> *mut ffi::ibv_mr {
    // SAFETY: guaranteed by the caller.
    let attr = unsafe { &*attr };
    let mask = attr.comp_mask;
    if mask & !(IOVA | ADDR | BUF) != 0 {
        return refused(libc::EOPNOTSUPP);
    }
    if mask & ADDR == 0 || mask & (BUF | IOVA) == BUF | IOVA {
        return refused(libc::EINVAL);
    }
    let (addr, length, access) = (attr.addr, attr.length, attr.access);
    if mask & BUF != 0 {
        // SAFETY: guaranteed by the caller.
        return unsafe { ibv_reg_buf_mr(pd, attr.buf, addr, length, access) };
    }
    if mask & IOVA != 0 {
        let access = access.cast_unsigned();
        // SAFETY: guaranteed by the caller.
        return unsafe { ffi::ibv_reg_mr_iova2(pd, addr, length, attr.iova, access) };
    }
    // SAFETY: guaranteed by the caller.
    unsafe { ffi::ibv_reg_mr(pd, addr, length, access.cast_unsigned()) }
}
