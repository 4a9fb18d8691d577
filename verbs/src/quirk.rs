//! Peculiarities of providers, found in their sources. Most are bugs in Soft-RoCE's provider, with
//! workarounds here: distributions ship releases with these bugs for years.

use ibverbs_sys::late;

use crate::{context::Context, error::Result};

const SOFT_ROCE: u32 = 0xff_ffff;
const SOFT_IWARP: u32 = 0x62_6d74;
/// The PCI vendor ID of Broadcom, reported by `bnxt_re`.
const BROADCOM: u32 = 0x14e4;
/// The PCI vendor ID of qedr (Marvell).
const MARVELL: u32 = 0x1077;
/// The PCI vendor ID of Emulex, reported by ocrdma.
const EMULEX: u32 = 0x10df;
/// The PCI vendor ID of Amazon, reported by efa.
const AMAZON: u32 = 0x1d0f;
const SOFTNIC: u32 = 0x02_534e;

fn is_soft_roce(ctx: &Context) -> Result<bool> {
    Ok(ctx.vendor_id()? == SOFT_ROCE)
}

/// Whether the provider may copy messages, instead of the device, to the addresses in receives. The
/// providers of software devices do not; for others this is unknown here.
pub(crate) fn copies_messages(ctx: &Context) -> bool {
    !matches!(ctx.vendor_id(), Ok(SOFT_ROCE | SOFT_IWARP))
}

/// The kernel's number of the driver (`enum rdma_driver_id`) of a provider that rings doorbells by a `write` to the device
/// (`post_send_db` of rxe, `siw_db`).
pub(crate) fn driver_with_written_doorbell(ctx: &Context) -> Option<u32> {
    match ctx.vendor_id() {
        Ok(SOFT_ROCE) => Some(14),
        Ok(SOFT_IWARP) => Some(18),
        _ => None,
    }
}

/// After an `ibv_next_poll` without a completion, `ibv_end_poll` consumes a nonexistent completion,
/// and invents others from then on. Fixed in rdma-core 59, recognised by [`late::ibv_reg_mr_ex`].
pub(crate) fn cq_ex_advances_twice(ctx: &Context) -> Result<bool> {
    Ok(late::ibv_reg_mr_ex().is_none() && is_soft_roce(ctx)?)
}

/// Whether the driver accesses the start of a page paged on demand at any offset of a request within the page
/// (`rxe_odp_mr_copy` of Linux 7.2). No attribute of the device distinguishes a driver without the fault.
pub(crate) fn paging_ignores_offsets(ctx: &Context) -> Result<bool> {
    is_soft_roce(ctx)
}

/// A right of softnic's, in the range ignored by devices that do not know the right: the program may access the memory at
/// the same time as the device, by atomic accesses. softnic is part of the program, so its accesses are atomic there.
const SHARED_WITH_PROGRAM: u32 = 1 << 29;

/// The rights of memory that the program may access at the same time as the device.
pub(crate) fn rights_of_shared_memory(ctx: &Context) -> u32 {
    match ctx.vendor_id() {
        Ok(SOFTNIC) => SHARED_WITH_PROGRAM,
        _ => 0,
    }
}

/// Whether the device may access memory for a peer after the end of the registration: `siw_dereg_mr` waits neither for a
/// response to a read that has begun, whose pages TCP may send later, nor for a write of a packet on another processor. Of
/// the others: Assumption: a destroying call that succeeds has ended the device's access to the memory of the object.
pub(crate) fn access_outlives_registration(ctx: &Context) -> Result<bool> {
    Ok(ctx.vendor_id()? == SOFT_IWARP)
}

/// Whether the provider frees a completion queue's memory if the kernel refuses to resize the queue with any error
/// (`bnxt_re_resize_cq`).
pub(crate) fn failed_resize_frees_queue(ctx: &Context) -> Result<bool> {
    Ok(ctx.vendor_id()? == BROADCOM)
}

/// Whether the provider unmaps or frees parts of a queue pair before the kernel may refuse to destroy the queue pair
/// (`siw_destroy_qp`, `ocrdma_destroy_qp`, `efa_destroy_qp` before rdma-core 48). Of the others:
/// Assumption: a failed destruction leaves the queue pair as it was.
pub(crate) fn failed_destroy_frees_queues(ctx: &Context) -> bool {
    matches!(ctx.vendor_id(), Err(_) | Ok(SOFT_IWARP | EMULEX | AMAZON))
}

/// Whether completions have no `wr_id` of their own: the provider looks it up when polled, in the queue pair that has the number
/// of the completion's by then (`efa_poll_sub_cq`). After a reset or a destruction, that is another request's.
pub(crate) fn looks_up_requests_when_polled(ctx: &Context) -> bool {
    matches!(ctx.vendor_id(), Err(_) | Ok(AMAZON))
}

/// Whether a receive without elements is accepted, and never completes: `efa_post_recv` writes no descriptor for the receive.
pub(crate) fn loses_receives_without_elements(ctx: &Context) -> bool {
    matches!(ctx.vendor_id(), Err(_) | Ok(AMAZON))
}

/// Whether the provider takes no lock when a completion queue is polled (`qelr_poll_cq`). Of the others: Assumption:
/// providers lock a completion queue while it is polled.
pub(crate) fn polls_without_lock(ctx: &Context) -> bool {
    matches!(ctx.vendor_id(), Err(_) | Ok(MARVELL))
}

/// Whether a call to resize a completion queue or a shared receive queue has changed nothing, given its error.
///
/// Software devices map a queue again after the kernel has resized it, and lose the queue if the mapping fails. The
/// errors of `mmap` are others. Assumption: a resize that fails with `EINVAL`, `EOPNOTSUPP` or `ENOSYS` leaves the
/// queue as it was.
pub(crate) fn keeps_size(errno: i32) -> bool {
    matches!(
        errno.saturating_abs(),
        libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS
    )
}

/// Whether `ibv_wr_set_sge_list` gives every element the length of the first, and
/// `ibv_wr_set_inline_data_list` sends nothing and copies beyond the available room. Fixed in
/// rdma-core 64, recognised by [`late::ibv_alloc_buf`].
pub(crate) fn mangles_lists(ctx: &Context) -> Result<bool> {
    Ok(is_soft_roce(ctx)? && late::ibv_alloc_buf().is_none())
}

/// The effects of a failed post, as proven by the provider's source. An effect without a proof counts
/// as unknown. `ASSUMPTIONS.md` has the sources.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedPosts {
    /// The request of a send queue named by `bad_wr`, and the requests behind it.
    pub(crate) named_send: Named,
    /// The receive named by `bad_wr`, and the receives behind it.
    pub(crate) named_receive: Named,
    /// Assumption: all requests are posted if `bad_wr` is null. Only the doorbell has failed then.
    pub(crate) null_is_posted: bool,
    /// Whether a list of sends with success and a request in `bad_wr` is refused from this request on: `siw_post_send`
    /// replaces the error by the result of the doorbell.
    pub(crate) named_in_success: bool,
    /// Assumption: a failed `ibv_wr_complete` has posted nothing.
    pub(crate) complete_is_all_or_none: bool,
    /// The effect of a failed `ibv_bind_mw`, the call without a `bad_wr`.
    pub(crate) bind: FailedBind,
}

/// Assumption: the request named by `bad_wr`, and the requests behind it, are not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// They are not: the device does not have them.
    Unposted,
    /// As [`Unposted`](Self::Unposted), except for the second request of a post: after exactly one
    /// posted request, mlx4 and mlx5 copy the last descriptor to the device (`BlueFlame`), which is
    /// the refused one.
    UnpostedUnlessSecond,
    /// The device may have them.
    Unknown,
}

/// Assumption: a failed `ibv_bind_mw` has posted nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailedBind {
    Unposted,
    /// Soft-RoCE's posts the same request as `ibv_post_send` does, which also reports the effect.
    AsRequest,
    Unknown,
}

impl FailedPosts {
    /// Nothing is proven.
    pub(crate) const UNKNOWN: Self = Self {
        named_send: Named::Unknown,
        named_receive: Named::Unknown,
        null_is_posted: false,
        named_in_success: false,
        complete_is_all_or_none: false,
        bind: FailedBind::Unknown,
    };

    /// A request named by `bad_wr`, and those behind it, are not posted.
    const NAMED: Self = Self {
        named_send: Named::Unposted,
        named_receive: Named::Unposted,
        ..Self::UNKNOWN
    };

    /// The proofs for the provider of a device. Unknown for a device that does not answer.
    pub(crate) fn of(ctx: &Context) -> Self {
        ctx.vendor_id().map_or(Self::UNKNOWN, Self::of_vendor)
    }

    /// The proofs by vendor: of one provider in rdma-core, or of all of the vendor's.
    fn of_vendor(vendor: u32) -> Self {
        match vendor {
            SOFT_ROCE => Self {
                null_is_posted: true,
                bind: FailedBind::AsRequest,
                ..Self::NAMED
            },
            SOFT_IWARP => Self {
                null_is_posted: true,
                named_in_success: true,
                ..Self::NAMED
            },
            SOFTNIC => Self {
                null_is_posted: true,
                complete_is_all_or_none: true,
                bind: FailedBind::Unposted,
                ..Self::NAMED
            },
            // ionic (AMD Pensando).
            0x1dd8 => Self {
                complete_is_all_or_none: true,
                bind: FailedBind::Unposted,
                ..Self::NAMED
            },
            // mlx5, mlx4, mthca: NVIDIA's numbers, and those of vendors of these cards.
            0x02c9 | 0x15b3 | 0x05ad | 0x066a | 0x08f1 | 0x1708 | 0x03ba | 0x119f => Self {
                named_send: Named::UnpostedUnlessSecond,
                complete_is_all_or_none: true,
                bind: FailedBind::Unposted,
                ..Self::NAMED
            },
            // bnxt_re (Broadcom), efa (Amazon), hns (Huawei).
            BROADCOM | AMAZON | 0x19e5 => Self {
                complete_is_all_or_none: true,
                ..Self::NAMED
            },
            // irdma (Intel).
            0x8086 => Self {
                bind: FailedBind::Unposted,
                ..Self::NAMED
            },
            // mana (Microsoft): a refused RDMA read may have its elements with the device.
            0x1414 => Self {
                named_send: Named::Unknown,
                ..Self::NAMED
            },
            // cxgb4 (Chelsio), erdma (Alibaba), hfi1verbs and ipathverbs (Intel, formerly QLogic),
            // ocrdma (Emulex), qedr (Marvell), vmw_pvrdma (VMware).
            0x1425 | 0x1ded | 0x1175 | EMULEX | MARVELL | 0x15ad => Self::NAMED,
            _ => Self::UNKNOWN,
        }
    }
}
