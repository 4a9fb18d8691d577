//! Options of identifiers.

use std::ffi::c_int;

use rdmacm_sys as ffi;
use verbs::{
    Result,
    error::{Refused, cvt_neg},
    event::EventType,
    qp::{AckTimeout, Ece},
};

use crate::{
    channel::EventChannel,
    id::CmId,
    path::PathRecord,
    phase::Phase,
    phases::{AddrResolved, Connected, HasDevice, IdPhase, Idle},
    registry::Key,
};

const SET_OPTION: &str = "rdma_set_option";

/// Sets an option of one identifier.
///
/// # Safety
/// - `id` exists, and `T` is the type of the option.
unsafe fn set<T>(id: *mut ffi::rdma_cm_id, level: c_int, option: c_int, value: &mut [T]) -> i32 {
    // SAFETY: as the caller promised. Assumption: librdmacm copies its arguments before a call
    // returns.
    unsafe {
        ffi::rdma_set_option(
            id,
            level,
            option,
            value.as_mut_ptr().cast(),
            size_of_val(value),
        )
    }
}

impl<P: IdPhase> CmId<P> {
    /// # Safety
    /// - `T` is the type of the option.
    unsafe fn set_id_option<T>(&mut self, option: c_int, value: T, name: String) -> Result<()> {
        // SAFETY: the identifier exists for as long as `self` lives, and the caller promised the type.
        let ret = unsafe { set(self.as_raw(), ffi::RDMA_OPTION_ID, option, &mut [value]) };
        cvt_neg(SET_OPTION, ret)
            .map(drop)
            .map_err(|err| err.detail(name))
    }

    /// `rdma_set_option(…, RDMA_OPTION_ID_TOS)`—Sets the type of service: the traffic class of the packets.
    /// Call before resolving the route.
    ///
    /// # Errors
    /// - `EINVAL`: the route has been resolved.
    ///
    /// # References
    /// [rdma_set_option(3)](https://man7.org/linux/man-pages/man3/rdma_set_option.3.html)
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    pub fn set_tos(&mut self, tos: u8) -> Result<()> {
        // SAFETY: the option is one byte.
        unsafe { self.set_id_option(ffi::RDMA_OPTION_ID_TOS, tos, format!("TOS {tos:#x}")) }
    }

    /// `rdma_set_option(…, RDMA_OPTION_ID_ACK_TIMEOUT)`—Sets the acknowledgement timeout of the queue pairs
    /// on both sides of the connection. Call before connecting.
    ///
    /// # Errors
    /// - `EINVAL`: an identifier for datagrams.
    /// - `ENOSYS`: the kernel is older than 5.2.
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_ID_ACK_TIMEOUT")]
    pub fn set_ack_timeout(&mut self, timeout: AckTimeout) -> Result<()> {
        let name = format!("ACK timeout {timeout:?}");
        // SAFETY: the option is one byte.
        unsafe { self.set_id_option(ffi::RDMA_OPTION_ID_ACK_TIMEOUT, timeout.get(), name) }
    }
}

impl CmId<Idle> {
    /// `rdma_set_option(…, RDMA_OPTION_ID_REUSEADDR)`—Allows sharing the local address with other identifiers
    /// having the same option, as long as none of them listens. Call before binding.
    ///
    /// # Errors
    /// - `EINVAL`: the identifier is bound.
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
    pub fn set_reuse_addr(&mut self, reuse: bool) -> Result<()> {
        let name = format!("reuse address {reuse}");
        // SAFETY: the option is an `int`.
        unsafe { self.set_id_option(ffi::RDMA_OPTION_ID_REUSEADDR, c_int::from(reuse), name) }
    }

    /// `rdma_set_option(…, RDMA_OPTION_ID_AFONLY)`—Restricts an identifier bound to IPv6 to IPv6, instead of
    /// accepting IPv4 as well. Call before binding.
    ///
    /// # Errors
    /// - `EINVAL`: the identifier is bound.
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_ID_AFONLY")]
    pub fn set_af_only(&mut self, only: bool) -> Result<()> {
        let name = format!("address family only {only}");
        // SAFETY: the option is an `int`.
        unsafe { self.set_id_option(ffi::RDMA_OPTION_ID_AFONLY, c_int::from(only), name) }
    }
}

impl CmId<AddrResolved> {
    /// `rdma_set_option(…, RDMA_OPTION_IB_PATH)`—Sets the route, instead of resolving. The identifier
    /// returns with [`Event::RouteResolved`](crate::Event::RouteResolved).
    ///
    /// # Errors
    /// On an error the identifier is returned in the error:
    /// - `EINVAL`: no path, or a path not supported by the device.
    /// - `ENOSYS`: the option is unknown to the kernel.
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_IB_PATH")]
    pub fn set_ib_path(self, paths: &[PathRecord]) -> Result<(), Refused<Self>> {
        let mut raw: Vec<_> = paths.iter().map(|path| path.to_raw()).collect();
        self.start(Phase::ResolvingRoute, SET_OPTION, |id| {
            // SAFETY: the identifier exists: `start` holds the registry lock. The option is an array of
            // paths.
            unsafe { set(id, ffi::RDMA_OPTION_IB, ffi::RDMA_OPTION_IB_PATH, &mut raw) }
        })
    }
}

impl<P: HasDevice> CmId<P> {
    /// `rdma_set_local_ece`—Sets the ECE options offered by the local queue pair, or agreed to, before
    /// connecting or accepting; see [`Ece`].
    ///
    /// # Errors
    /// - `EINVAL`: `ece` has no vendor.
    ///
    /// # References
    /// [rdma_set_local_ece(3)](https://man7.org/linux/man-pages/man3/rdma_set_local_ece.3.html)
    #[doc(alias = "rdma_set_local_ece")]
    pub fn set_local_ece(&mut self, ece: Ece) -> Result<()> {
        let mut raw = raw_ece(ece);
        // SAFETY: the identifier exists for as long as `self` lives. Assumption: librdmacm copies
        // its arguments before a call returns.
        let ret = unsafe { ffi::rdma_set_local_ece(self.as_raw(), &raw mut raw) };
        cvt_neg("rdma_set_local_ece", ret)
            .map(drop)
            .map_err(|err| err.detail(format!("{ece:?}")))
    }

    /// `rdma_get_remote_ece`—Returns the ECE options offered by the peer's queue pair, or agreed to; all
    /// zeros if none.
    ///
    /// # Errors
    /// None in practice.
    ///
    /// # References
    /// [rdma_get_remote_ece(3)](https://man7.org/linux/man-pages/man3/rdma_get_remote_ece.3.html)
    #[doc(alias = "rdma_get_remote_ece")]
    pub fn remote_ece(&self) -> Result<Ece> {
        let mut raw = raw_ece(Ece::default());
        // SAFETY: the identifier exists for as long as `self` lives, and `raw` is valid for writes.
        let ret = unsafe { ffi::rdma_get_remote_ece(self.as_raw(), &raw mut raw) };
        cvt_neg("rdma_get_remote_ece", ret)?;
        Ok(Ece {
            vendor_id: raw.vendor_id,
            options: raw.options,
            comp_mask: raw.comp_mask,
        })
    }
}

fn raw_ece(ece: Ece) -> ibverbs_sys::ibv_ece {
    ibverbs_sys::ibv_ece {
        vendor_id: ece.vendor_id,
        options: ece.options,
        comp_mask: ece.comp_mask,
    }
}

impl CmId<Connected> {
    /// `rdma_notify`—Notifies the connection manager of an asynchronous event of the queue pair:
    /// [`PATH_MIG`](EventType::PATH_MIG), a switch to the alternate path.
    ///
    /// # Errors
    /// - `EINVAL`: the event does not concern the connection manager.
    ///
    /// # References
    /// [rdma_notify(3)](https://man7.org/linux/man-pages/man3/rdma_notify.3.html)
    #[doc(alias = "rdma_notify")]
    pub fn notify(&mut self, event: EventType) -> Result<()> {
        // SAFETY: the identifier exists for as long as `self` lives.
        unsafe { notify(self.as_raw(), event) }
    }
}

impl EventChannel {
    /// `rdma_notify`—Notifies the connection manager of an asynchronous event of an accepted queue pair:
    /// [`COMM_EST`](EventType::COMM_EST), a message received before the peer's RTU, which may be lost. The
    /// connection is established then. Returns whether the identifier was pending for the RTU.
    ///
    /// If the connection ends before Linux (6.1) has processed the notification, the kernel retransmits its
    /// answer to the request for more than a minute, and destroying the identifier blocks for as long. So
    /// wait some time for the RTU first.
    ///
    /// # Errors
    /// - `EINVAL`: the event does not concern the connection manager, or the connection is already
    ///   established.
    ///
    /// # References
    /// [rdma_notify(3)](https://man7.org/linux/man-pages/man3/rdma_notify.3.html)
    #[doc(alias = "rdma_notify")]
    pub fn notify(&self, key: Key, event: EventType) -> Result<bool> {
        let registry = self.handle().registry();
        match registry.parked(key) {
            None => Ok(false),
            Some(id) => {
                // SAFETY: the identifier exists, being parked while the registry is locked.
                unsafe { notify(id.as_ptr(), event) }?;
                Ok(true)
            }
        }
    }
}

/// # Safety
/// - `id` exists.
unsafe fn notify(id: *mut ffi::rdma_cm_id, event: EventType) -> Result<()> {
    // SAFETY: as the caller promised.
    let ret = unsafe { ffi::rdma_notify(id, ibverbs_sys::ibv_event_type(event.0)) };
    cvt_neg("rdma_notify", ret)
        .map(drop)
        .map_err(|err| err.detail(format!("{event:?}")))
}
