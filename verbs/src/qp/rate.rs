//! Rate limits of queue pairs.

use std::io;

use ibverbs_sys as ffi;

use super::{pair::QueuePair, state::Rts, transport::Transport};
use crate::error::{Error, Result, cvt_errno};

/// `ibv_qp_rate_limit_attr`—The maximum send rate of a queue pair.
///
/// # References
/// [ibv_modify_qp_rate_limit(3)](https://man7.org/linux/man-pages/man3/ibv_modify_qp_rate_limit.3.html)
#[doc(alias = "ibv_qp_rate_limit_attr")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RateLimit {
    /// In kbit/s; 0 for no limit.
    pub rate: u32,
    /// Maximum number of bytes sent at once; 0 for the device's own choice.
    pub max_burst: u32,
    /// The length in bytes of most packets, for precise pacing; 0 if unknown.
    pub typical_packet: u16,
}

impl<T: Transport, SW, RW> QueuePair<T, Rts, SW, RW> {
    /// `ibv_modify_qp_rate_limit`—Sets the maximum send rate of the queue pair. Enters the kernel.
    ///
    /// # Errors
    /// - `InvalidInput`: the device paces packets, but not at this rate; see
    ///   [`PacketPacingCaps`](crate::attr::PacketPacingCaps).
    /// - `EOPNOTSUPP`: the device does not pace packets.
    /// - `EINVAL`: not supported on this transport, or not with such bursts.
    ///
    /// # References
    /// [ibv_modify_qp_rate_limit(3)](https://man7.org/linux/man-pages/man3/ibv_modify_qp_rate_limit.3.html)
    #[doc(alias = "ibv_modify_qp_rate_limit")]
    pub fn set_rate_limit(&mut self, limit: &RateLimit) -> Result<()> {
        const CALL: &str = "ibv_modify_qp_rate_limit";
        let rate = limit.rate;
        let caps = self.pd().context().query_device()?.packet_pacing_caps();
        let (min, max) = (caps.qp_rate_limit_min, caps.qp_rate_limit_max);
        if rate != 0 && max != 0 && !(min..=max).contains(&rate) {
            let reason = format!("the device can do {min} to {max} kbit/s");
            let error = Error::refused(CALL, io::ErrorKind::InvalidInput, reason);
            return Err(error.detail(format!("{rate} kbit/s")));
        }
        let mut attr = ffi::ibv_qp_rate_limit_attr::zeroed();
        attr.rate_limit = rate;
        attr.max_burst_sz = limit.max_burst;
        attr.typical_pkt_sz = limit.typical_packet;
        // SAFETY: the queue pair exists for as long as `self` lives. Assumption: C keeps no pointer
        // to the attributes.
        let errno = unsafe { ffi::ibv_modify_qp_rate_limit(self.as_raw(), &raw mut attr) };
        cvt_errno(CALL, errno).map_err(|err| err.detail(format!("{}, {limit:?}", T::NAME)))
    }
}
