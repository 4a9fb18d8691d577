//! The functions of librdmacm used by `cm`, over the connection manager.

mod address;
mod addrinfo;
mod attributes;
mod channel;
mod connect;
mod devices;
mod endpoint;
mod event;
mod id;
mod multicast;
mod options;
mod qp;
mod queue;
mod resolve;
mod srq;

pub(super) use address::{Address, read as read_address, storage};
pub(super) use devices::free_abandoned;
pub(super) use queue::{CmSubject, Queued};

use std::ffi::c_int;

use super::set_errno;
use crate::cm::CmError;

/// `ENOTSUPP` of the kernel, an errno without a name in the C library.
const ENOTSUPP: c_int = 524;

/// Converts a refusal to an errno.
fn errno(error: CmError) -> c_int {
    match error {
        CmError::AddressInUse(_) => libc::EADDRINUSE,
        CmError::AddressNotAvailable(_) => libc::EADDRNOTAVAIL,
        // As in the kernel, whose loopback interface has no RDMA device.
        CmError::Unreachable(addr) if addr.ip().is_loopback() => libc::ENODEV,
        CmError::Unreachable(_) => libc::ENETUNREACH,
        CmError::IsConnected => libc::EISCONN,
        CmError::NotSupported(_) => ENOTSUPP,
        CmError::DeviceRemoved => libc::ENODEV,
        CmError::NotFound(_) | CmError::Invalid(_) => libc::EINVAL,
    }
}

/// Sets `errno`, and returns -1.
fn failed(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// Return value of a C function for a result: 0, or -1 with `errno` set.
fn outcome(result: Result<(), CmError>) -> c_int {
    result.map_or_else(|error| failed(errno(error)), |()| 0)
}
