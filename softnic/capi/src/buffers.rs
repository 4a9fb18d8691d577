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
const FD: u64 = ffi::ibv_mr_init_attr_mask::IBV_REG_MR_MASK_FD.0 as u64;
const FD_OFFSET: u64 = ffi::ibv_mr_init_attr_mask::IBV_REG_MR_MASK_FD_OFFSET.0 as u64;

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

/// Registers memory of the process, a buffer, or a dma-buf, without hints.
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
    if mask & !(IOVA | ADDR | BUF | FD | FD_OFFSET) != 0 {
        return refused(libc::EOPNOTSUPP);
    }
    if mask & (FD | FD_OFFSET) != 0 {
        // A dma-buf has an offset and an IOVA, and no address.
        if mask != FD | FD_OFFSET | IOVA {
            return refused(libc::EINVAL);
        }
        let (offset, length, iova) = (attr.fd_offset, attr.length, attr.iova);
        // SAFETY: guaranteed by the caller.
        return unsafe { ffi::ibv_reg_dmabuf_mr(pd, offset, length, iova, attr.fd, attr.access) };
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

#[cfg(test)]
mod tests {
    use std::{
        io, mem,
        os::fd::{AsRawFd, FromRawFd, OwnedFd},
    };

    use softnic::Fabric;

    use super::*;

    /// Result of a registration: the length, or the error number.
    fn outcome(mr: *mut ffi::ibv_mr) -> Result<usize, Option<i32>> {
        if mr.is_null() {
            return Err(io::Error::last_os_error().raw_os_error());
        }
        // SAFETY: just registered.
        let len = unsafe { (*mr).length };
        // SAFETY: registered, and deregistered once, here.
        assert_eq!(unsafe { ffi::ibv_dereg_mr(mr) }, 0);
        Ok(len)
    }

    /// A sealed memory file of two pages, in the place of a dma-buf.
    fn memory() -> OwnedFd {
        let flags = libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC;
        // SAFETY: the name is a string, copied by C.
        let fd = unsafe { libc::memfd_create(c"dma-buf".as_ptr(), flags) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: takes numbers.
        assert_eq!(unsafe { libc::ftruncate(fd, 8192) }, 0);
        // SAFETY: takes numbers.
        let sealed = unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        assert_eq!(sealed, 0);
        // SAFETY: fresh, with no other owner.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    #[test]
    fn dmabuf_by_attributes_is_registered_as_by_its_own_call() {
        let fabric = Fabric::new();
        let host = fabric.host([10, 9, 0, 1].into());
        host.stay();
        // SAFETY: a call without preconditions; no count is asked for.
        let list = unsafe { ffi::ibv_get_device_list(ptr::null_mut()) };
        // SAFETY: the list has the device of the host, and stays until the end of the process.
        let device = unsafe { *list };
        // SAFETY: a device of the list.
        let ctx = unsafe { ffi::ibv_open_device(device) };
        // SAFETY: an open device.
        let pd = unsafe { ffi::ibv_alloc_pd(ctx) };
        let memory = memory();
        let write = 1 | 2;
        for (fd, offset, length, iova, access) in [
            (memory.as_raw_fd(), 4096, 100, 0x7000_0000, write),
            (memory.as_raw_fd(), 24, 8168, 24, write),
            (memory.as_raw_fd(), 4096, 4097, 0, write),
            (memory.as_raw_fd(), 0, 4096, 8, write),
            (memory.as_raw_fd(), 0, 4096, 0, 2),
            (-1, 0, 4096, 0, write),
        ] {
            // SAFETY: integers and pointers; zero is a value of each.
            let mut attr: ffi::ibv_mr_init_attr = unsafe { mem::zeroed() };
            attr.length = length;
            attr.access = access;
            attr.iova = iova;
            attr.fd = fd;
            attr.fd_offset = offset;
            attr.comp_mask = FD | FD_OFFSET | IOVA;
            // SAFETY: a live domain, and attributes with numbers.
            let by_attr = outcome(unsafe { ibv_reg_mr_ex(pd, &raw mut attr) });
            // SAFETY: a live domain, and numbers.
            let mr = unsafe { ffi::ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access) };
            let by_call = outcome(mr);
            assert_eq!(by_attr, by_call, "{length} bytes at {offset}");
            // Neither a dma-buf with an address, nor one without an offset.
            for mask in [FD | IOVA, FD | FD_OFFSET, FD | FD_OFFSET | IOVA | ADDR] {
                attr.comp_mask = mask;
                // SAFETY: as above.
                let refused = outcome(unsafe { ibv_reg_mr_ex(pd, &raw mut attr) });
                assert_eq!(refused, Err(Some(libc::EINVAL)), "{mask:#x}");
            }
        }
        // SAFETY: the domain is not used any more.
        assert_eq!(unsafe { ffi::ibv_dealloc_pd(pd) }, 0);
        // SAFETY: the device is not used any more.
        assert_eq!(unsafe { ffi::ibv_close_device(ctx) }, 0);
    }
}
