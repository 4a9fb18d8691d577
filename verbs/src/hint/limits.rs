//! Hints for objects that are larger than the device allows.

use std::fmt::Write as _;

use crate::{attr::DeviceAttr, context::Context, error::Error};

/// A number that was asked for, and the most that the device allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// The caller's name for the number.
    pub(crate) name: &'static str,
    pub(crate) requested: u64,
    /// The field of `ibv_device_attr`, or of another object, with the device's value.
    pub(crate) device_name: &'static str,
    pub(crate) allowed: u64,
}

impl Limit {
    pub(crate) fn new(
        name: &'static str,
        requested: impl Into<u64>,
        device_name: &'static str,
        allowed: impl Into<u64>,
    ) -> Self {
        Self {
            name,
            requested: requested.into(),
            device_name,
            allowed: allowed.into(),
        }
    }
}

/// Names the limits that are exceeded, with the device's values. `None` if none is.
pub(crate) fn exceeded(limits: &[Limit]) -> Option<String> {
    let mut text = String::new();
    for limit in limits
        .iter()
        .filter(|limit| limit.requested > limit.allowed)
    {
        let separator = if text.is_empty() { "" } else { "; " };
        let Limit {
            name,
            requested,
            device_name,
            allowed,
        } = limit;
        // Writing to a string does not fail.
        let _: std::fmt::Result = write!(
            text,
            "{separator}{name} is {requested}, and the device allows {allowed} ({device_name})"
        );
    }
    (!text.is_empty()).then_some(text)
}

/// Adds the limits that `limits_of` finds exceeded, where a device has refused to create an object.
fn explain(
    err: Error,
    ctx: &Context,
    limits_of: impl FnOnce(&DeviceAttr) -> Option<String>,
) -> Error {
    // E2BIG is Chelsio's.
    let refusals = [libc::EINVAL, libc::ENOMEM, libc::E2BIG].map(Some);
    if !refusals.contains(&err.raw_os_error()) {
        return err;
    }
    match ctx.query_device().ok().and_then(|attr| limits_of(&attr)) {
        Some(hint) => err.hint(hint),
        None => err,
    }
}

/// The device's value, which C has as a signed number.
fn allowed(value: u32) -> u64 {
    value.into()
}

/// A completion queue that could not be created or resized.
pub(crate) fn cq(err: Error, ctx: &Context, cqe: u32, vector: u32) -> Error {
    explain(err, ctx, |attr| {
        let vectors = ctx.num_comp_vectors();
        exceeded(&[
            Limit::new(
                "the number of entries",
                cqe,
                "max_cqe",
                allowed(attr.max_cqe()),
            ),
            // Vectors are counted from 0.
            Limit::new(
                "the completion vector",
                vector,
                "num_comp_vectors - 1",
                vectors.saturating_sub(1),
            ),
        ])
        .or_else(|| (cqe == 0).then(|| "a completion queue has at least one entry".to_owned()))
    })
}

/// A shared receive queue that could not be created or resized.
pub(crate) fn srq(err: Error, ctx: &Context, max_wr: u32, max_sge: u32) -> Error {
    explain(err, ctx, |attr| {
        exceeded(&[
            Limit::new("max_wr", max_wr, "max_srq_wr", allowed(attr.max_srq_wr())),
            Limit::new(
                "max_sge",
                max_sge,
                "max_srq_sge",
                allowed(attr.max_srq_sge()),
            ),
        ])
    })
}

/// A work queue that could not be created.
pub(crate) fn work_queue(err: Error, ctx: &Context, max_wr: u32, max_sge: u32) -> Error {
    explain(err, ctx, |attr| {
        exceeded(&[
            Limit::new("max_wr", max_wr, "max_qp_wr", allowed(attr.max_qp_wr())),
            Limit::new("max_sge", max_sge, "max_sge", allowed(attr.max_sge())),
        ])
    })
}

/// The capacities requested for a queue pair that could not be created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestedCaps {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// Hint for capacities of which the device grants each alone.
const COMBINATION: &str = "each number is within the limits of the device, which does not grant them together: ask for fewer \
                           requests, elements or inline bytes";

/// A queue pair that could not be created. `max_inline` finds the device's limit of inline bytes by
/// trial, since no attribute of the device has it; `grants_less` whether the smallest capacities are granted.
pub(crate) fn qp(
    err: Error,
    ctx: &Context,
    requested: RequestedCaps,
    max_inline: impl FnOnce() -> Option<u32>,
    grants_less: impl FnOnce() -> bool,
) -> Error {
    // Without memory, the limit of locked memory is the first cause to look for.
    let has_memory = err.raw_os_error() != Some(libc::ENOMEM);
    explain(err, ctx, |attr| {
        let (wr, sge) = (allowed(attr.max_qp_wr()), allowed(attr.max_sge()));
        exceeded(&[
            Limit::new("max_send_wr", requested.max_send_wr, "max_qp_wr", wr),
            Limit::new("max_recv_wr", requested.max_recv_wr, "max_qp_wr", wr),
            Limit::new("max_send_sge", requested.max_send_sge, "max_sge", sge),
            Limit::new("max_recv_sge", requested.max_recv_sge, "max_sge", sge),
        ])
        .or_else(|| {
            let inline = requested.max_inline_data;
            if inline == 0 {
                return None;
            }
            let allowed = max_inline()?;
            exceeded(&[Limit::new(
                "max_inline_data",
                inline,
                "found by trying",
                allowed,
            )])
        })
        .or_else(|| (has_memory && grants_less()).then(|| COMBINATION.to_owned()))
    })
}
