//! Limits and capabilities.

use bitflags::bitflags;
use verbs::{Context, Result, error::cvt_errno};

bitflags! {
    /// Capabilities of a device.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct DeviceCaps: u32 {
        /// [`ReadFrom`](crate::ReadFrom).
        #[doc(alias = "EFADV_DEVICE_ATTR_CAPS_RDMA_READ")]
        const RDMA_READ = efa_sys::EFADV_DEVICE_ATTR_CAPS_RDMA_READ;
        /// The number of retries without a receive can be set.
        #[doc(alias = "EFADV_DEVICE_ATTR_CAPS_RNR_RETRY")]
        const RNR_RETRY = efa_sys::EFADV_DEVICE_ATTR_CAPS_RNR_RETRY;
        /// [`create_cq`](crate::create_cq).
        #[doc(alias = "EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID")]
        const CQ_WITH_SGID = efa_sys::EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID;
        /// [`WriteTo`](crate::WriteTo). Since rdma-core 47.
        #[doc(alias = "EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE")]
        const RDMA_WRITE = efa_sys::EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE;
        const _ = !0;
    }
}

/// `efadv_device_attr`—Limits of a device.
#[doc(alias = "efadv_device_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// Maximum number of requests of a send queue.
    pub max_sq_wr: u32,
    /// Maximum number of receives of a queue pair.
    pub max_rq_wr: u32,
    /// Maximum number of elements of a request.
    pub max_sq_sge: u16,
    /// Maximum number of elements of a receive.
    pub max_rq_sge: u16,
    /// Maximum number of inline bytes.
    pub inline_buf_size: u16,
    /// Capabilities.
    pub device_caps: DeviceCaps,
    /// Maximum number of bytes of an RDMA request.
    pub max_rdma_size: u32,
}

/// `efadv_query_device`—Queries the limits of a device.
///
/// ```
/// # let (_fabric, ctx) = doctest::device();
/// let attr = efa::query_device(&ctx)?;
/// println!("reads: {}", attr.device_caps.contains(efa::DeviceCaps::RDMA_READ));
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # Errors
/// - `EOPNOTSUPP`: the device is no EFA.
#[doc(alias = "efadv_query_device")]
pub fn query_device(ctx: &Context) -> Result<DeviceAttr> {
    let mut attr = efa_sys::efadv_device_attr::zeroed();
    let len = u32::try_from(size_of_val(&attr)).unwrap_or(0);
    // SAFETY: the context is open for as long as `ctx` lives, and `attr` has this length.
    let errno = unsafe { efa_sys::efadv_query_device(ctx.as_raw(), &raw mut attr, len) };
    cvt_errno("efadv_query_device", errno)?;
    Ok(DeviceAttr {
        max_sq_wr: attr.max_sq_wr,
        max_rq_wr: attr.max_rq_wr,
        max_sq_sge: attr.max_sq_sge,
        max_rq_sge: attr.max_rq_sge,
        inline_buf_size: attr.inline_buf_size,
        device_caps: DeviceCaps::from_bits_retain(attr.device_caps),
        max_rdma_size: attr.max_rdma_size,
    })
}
