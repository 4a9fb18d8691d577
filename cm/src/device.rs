//! Device, port, and path of an identifier.

use verbs::{Context, Error, Gid, Result, attr::Pkey};

use crate::{
    id::CmId,
    path::PathRecord,
    phases::{HasDevice, IdPhase},
};

impl<P: IdPhase> CmId<P> {
    /// The opened device of the local address; `None` unless the identifier is [bound](CmId::bind) to an
    /// address of one device.
    ///
    /// # Errors
    /// - `ENODEV`: the device has been removed.
    pub fn bound_context(&self) -> Result<Option<Context>> {
        // SAFETY: the identifier exists (invariant). `verbs` is written only by calls with exclusive access
        // to the identifier, and by events while the identifier is parked.
        let verbs = unsafe { (*self.as_raw()).verbs };
        if verbs.is_null() {
            return Ok(None);
        }
        self.raw().channel().contexts().find(verbs).map(Some)
    }

    /// Port number of the bound device, starting at 1; `None` if unbound.
    pub fn bound_port_num(&self) -> Option<u8> {
        Some(self.raw_port_num()).filter(|port| *port > 0)
    }

    fn raw_port_num(&self) -> u8 {
        // SAFETY: the identifier exists (invariant). `port_num` is written only by calls with exclusive
        // access to the identifier, and by events while the identifier is parked.
        unsafe { (*self.as_raw()).port_num }
    }
}

impl<P: HasDevice> CmId<P> {
    /// The opened device of the connection. All identifiers on one device share the same context.
    ///
    /// # Errors
    /// - `ENODEV`: the device has been removed.
    pub fn context(&self) -> Result<Context> {
        self.bound_context()?.ok_or_else(|| {
            Error::from_errno("rdma_get_devices", libc::ENODEV).detail("the identifier has none")
        })
    }

    /// Port number of the device, starting at 1.
    pub fn port_num(&self) -> u8 {
        self.raw_port_num()
    }

    /// GID of the local port.
    pub fn local_gid(&self) -> Gid {
        self.ib_addr().0
    }

    /// GID of the peer's port; all zeros before a peer is known.
    pub fn peer_gid(&self) -> Gid {
        self.ib_addr().1
    }

    /// P_Key of the partition. On RoCE the kernel leaves 0.
    pub fn pkey(&self) -> Pkey {
        self.ib_addr().2
    }

    fn ib_addr(&self) -> (Gid, Gid, Pkey) {
        // SAFETY: the identifier exists (invariant), and the addresses are set before this phase.
        let addresses = unsafe { (*self.as_raw()).route.addr };
        // SAFETY: the union has only this variant, and is plain data.
        let addr = unsafe { addresses.addr.ibaddr };
        (addr.sgid.into(), addr.dgid.into(), Pkey(addr.pkey.to_ne()))
    }

    /// Resolved paths to the peer. On RoCE and iWARP the list may be empty.
    pub fn paths(&self) -> Vec<PathRecord> {
        // SAFETY: the identifier exists (invariant), and the route is written only while the identifier is
        // parked.
        let first = unsafe { (*self.as_raw()).route.path_rec };
        // SAFETY: as above.
        let count = unsafe { (*self.as_raw()).route.num_paths };
        let count = usize::try_from(count).unwrap_or(0);
        if first.is_null() || count == 0 {
            return Vec::new();
        }
        // SAFETY: `count` paths belong to the identifier, and are written only while the identifier is
        // parked.
        let paths = unsafe { std::slice::from_raw_parts(first, count) };
        paths.iter().map(PathRecord::from_raw).collect()
    }
}
