//! Why a queue does not even try to post something. Out of line: posting rarely fails.

use std::io;

use super::tso::TsoLimits;
use crate::{
    error::Error,
    op::{Segments, SendOps},
};

#[cold]
#[inline(never)]
pub(crate) fn full(call: &'static str) -> Error {
    let reason = "every request that the queue can hold is in flight; poll its completion queue";
    Error::would_block(call, reason)
}

#[cold]
#[inline(never)]
pub(super) fn elements(call: &'static str, found: usize, limit: u32) -> Error {
    let reason =
        format!("{found} elements, and the queue pair was made for {limit}; raise `max_send_sge`");
    Error::refused(call, io::ErrorKind::InvalidInput, reason)
}

#[cold]
#[inline(never)]
pub(super) fn elements_of_operation(call: &'static str, found: usize, limit: u32) -> Error {
    let reason = format!(
        "{found} elements, and the device allows {limit} for this operation; post more requests"
    );
    Error::refused(call, io::ErrorKind::InvalidInput, reason)
}

#[cold]
#[inline(never)]
pub(super) fn inline(call: &'static str, found: u64, limit: u32) -> Error {
    let reason = format!(
        "{found} bytes inline, and the queue pair was made for {limit}; raise `max_inline_data`"
    );
    Error::refused(call, io::ErrorKind::InvalidInput, reason)
}

#[cold]
#[inline(never)]
pub(super) fn no_reads(call: &'static str) -> Error {
    let reason = "max_rd_atomic is 0, and the read or atomic would wait for ever; set \
                  `Attributes::max_rd_atomic`, or with a connection manager this side's `initiator_depth` and \
                  the peer's `responder_resources`";
    Error::refused(call, io::ErrorKind::InvalidInput, reason)
}

#[cold]
#[inline(never)]
pub(super) fn not_exactly(call: &'static str, elements: usize, bytes: u64, expected: u32) -> Error {
    let reason = format!(
        "{elements} elements of {bytes} bytes, and the operation has one of {expected} bytes"
    );
    Error::refused(call, io::ErrorKind::InvalidInput, reason)
}

#[cold]
#[inline(never)]
pub(super) fn not_looked_at(call: &'static str, expected: u32) -> Error {
    let reason = format!(
        "the first element must have {expected} bytes, and all must be memory of this process, at which the device's \
         library may look"
    );
    Error::refused(call, io::ErrorKind::InvalidInput, reason)
}

#[cold]
#[inline(never)]
pub(super) fn beyond_token(call: &'static str, bytes: u64, granted: u64) -> Error {
    let reason = format!(
        "the request accesses {bytes} bytes of the peer's memory, and its token grants {granted}; use the \
         token of the whole memory, or transfer less"
    );
    Error::refused(call, io::ErrorKind::InvalidInput, reason)
}

#[cold]
#[inline(never)]
pub(super) fn of_another_device(call: &'static str) -> Error {
    let reason = "the memory, or the address handle, is of another device, or of this one opened a \
                  second time";
    Error::refused(call, io::ErrorKind::InvalidInput, reason)
}

#[cold]
#[inline(never)]
pub(super) fn segments(
    call: &'static str,
    segments: Segments,
    bytes: u64,
    limits: TsoLimits,
) -> Error {
    let reason = format!(
        "a header of {} bytes and {bytes} bytes in segments of {}, \
         and the queue pair was made for {} and {}; raise `max_tso_header`, or send less at once",
        segments.header, segments.mss, limits.max_header, limits.max_data
    );
    Error::refused(call, io::ErrorKind::InvalidInput, reason)
}

#[cold]
#[inline(never)]
pub(super) fn operation(op: SendOps) -> Error {
    let reason = format!("the queue pair was not made for {op:?}; build it with `send_ops`");
    Error::refused(op.call(), io::ErrorKind::Unsupported, reason)
}

#[cold]
#[inline(never)]
pub(super) fn lengths(call: &'static str) -> Error {
    let reason = "Soft-RoCE before rdma-core 64 takes all elements to be equally long";
    Error::refused(call, io::ErrorKind::Unsupported, reason)
}
