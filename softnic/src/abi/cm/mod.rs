//! The functions of librdmacm over the connection manager, as far as `cm` calls them.

mod address;
mod addrinfo;
mod attributes;
mod channel;
mod connect;
mod devices;
mod event;
mod id;
mod multicast;
mod options;
mod queue;
mod resolve;

pub(super) use queue::{CmSubject, Queued};

use std::ffi::c_int;

use super::set_errno;
use crate::cm::CmError;

/// An error of the kernel's that the C library has no name for.
const ENOTSUPP: c_int = 524;

/// The errno of a refusal.
fn errno(error: CmError) -> c_int {
    match error {
        CmError::AddressInUse(_) => libc::EADDRINUSE,
        CmError::AddressNotAvailable(_) => libc::EADDRNOTAVAIL,
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

/// What a C function returns for the outcome of a call: 0, or -1 with `errno` set.
fn outcome(result: Result<(), CmError>) -> c_int {
    result.map_or_else(|error| failed(errno(error)), |()| 0)
}
