//! What the connection manager knows of the device, once there is one.

use verbs::{Context, Error, Gid, Pkey, Result};

use crate::{
    id::CmId,
    path::PathRecord,
    phases::{HasDevice, IdPhase},
};

impl<P: IdPhase> CmId<P> {
    /// The device of the local address, open, if it is known: it is when the identifier has been
    /// [bound](CmId::bind) to an address of one device.
    ///
    /// # Errors
    /// - `ENODEV`: the device has been removed.
    pub fn bound_context(&self) -> Result<Option<Context>> {
        // SAFETY: the identifier exists (invariant). `verbs` is written by calls that need the
        // identifier for themselves, and by events while it is parked.
        let verbs = unsafe { (*self.as_raw()).verbs };
        if verbs.is_null() {
            return Ok(None);
        }
        self.raw().channel().contexts().find(verbs).map(Some)
    }

    /// The port of that device, counting from 1, if it is known.
    pub fn bound_port_num(&self) -> Option<u8> {
        Some(self.raw_port_num()).filter(|port| *port > 0)
    }

    fn raw_port_num(&self) -> u8 {
        // SAFETY: the identifier exists (invariant). `port_num` is written by calls that need the
        // identifier for themselves, and by events while it is parked.
        unsafe { (*self.as_raw()).port_num }
    }
}

impl<P: HasDevice> CmId<P> {
    /// The device that the connection goes through, open. It is the same one for every identifier
    /// of that device.
    ///
    /// # Errors
    /// - `ENODEV`: the device has been removed.
    pub fn context(&self) -> Result<Context> {
        self.bound_context()?.ok_or_else(|| {
            Error::from_errno("rdma_get_devices", libc::ENODEV).detail("the identifier has none")
        })
    }

    /// The port of the device, counting from 1.
    pub fn port_num(&self) -> u8 {
        self.raw_port_num()
    }

    /// The GID of this side's port.
    pub fn local_gid(&self) -> Gid {
        self.ib_addr().0
    }

    /// The GID of the peer's port; all zero if there is no peer yet.
    pub fn peer_gid(&self) -> Gid {
        self.ib_addr().1
    }

    /// The partition. On RoCE the kernel leaves it at 0.
    pub fn pkey(&self) -> Pkey {
        self.ib_addr().2
    }

    fn ib_addr(&self) -> (Gid, Gid, Pkey) {
        // SAFETY: the identifier exists (invariant), and its addresses are set before the phase is
        // reached.
        let addresses = unsafe { (*self.as_raw()).route.addr };
        // SAFETY: the union has this variant only, and is plain data.
        let addr = unsafe { addresses.addr.ibaddr };
        (addr.sgid.into(), addr.dgid.into(), Pkey(addr.pkey.to_ne()))
    }

    /// The ways to the peer that were resolved. On RoCE and iWARP there may be none.
    pub fn paths(&self) -> Vec<PathRecord> {
        // SAFETY: the identifier exists (invariant), and its route is written while it is parked.
        let first = unsafe { (*self.as_raw()).route.path_rec };
        // SAFETY: as above.
        let count = unsafe { (*self.as_raw()).route.num_paths };
        let count = usize::try_from(count).unwrap_or(0);
        if first.is_null() || count == 0 {
            return Vec::new();
        }
        // SAFETY: so many paths belong to the identifier, which sets them while it is parked.
        let paths = unsafe { std::slice::from_raw_parts(first, count) };
        paths.iter().map(PathRecord::from_raw).collect()
    }
}
