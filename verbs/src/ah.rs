//! Addresses of ports, and address handles: the destinations of datagrams.
//!
//! | item | is |
//! |---|---|
//! | [`Gid`] | the 128-bit address of a port |
//! | [`AddressVector`], [`GlobalRoute`] | the path to a peer, for datagrams and for connected queue pairs |
//! | [`AddressHandle`] | the path to a peer, as an object of the device |
//! | [`Addressed`], [`HasAddress`] | work with its destination |
//! | [`GRH_LEN`] | the room for a datagram's global route in a receive |
//!
//! # References
//! [ibv_create_ah(3)](https://man7.org/linux/man-pages/man3/ibv_create_ah.3.html)

use std::{fmt, ptr::NonNull, sync::Arc};

use ibverbs_sys as ffi;

use crate::{
    cq::WorkCompletion,
    error::{Error, Result, cvt_neg, cvt_ptr},
    pd::ProtectionDomain,
    work::{Gather, Scatter, SgeList, With},
};

pub use crate::addr::Gid;

/// `ibv_ah_attr`—The path to a peer, from a local port.
///
/// On RoCE, a global route is always present; on InfiniBand a local identifier is enough inside a
/// subnet.
#[doc(alias = "ibv_resolve_eth_l2_from_gid")]
#[doc(alias = "ibv_ah_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// The local port, counting from 1.
    pub port_num: u8,
    /// The local identifier (LID) of the destination: the peer's port, or a router. 0 on RoCE.
    pub dlid: u16,
    /// The service level.
    pub sl: u8,
    /// The source LID, as an offset within the port's range of local identifiers (LMC).
    pub src_path_bits: u8,
    /// Maximum packet rate, as a device's code; 0 for no limit.
    #[doc(alias = "ibv_rate_to_mult")]
    #[doc(alias = "ibv_rate_to_mbps")]
    #[doc(alias = "IBV_RATE_MAX")]
    #[doc(alias = "IBV_RATE_2_5_GBPS")]
    #[doc(alias = "IBV_RATE_5_GBPS")]
    #[doc(alias = "IBV_RATE_10_GBPS")]
    #[doc(alias = "IBV_RATE_14_GBPS")]
    #[doc(alias = "IBV_RATE_20_GBPS")]
    #[doc(alias = "IBV_RATE_25_GBPS")]
    #[doc(alias = "IBV_RATE_28_GBPS")]
    #[doc(alias = "IBV_RATE_30_GBPS")]
    #[doc(alias = "IBV_RATE_40_GBPS")]
    #[doc(alias = "IBV_RATE_50_GBPS")]
    #[doc(alias = "IBV_RATE_56_GBPS")]
    #[doc(alias = "IBV_RATE_60_GBPS")]
    #[doc(alias = "IBV_RATE_80_GBPS")]
    #[doc(alias = "IBV_RATE_100_GBPS")]
    #[doc(alias = "IBV_RATE_112_GBPS")]
    #[doc(alias = "IBV_RATE_120_GBPS")]
    #[doc(alias = "IBV_RATE_168_GBPS")]
    #[doc(alias = "IBV_RATE_200_GBPS")]
    #[doc(alias = "IBV_RATE_300_GBPS")]
    #[doc(alias = "IBV_RATE_400_GBPS")]
    #[doc(alias = "IBV_RATE_600_GBPS")]
    #[doc(alias = "IBV_RATE_800_GBPS")]
    #[doc(alias = "IBV_RATE_1200_GBPS")]
    #[doc(alias = "ibv_rate")]
    pub static_rate: u8,
    /// The route beyond the subnet.
    pub grh: Option<GlobalRoute>,
}

/// `ibv_global_route`—A route beyond the subnet: on RoCE, every route.
#[doc(alias = "ibv_global_route")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalRoute {
    /// The peer's address.
    pub dgid: Gid,
    /// Index of the source GID in the port's GID table.
    pub sgid_index: u8,
    /// Flow label, by which switches keep the packets of a flow on one path; 0 if none.
    pub flow_label: u32,
    /// Hop limit, or time to live: a router takes one, and drops a packet at 0, so with 1 no router is passed. On RoCE, Linux
    /// chooses the limit by the route where the kernel makes the address handle or the connection.
    pub hop_limit: u8,
    /// Traffic class, for quality of service in switches.
    pub traffic_class: u8,
}

/// Default hop limit of IP packets (`IPDEFTTL`, `IPV6_DEFAULT_HOPLIMIT` of Linux).
const HOP_LIMIT: u8 = 64;

impl AddressVector {
    /// The path to a port of the subnet, by its local identifier.
    pub fn local(port_num: u8, dlid: u16) -> Self {
        Self {
            port_num,
            dlid,
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
            grh: None,
        }
    }

    /// The path to a GID, from an entry of the local port's GID table, over up to 63 routers, as of IP packets of Linux.
    pub fn global(port_num: u8, sgid_index: u8, dgid: Gid) -> Self {
        let grh = GlobalRoute {
            dgid,
            sgid_index,
            flow_label: 0,
            hop_limit: HOP_LIMIT,
            traffic_class: 0,
        };
        Self {
            grh: Some(grh),
            ..Self::local(port_num, 0)
        }
    }

    /// The C form of the vector.
    pub fn to_raw(self) -> ffi::ibv_ah_attr {
        let mut raw = ffi::ibv_ah_attr::zeroed();
        raw.port_num = self.port_num;
        raw.dlid = self.dlid;
        raw.sl = self.sl;
        raw.src_path_bits = self.src_path_bits;
        raw.static_rate = self.static_rate;
        if let Some(grh) = self.grh {
            raw.is_global = 1;
            raw.grh.dgid = grh.dgid.into();
            raw.grh.sgid_index = grh.sgid_index;
            raw.grh.flow_label = grh.flow_label;
            raw.grh.hop_limit = grh.hop_limit;
            raw.grh.traffic_class = grh.traffic_class;
        }
        raw
    }

    /// The vector in a C form.
    pub fn from_raw(raw: &ffi::ibv_ah_attr) -> Self {
        let grh = (raw.is_global != 0).then(|| GlobalRoute {
            dgid: raw.grh.dgid.into(),
            sgid_index: raw.grh.sgid_index,
            flow_label: raw.grh.flow_label,
            hop_limit: raw.grh.hop_limit,
            traffic_class: raw.grh.traffic_class,
        });
        Self {
            port_num: raw.port_num,
            dlid: raw.dlid,
            sl: raw.sl,
            src_path_bits: raw.src_path_bits,
            static_rate: raw.static_rate,
            grh,
        }
    }
}

/// The length in bytes of the global route header at the start of each received datagram.
pub const GRH_LEN: usize = 40;

/// `ibv_ah`—The destination of datagrams.
///
/// Cloning is cheap: the handle is reference-counted, like an `Arc`. Requests in flight hold a
/// reference too, so the object is destroyed after the drop of the last handle and the completion
/// of the last request.
///
/// # References
/// [ibv_create_ah(3)](https://man7.org/linux/man-pages/man3/ibv_create_ah.3.html)
#[doc(alias = "ibv_destroy_ah")]
#[doc(alias = "ibv_ah")]
#[derive(Clone)]
pub struct AddressHandle {
    inner: Arc<AhInner>,
}

struct AhInner {
    // INVARIANT: created, and destroyed only in `drop`.
    raw: NonNull<ffi::ibv_ah>,
    pd: ProtectionDomain,
}

// SAFETY: an address handle is never changed after its creation. Assumption: calls of libibverbs
// may be made from any thread, and several at once.
unsafe impl Send for AhInner {}
// SAFETY: see `Send`.
unsafe impl Sync for AhInner {}

impl ProtectionDomain {
    /// `ibv_create_ah(pd, …)`—Creates an address handle. Enters the kernel.
    ///
    /// # Errors
    /// - `EINVAL`: the port or the GID index does not exist, or the global route needed on RoCE is
    ///   missing.
    /// - `ETIMEDOUT`, `EHOSTUNREACH`: the peer's hardware address cannot be found.
    ///
    /// # References
    /// [ibv_create_ah(3)](https://man7.org/linux/man-pages/man3/ibv_create_ah.3.html)
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, vector: &AddressVector) -> Result<AddressHandle> {
        self.context().check_process("ibv_create_ah")?;
        let mut raw = vector.to_raw();
        // SAFETY: the domain is allocated for as long as `self` lives; C copies the attributes.
        let ah = unsafe { ffi::ibv_create_ah(self.as_raw(), &raw mut raw) };
        self.wrap_ah("ibv_create_ah", ah)
            .map_err(|err| err.detail(format!("{vector:?}")))
    }

    /// `ibv_create_ah_from_wc(pd, …)`—Creates an address handle for the sender of a datagram
    /// received on port `port_num`. `received` is the received buffer, starting with the global
    /// route header.
    ///
    /// # Errors
    /// - `InvalidInput`: `received` is too short to begin with the header, or `wc` is not of a received
    ///   message.
    /// - As for [`create_ah`](Self::create_ah).
    ///
    /// # References
    /// [ibv_create_ah_from_wc(3)](https://man7.org/linux/man-pages/man3/ibv_create_ah_from_wc.3.html)
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn create_ah_from_wc(
        &self,
        wc: &WorkCompletion<'_>,
        received: &[u8],
        port_num: u8,
    ) -> Result<AddressHandle> {
        self.context().check_process("ibv_create_ah_from_wc")?;
        let mut wc = wc.to_raw("ibv_create_ah_from_wc")?;
        let mut grh = grh_of("ibv_create_ah_from_wc", received)?;
        // SAFETY: the domain is allocated for as long as `self` lives; C only reads the completion
        // and the header, local copies, and not after the return.
        let ah = unsafe {
            ffi::ibv_create_ah_from_wc(self.as_raw(), &raw mut wc, &raw mut grh, port_num)
        };
        self.wrap_ah("ibv_create_ah_from_wc", ah)
    }

    /// `ibv_init_ah_from_wc`—The path back to the sender of a datagram; see
    /// [`create_ah_from_wc`](Self::create_ah_from_wc).
    ///
    /// # Errors
    /// As for [`create_ah_from_wc`](Self::create_ah_from_wc).
    #[doc(alias = "ibv_init_ah_from_wc")]
    pub fn vector_from_wc(
        &self,
        wc: &WorkCompletion<'_>,
        received: &[u8],
        port_num: u8,
    ) -> Result<AddressVector> {
        let mut wc = wc.to_raw("ibv_init_ah_from_wc")?;
        let mut grh = grh_of("ibv_init_ah_from_wc", received)?;
        let mut attr = ffi::ibv_ah_attr::zeroed();
        // SAFETY: the context is open for as long as `self` lives; the other arguments are local,
        // and C keeps no pointer to them.
        let ret = unsafe {
            ffi::ibv_init_ah_from_wc(
                self.context().as_raw(),
                port_num,
                &raw mut wc,
                &raw mut grh,
                &raw mut attr,
            )
        };
        cvt_neg("ibv_init_ah_from_wc", ret)?;
        Ok(AddressVector::from_raw(&attr))
    }

    fn wrap_ah(&self, call: &'static str, ah: *mut ffi::ibv_ah) -> Result<AddressHandle> {
        let raw = cvt_ptr(call, ah)?;
        Ok(AddressHandle {
            inner: Arc::new(AhInner {
                raw,
                pd: self.clone(),
            }),
        })
    }
}

/// The header at the start of a received datagram.
fn grh_of(call: &'static str, received: &[u8]) -> Result<ffi::ibv_grh> {
    const _: () = assert!(size_of::<ffi::ibv_grh>() == GRH_LEN);
    let Some(bytes) = received.first_chunk::<GRH_LEN>() else {
        let reason = "a received datagram begins with 40 bytes of global route header";
        return Err(
            Error::refused(call, std::io::ErrorKind::InvalidInput, reason)
                .detail(format!("{} bytes", received.len())),
        );
    };
    // SAFETY: the header is plain data; every pattern of the `GRH_LEN` bytes is a value.
    Ok(unsafe { bytes.as_ptr().cast::<ffi::ibv_grh>().read_unaligned() })
}

impl AddressHandle {
    /// The protection domain of the handle.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// The C object, for calls that this crate does not wrap. Valid as long as `self` lives.
    pub fn as_raw(&self) -> *mut ffi::ibv_ah {
        self.inner.raw.as_ptr()
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressHandle")
            .field("pd", &self.inner.pd)
            .finish_non_exhaustive()
    }
}

impl Drop for AhInner {
    fn drop(&mut self) {
        let _: i32 = self.pd.context().destroy(|| {
            // SAFETY: the handle exists and is destroyed once, here. Posted requests hold an `Arc` of
            // `self`, so none is in flight. The domain is allocated, since its field is dropped later.
            unsafe { ffi::ibv_destroy_ah(self.raw.as_ptr()) }
        });
    }
}

/// Work with a destination address, kept until the work is returned.
#[derive(Clone, Debug)]
pub struct Addressed<W> {
    /// The bytes for the device to read.
    pub work: W,
    ah: AddressHandle,
}

impl<W> Addressed<W> {
    /// Adds the destination to the work.
    pub fn new(work: W, ah: &AddressHandle) -> Self {
        Self {
            work,
            ah: ah.clone(),
        }
    }
}

/// Work with a destination address: [`Addressed`], alone or [`With`] a context.
///
/// # Safety
/// `ah` always returns the same handle, and `self` keeps the handle until dropped.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no destination",
    label = "no address",
    note = "a datagram has an address: wrap the work with `Addressed::new(work, &ah, …)`"
)]
pub unsafe trait HasAddress {
    /// The destination.
    fn ah(&self) -> &AddressHandle;
}

// SAFETY: the handle is a private field and never changes.
unsafe impl<W> HasAddress for Addressed<W> {
    #[inline]
    fn ah(&self) -> &AddressHandle {
        &self.ah
    }
}

// SAFETY: the handle is the work's, and `self` owns the work.
unsafe impl<W: HasAddress, C> HasAddress for With<W, C> {
    #[inline]
    fn ah(&self) -> &AddressHandle {
        self.work.ah()
    }
}

// SAFETY: the elements belong to `work`, owned by `self`.
unsafe impl<W: Gather> Gather for Addressed<W> {
    #[inline]
    fn gather(&self, list: &mut SgeList) {
        self.work.gather(list);
    }
}

// SAFETY: as above; the elements are those of `work`, and writable.
unsafe impl<W: Scatter> Scatter for Addressed<W> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_vector_round_trips_through_c() {
        let mut vector = AddressVector::global(1, 3, Gid([7; 16]));
        vector.sl = 2;
        assert_eq!(AddressVector::from_raw(&vector.to_raw()), vector);
        let local = AddressVector::local(2, 0x11);
        assert_eq!(AddressVector::from_raw(&local.to_raw()), local);
        assert_eq!(local.to_raw().is_global, 0);
    }

    #[test]
    fn ah_from_datagram_without_grh_is_refused() {
        assert_eq!(
            grh_of("ibv_create_ah_from_wc", &[0; 39])
                .map(drop)
                .unwrap_err()
                .to_string(),
            "`ibv_create_ah_from_wc` failed (39 bytes): \
             a received datagram begins with 40 bytes of global route header"
        );
        assert!(grh_of("ibv_create_ah_from_wc", &[0; 40]).is_ok());
    }
}
