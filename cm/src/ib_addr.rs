//! InfiniBand addresses.

use rdmacm_sys as ffi;
use verbs::{Gid, attr::Pkey};

use crate::port_space::PortSpace;

/// `sockaddr_ib`—An InfiniBand address (`AF_IB`): GID of a port and number of a service, without IP.
///
/// Connecting requires a device on InfiniBand: on RoCE the address is resolved, but no route is found;
/// [`bind`](crate::CmId::bind) fails with `ENODEV`.
///
/// ```
/// use cm::{IbAddr, PortSpace};
/// let gid = verbs::Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 1, 2, 3]);
/// let addr = IbAddr::new(gid, PortSpace::Tcp, 7471);
/// assert_eq!(addr.service_id, 0x0106_1d2f);
/// assert_eq!(addr.port(), 7471);
/// ```
#[doc(alias = "sockaddr_ib")]
#[doc(alias = "AF_IB")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IbAddr {
    /// GID of the port; all zeros for any.
    pub gid: Gid,
    /// P_Key of the partition.
    pub pkey: Pkey,
    /// Service ID.
    pub service_id: u64,
    /// Significant bits of the service ID; the kernel chooses the others.
    pub service_mask: u64,
    /// Flow label, as in IPv6.
    pub flow_info: u32,
    /// Network interface number of a link-local address; 0 for any.
    pub scope_id: u64,
}

impl IbAddr {
    /// Creates the address of a port in a port space, in the default partition. With port 0 the kernel
    /// chooses.
    pub fn new(gid: Gid, space: PortSpace, port: u16) -> Self {
        let port_mask = match port {
            0 => 0,
            _ => ffi::RDMA_IB_IP_PORT_MASK,
        };
        Self {
            gid,
            pkey: Pkey::DEFAULT,
            service_id: u64::from(space.to_raw().0) << 16 | u64::from(port),
            service_mask: ffi::RDMA_IB_IP_PS_MASK | port_mask,
            flow_info: 0,
            scope_id: 0,
        }
    }

    /// Creates the address of a service by the complete ID, in the default partition.
    pub fn with_service_id(gid: Gid, service_id: u64) -> Self {
        Self {
            service_id,
            service_mask: u64::MAX,
            ..Self::new(gid, PortSpace::Ib, 0)
        }
    }

    /// `rdma_get_src_port`, `rdma_get_dst_port`—Port number: the significant part of the low 16 bits of the
    /// service ID.
    pub fn port(&self) -> u16 {
        let [.., high, low] = (self.service_id & self.service_mask).to_be_bytes();
        u16::from_be_bytes([high, low])
    }

    pub(crate) fn to_raw(self) -> ffi::sockaddr_ib {
        let mut raw = ffi::sockaddr_ib::zeroed();
        raw.sib_family = FAMILY;
        raw.sib_pkey = self.pkey.0.into();
        raw.sib_flowinfo = self.flow_info.into();
        raw.sib_addr.ib_u.uib_addr8 = self.gid.0;
        raw.sib_sid = self.service_id.into();
        raw.sib_sid_mask = self.service_mask.into();
        raw.sib_scope_id = self.scope_id;
        raw
    }

    pub(crate) fn from_raw(raw: &ffi::sockaddr_ib) -> Self {
        Self {
            // SAFETY: every variant of the union is 16 bytes, and all values are valid.
            gid: Gid(unsafe { raw.sib_addr.ib_u.uib_addr8 }),
            pkey: Pkey(raw.sib_pkey.to_ne()),
            service_id: raw.sib_sid.to_ne(),
            service_mask: raw.sib_sid_mask.to_ne(),
            flow_info: raw.sib_flowinfo.to_ne(),
            scope_id: raw.sib_scope_id,
        }
    }
}

/// `AF_IB`, in the type of the family field.
pub(crate) const FAMILY: libc::sa_family_t = 27;

#[cfg(test)]
mod tests {
    use super::*;

    const GID: Gid = Gid([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);

    #[test]
    fn ib_addr_layout_matches_c() {
        assert_eq!(i32::from(FAMILY), ffi::AF_IB);
        let addr = IbAddr {
            pkey: Pkey(0x8001),
            flow_info: 0x12345,
            ..IbAddr::new(GID, PortSpace::Udp, 0x1d2f)
        };
        let raw = addr.to_raw();
        // SAFETY: the struct is 48 bytes, without padding.
        let bytes: [u8; 48] = unsafe { std::mem::transmute(raw) };
        assert_eq!(bytes[2..8], [0x80, 1, 0, 1, 0x23, 0x45]);
        assert_eq!(bytes[8..24], GID.0);
        assert_eq!(bytes[24..32], [0, 0, 0, 0, 1, 0x11, 0x1d, 0x2f]);
        assert_eq!(bytes[32..40], [0xff; 8]);
        assert_eq!(IbAddr::from_raw(&raw), addr);
    }

    #[test]
    fn port_zero_leaves_the_choice_to_the_kernel() {
        let open = IbAddr::new(GID, PortSpace::Tcp, 0);
        assert_eq!(open.service_mask, !0xffff);
        // Bits left to the kernel do not count.
        let odd = IbAddr {
            service_id: open.service_id | 7,
            ..open
        };
        assert_eq!((open.port(), odd.port()), (0, 0));
        let addr = IbAddr::with_service_id(GID, 0x1000_0000_0000_00ab);
        assert_eq!((addr.port(), addr.service_mask), (0xab, u64::MAX));
    }
}
