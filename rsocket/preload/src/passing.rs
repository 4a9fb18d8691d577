//! Descriptors passed to other processes by messages (`SCM_RIGHTS`).
//!
//! The receiver would get the local socket that shows an rsocket's readiness here, and wait there forever. So the message
//! is refused.

use interpose::{load, set_errno};
use libc::{c_int, cmsghdr, msghdr};

use crate::{log, table::SOCKETS};

/// Refuses a message that passes an rsocket, with a message on standard error. Returns whether it has.
///
/// # Safety
/// `msg` is null, or valid with its control data.
pub(crate) unsafe fn refuse(msg: *const msghdr) -> bool {
    // SAFETY: as the caller promises.
    let Some(fd) = (unsafe { passed_rsocket(msg) }) else {
        return false;
    };
    log::warn(&format!(
        "descriptor {fd}, an RDMA stream, cannot be passed to another process (SCM_RIGHTS); run the program without this \
         library"
    ));
    set_errno(libc::EOPNOTSUPP);
    true
}

/// Returns the first rsocket among the passed descriptors.
///
/// # Safety
/// As for [`refuse`].
unsafe fn passed_rsocket(msg: *const msghdr) -> Option<c_int> {
    // SAFETY: null or valid, as the caller promises.
    if unsafe { load(msg) }?.msg_controllen == 0 {
        return None;
    }
    // SAFETY: valid, as the caller promises.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(msg) };
    // SAFETY: Assumption: `CMSG_NXTHDR` returns null or a header inside of the message.
    while let Some(control) = unsafe { load(at) } {
        // SAFETY: as above.
        if let Some(fd) = unsafe { rsocket_in(at, &control) } {
            return Some(fd);
        }
        // SAFETY: as above.
        at = unsafe { libc::CMSG_NXTHDR(msg, at) };
    }
    None
}

/// # Safety
/// `at` is the valid control message `control`.
unsafe fn rsocket_in(at: *const cmsghdr, control: &cmsghdr) -> Option<c_int> {
    if (control.cmsg_level, control.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
        return None;
    }
    // SAFETY: no preconditions.
    let header = unsafe { libc::CMSG_LEN(0) } as usize;
    // SAFETY: valid, as the caller promises.
    let first = unsafe { libc::CMSG_DATA(at) }.cast::<c_int>();
    let count = control.cmsg_len.saturating_sub(header) / size_of::<c_int>();
    (0..count).find_map(|index| {
        // SAFETY: within the message, by its length.
        let fd = unsafe { load(first.wrapping_add(index)) }?;
        SOCKETS.may_have(fd).then_some(fd)
    })
}
