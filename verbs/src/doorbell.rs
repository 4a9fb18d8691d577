//! The doorbell of a send queue by `ioctl(2)`, for providers that ring it by `write(2)`.
//!
//! The kernel refuses a `write` to a device with other credentials than those of the opener (`ib_safe_file_access`), as
//! after `setuid(2)`, and accepts the same command by `ioctl`.

use std::{os::fd::RawFd, ptr::NonNull};

use ibverbs_sys as ffi;

use crate::{context::Context, quirk};

/// `struct ib_uverbs_attr`
#[repr(C)]
struct Attr {
    attr_id: u16,
    /// Size in bytes of the data; up to 8 bytes are in `data`.
    len: u16,
    flags: u16,
    attr_data: u16,
    /// The data, or their address.
    data: u64,
}

/// `struct ib_uverbs_ioctl_hdr`
#[repr(C)]
struct Header {
    /// Size in bytes, with the attributes.
    length: u16,
    object_id: u16,
    method_id: u16,
    num_attrs: u16,
    reserved1: u64,
    driver_id: u32,
    reserved2: u32,
}

#[repr(C)]
struct Command {
    header: Header,
    attrs: [Attr; 3],
}

/// `struct ib_uverbs_post_send`
#[repr(C)]
struct PostSend {
    response: u64,
    qp_handle: u32,
    wr_count: u32,
    sge_count: u32,
    /// Size in bytes of a request; the kernel accepts no less than its own `struct ib_uverbs_send_wr`.
    wqe_size: u32,
}

/// Sizes in bytes.
const COMMAND: u16 = 72;
const POST_SEND_SIZE: u16 = 24;
const WQE_SIZE: u32 = 128;

const _: () = assert!(size_of::<Command>() == COMMAND as usize);
const _: () = assert!(size_of::<PostSend>() == POST_SEND_SIZE as usize);
const _: () = assert!(size_of::<ffi::ibv_send_wr>() == WQE_SIZE as usize);

/// `RDMA_VERBS_IOCTL`
const IOCTL: libc::Ioctl = libc::_IOWR::<Header>(0x1b, 1);

/// `UVERBS_OBJECT_DEVICE`
const DEVICE: u16 = 0;

/// `UVERBS_METHOD_INVOKE_WRITE`
const INVOKE_WRITE: u16 = 0;

/// `UVERBS_ATTR_CORE_IN`
const CORE_IN: u16 = 0;

/// `UVERBS_ATTR_CORE_OUT`
const CORE_OUT: u16 = 1;

/// `UVERBS_ATTR_WRITE_CMD`
const WRITE_CMD: u16 = 2;

/// `UVERBS_ATTR_F_MANDATORY`
const MANDATORY: u16 = 1;

/// `IB_USER_VERBS_CMD_POST_SEND`
const POST_SEND: u64 = 28;

/// Rings the doorbell of a send queue after `errno`, the error of the provider's doorbell. Returns the error that remains, or 0.
///
/// # Safety
/// The queue pair exists.
#[cold]
#[inline(never)]
pub(crate) unsafe fn ring_again(qp: NonNull<ffi::ibv_qp>, ctx: &Context, errno: i32) -> i32 {
    if errno.saturating_abs() != libc::EACCES {
        return errno;
    }
    let Some(driver) = quirk::driver_with_written_doorbell(ctx) else {
        return errno;
    };
    // SAFETY: the queue pair exists, as the caller promises, and the handle is constant.
    let qp_handle = unsafe { (*qp.as_ptr()).handle };
    // SAFETY: the context is open for as long as `ctx` is borrowed, and the descriptor is constant.
    let cmd_fd = unsafe { (*ctx.as_raw()).cmd_fd };
    if ring(cmd_fd, qp_handle, driver) {
        0
    } else {
        errno
    }
}

/// Rings a doorbell, as `post_send_db` and `siw_db` do: by a post of no request. Returns whether the kernel has accepted.
fn ring(cmd_fd: RawFd, qp_handle: u32, driver_id: u32) -> bool {
    let request = PostSend {
        response: 0,
        qp_handle,
        wr_count: 0,
        sge_count: 0,
        wqe_size: WQE_SIZE,
    };
    let mut bad_wr = 0_u32;
    let attr = |attr_id, len, data| Attr {
        attr_id,
        len,
        flags: MANDATORY,
        attr_data: 0,
        data,
    };
    let address = |at: usize| at as u64;
    let mut command = Command {
        header: Header {
            length: COMMAND,
            object_id: DEVICE,
            method_id: INVOKE_WRITE,
            num_attrs: 3,
            reserved1: 0,
            driver_id,
            reserved2: 0,
        },
        attrs: [
            attr(
                CORE_IN,
                POST_SEND_SIZE,
                address((&raw const request).expose_provenance()),
            ),
            attr(CORE_OUT, 4, address((&raw mut bad_wr).expose_provenance())),
            attr(WRITE_CMD, 8, POST_SEND),
        ],
    };
    // SAFETY: the kernel reads the command and the request, and writes the attributes' flags and 4 bytes of `bad_wr`: all
    // outlive the call.
    let ret = unsafe { libc::ioctl(cmd_fd, IOCTL, &raw mut command) };
    ret == 0
}
