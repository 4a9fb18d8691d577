//! The device's clock.

use std::io;

use ibverbs_sys as ffi;

use crate::{
    context::Context,
    error::{Error, Result, cvt_errno},
};

impl Context {
    /// `ibv_query_rt_values_ex(ctx, …)`—Reads the device's clock, in device ticks.
    ///
    /// Completion timestamps are in ticks of the same clock; the frequency is
    /// [`DeviceAttr::hca_core_clock`](crate::attr::DeviceAttr::hca_core_clock).
    ///
    /// # Errors
    /// - `EOPNOTSUPP`, `Unsupported`: the device has no clock, or does not expose one.
    ///
    /// # References
    /// [ibv_query_rt_values_ex(3)](https://man7.org/linux/man-pages/man3/ibv_query_rt_values_ex.3.html)
    #[doc(alias = "IBV_VALUES_MASK_RAW_CLOCK")]
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn query_clock(&self) -> Result<u64> {
        const CALL: &str = "ibv_query_rt_values_ex";
        const NANOS: u64 = 1_000_000_000;
        let raw_clock = ffi::ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0;
        let mut values = ffi::ibv_values_ex::zeroed();
        values.comp_mask = raw_clock;
        // SAFETY: the context is open for as long as `self` lives, and `values` is a valid place.
        let ret = unsafe { ffi::ibv_query_rt_values_ex(self.as_raw(), &raw mut values) };
        cvt_errno(CALL, ret)?;
        if values.comp_mask & raw_clock == 0 {
            let reason = "the device does not show its clock";
            return Err(Error::refused(CALL, io::ErrorKind::Unsupported, reason));
        }
        // `raw_clock` is a `timespec` in which each nanosecond stands for one tick of the device.
        let [secs, nanos] = [values.raw_clock.tv_sec, values.raw_clock.tv_nsec]
            .map(|part| u64::try_from(part).unwrap_or(0));
        Ok(secs.wrapping_mul(NANOS).wrapping_add(nanos))
    }
}
