//! What providers do that others do not. Most of it is wrong with Soft-RoCE's, and must be worked around: releases of
//! distributions have these bugs for years.

use ibverbs_sys::late;

use crate::{context::Context, error::Result};

const SOFT_ROCE: u32 = 0xff_ffff;
const SOFT_IWARP: u32 = 0x62_6d74;

fn is_soft_roce(ctx: &Context) -> Result<bool> {
    Ok(ctx.vendor_id()? == SOFT_ROCE)
}

/// Whether the provider may copy messages to where receives say that memory is, instead of the device. Those of the
/// devices in software do not; of others it is not known here.
pub(crate) fn copies_messages(ctx: &Context) -> bool {
    !matches!(ctx.vendor_id(), Ok(SOFT_ROCE | SOFT_IWARP))
}

/// Whether `ibv_req_notify_cq` is a call of the kernel's, and made by libibverbs' general way to it.
pub(crate) fn asks_kernel_for_events(ctx: &Context) -> bool {
    matches!(ctx.vendor_id(), Ok(SOFT_ROCE))
}

/// After `ibv_next_poll` has found nothing, `ibv_end_poll` takes a completion that is not there,
/// and makes up others from then on. Fixed in rdma-core 59, of which [`late::ibv_reg_mr_ex`] is a
/// sign.
pub(crate) fn cq_ex_advances_twice(ctx: &Context) -> Result<bool> {
    Ok(late::ibv_reg_mr_ex().is_none() && is_soft_roce(ctx)?)
}

/// The bugs of posting requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostingQuirks {
    /// `ibv_wr_set_sge_list` takes every element to be as long as the first, and
    /// `ibv_wr_set_inline_data_list` sends nothing and does not hold what it copies to the
    /// room that there is. Fixed in rdma-core 64, of which [`late::ibv_alloc_buf`] is a sign.
    pub(crate) wrong_lists: bool,
    /// `ibv_wr_complete` and `ibv_post_send` fail when the kernel could not be told, and leave the
    /// requests posted: it finds them when it is told of others.
    pub(crate) fails_posted: bool,
}

impl PostingQuirks {
    pub(crate) fn of(ctx: &Context) -> Result<Self> {
        let soft_roce = is_soft_roce(ctx)?;
        Ok(Self {
            wrong_lists: soft_roce && late::ibv_alloc_buf().is_none(),
            fails_posted: soft_roce,
        })
    }
}
