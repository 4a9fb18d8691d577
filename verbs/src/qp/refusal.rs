//! Why a queue does not even try to post something. Out of line: posting rarely fails.

use std::io;

use crate::error::Error;

#[cold]
#[inline(never)]
pub(super) fn full(call: &'static str) -> Error {
    let reason = "every request that the queue can hold is in flight";
    Error::refused(call, io::ErrorKind::WouldBlock, reason)
}

#[cold]
#[inline(never)]
pub(super) fn elements(call: &'static str, found: usize, limit: u32) -> Error {
    let reason = format!("{found} elements, and the queue pair was made for {limit}");
    Error::refused(call, io::ErrorKind::InvalidInput, reason)
}

#[cold]
#[inline(never)]
pub(super) fn inline(call: &'static str, found: u64, limit: u32) -> Error {
    let reason = format!("{found} bytes inline, and the queue pair was made for {limit}");
    Error::refused(call, io::ErrorKind::InvalidInput, reason)
}

/// What the device has to say: some providers negate the number.
#[cold]
#[inline(never)]
pub(super) fn device(call: &'static str, errno: i32) -> Error {
    Error::from_errno(call, errno.saturating_abs())
}
