//! Peculiarities of providers. Most are bugs in Soft-RoCE's provider, with workarounds here:
//! distributions ship releases with these bugs for years.

use ibverbs_sys::late;

use crate::{context::Context, error::Result};

const SOFT_ROCE: u32 = 0xff_ffff;
const SOFT_IWARP: u32 = 0x62_6d74;

fn is_soft_roce(ctx: &Context) -> Result<bool> {
    Ok(ctx.vendor_id()? == SOFT_ROCE)
}

/// Whether the provider may copy messages, instead of the device, to the addresses in receives. The
/// providers of software devices do not; for others this is unknown here.
pub(crate) fn copies_messages(ctx: &Context) -> bool {
    !matches!(ctx.vendor_id(), Ok(SOFT_ROCE | SOFT_IWARP))
}

/// After an `ibv_next_poll` without a completion, `ibv_end_poll` consumes a nonexistent completion,
/// and invents others from then on. Fixed in rdma-core 59, recognised by [`late::ibv_reg_mr_ex`].
pub(crate) fn cq_ex_advances_twice(ctx: &Context) -> Result<bool> {
    Ok(late::ibv_reg_mr_ex().is_none() && is_soft_roce(ctx)?)
}

/// The bugs of posting requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostingQuirks {
    /// `ibv_wr_set_sge_list` gives every element the length of the first, and
    /// `ibv_wr_set_inline_data_list` sends nothing and copies beyond the available room. Fixed in
    /// rdma-core 64, recognised by [`late::ibv_alloc_buf`].
    pub(crate) wrong_lists: bool,
    /// `ibv_wr_complete` and `ibv_post_send` fail when the doorbell call fails, but leave the
    /// requests posted: the kernel finds the requests at the next doorbell.
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
