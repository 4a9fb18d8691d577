//! Enhanced connection establishment (ECE): vendor options negotiated between two devices.

use ibverbs_sys as ffi;

use crate::{
    error::{Result, cvt_errno},
    qp::{QueuePair, State, Transport},
};

/// `ibv_ece`—Options of a device beyond the standard, offered or chosen. The meaning is the
/// vendor's.
///
/// A connection manager carries the options: the active side sends the result of
/// [`query_ece`](QueuePair::query_ece). The passive side [sets](QueuePair::set_ece) the received
/// options before bringing its queue pair up, queries again, and answers with the result. The
/// active side then sets the answer.
///
/// # References
/// [ibv_query_ece(3)](https://man7.org/linux/man-pages/man3/ibv_query_ece.3.html),
/// [ibv_set_ece(3)](https://man7.org/linux/man-pages/man3/ibv_set_ece.3.html)
#[doc(alias = "ibv_ece")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ece {
    /// The vendor that defines the options.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
    /// Mask of valid future fields; 0.
    pub comp_mask: u32,
}

impl<T: Transport, S: State, SW, RW> QueuePair<T, S, SW, RW> {
    /// `ibv_query_ece(qp, …)`—The options offered by the queue pair, or set before.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`: the device has no such options.
    ///
    /// # References
    /// [ibv_query_ece(3)](https://man7.org/linux/man-pages/man3/ibv_query_ece.3.html)
    #[doc(alias = "ibv_query_ece")]
    pub fn query_ece(&self) -> Result<Ece> {
        let mut raw = ffi::ibv_ece::zeroed();
        // SAFETY: the queue pair exists for as long as `self` lives, and `raw` is a valid place.
        let errno = unsafe { ffi::ibv_query_ece(self.as_raw(), &raw mut raw) };
        cvt_errno("ibv_query_ece", errno)?;
        Ok(Ece {
            vendor_id: raw.vendor_id,
            options: raw.options,
            comp_mask: raw.comp_mask,
        })
    }

    /// `ibv_set_ece(qp, …)`—Sets the options to use, before the queue pair is brought up.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`: the device has no such options.
    /// - `EINVAL`: the options are another vendor's.
    ///
    /// # References
    /// [ibv_set_ece(3)](https://man7.org/linux/man-pages/man3/ibv_set_ece.3.html)
    #[doc(alias = "ibv_set_ece")]
    pub fn set_ece(&mut self, ece: Ece) -> Result<()> {
        let mut raw = ffi::ibv_ece {
            vendor_id: ece.vendor_id,
            options: ece.options,
            comp_mask: ece.comp_mask,
        };
        // SAFETY: the queue pair exists for as long as `self` lives. Assumption: C keeps no pointer
        // to the attributes.
        let errno = unsafe { ffi::ibv_set_ece(self.as_raw(), &raw mut raw) };
        cvt_errno("ibv_set_ece", errno).map_err(|err| err.detail(format!("{ece:?}")))
    }
}
