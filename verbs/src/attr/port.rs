//! The attributes of a port.

use std::{fmt, io};

use bitflags::bitflags;
use ibverbs_sys as ffi;
use ibverbs_sys::{ibv_port_cap_flags as cap, ibv_port_cap_flags2 as cap2, ibv_port_state};

use crate::{
    context::Context,
    error::{Error, Result, cvt_errno},
    mtu::Mtu,
    named::named,
};

named! {
    /// `ibv_port_state`—The logical state of a port.
    #[doc(alias = "ibv_port_state_str")]
    #[doc(alias = "ibv_port_state")]
    PortState(u32) {
        /// Reserved.
        #[doc(alias = "IBV_PORT_NOP")]
        NOP = ibv_port_state::IBV_PORT_NOP.0;
        /// The link is down.
        #[doc(alias = "IBV_PORT_DOWN")]
        DOWN = ibv_port_state::IBV_PORT_DOWN.0;
        /// The link is up, and waits for the subnet manager.
        #[doc(alias = "IBV_PORT_INIT")]
        INIT = ibv_port_state::IBV_PORT_INIT.0;
        /// Configured by the subnet manager.
        #[doc(alias = "IBV_PORT_ARMED")]
        ARMED = ibv_port_state::IBV_PORT_ARMED.0;
        /// Usable.
        #[doc(alias = "IBV_PORT_ACTIVE")]
        ACTIVE = ibv_port_state::IBV_PORT_ACTIVE.0;
        /// Active, with link recovery in progress.
        #[doc(alias = "IBV_PORT_ACTIVE_DEFER")]
        ACTIVE_DEFER = ibv_port_state::IBV_PORT_ACTIVE_DEFER.0;
    }

    /// The link layer of a port.
    LinkLayer(u8) {
        /// Not reported by the provider; InfiniBand.
        #[doc(alias = "IBV_LINK_LAYER_UNSPECIFIED")]
        UNSPECIFIED = ffi::IBV_LINK_LAYER_UNSPECIFIED;
        /// InfiniBand.
        #[doc(alias = "IBV_LINK_LAYER_INFINIBAND")]
        INFINIBAND = ffi::IBV_LINK_LAYER_INFINIBAND;
        /// Ethernet: RoCE, or iWARP.
        #[doc(alias = "IBV_LINK_LAYER_ETHERNET")]
        ETHERNET = ffi::IBV_LINK_LAYER_ETHERNET;
    }

    /// The speed of each lane of a link, as a code of the InfiniBand specification.
    LinkSpeed(u32) {
        /// Single data rate: 2.5 Gbit/s.
        SDR = 1;
        /// Double data rate: 5 Gbit/s.
        DDR = 2;
        /// Quadruple data rate: 10 Gbit/s.
        QDR = 4;
        /// FDR10: 10.3 Gbit/s.
        FDR10 = 8;
        /// Fourteen data rate: 14 Gbit/s.
        FDR = 16;
        /// Enhanced data rate: 25 Gbit/s.
        EDR = 32;
        /// High data rate: 50 Gbit/s.
        HDR = 64;
        /// Next data rate: 100 Gbit/s.
        NDR = 128;
        /// Extreme data rate: 200 Gbit/s.
        XDR = 256;
    }

    /// The number of lanes of a link, as a code of the InfiniBand specification.
    LinkWidth(u8) {
        /// One.
        X1 = 1;
        /// Four.
        X4 = 2;
        /// Eight.
        X8 = 4;
        /// Twelve.
        X12 = 8;
        /// Two.
        X2 = 16;
    }

    /// The physical state of a port, in the code of the InfiniBand specification.
    PhysState(u8) {
        /// Asleep.
        SLEEP = 1;
        /// Looking for a peer.
        POLLING = 2;
        /// Switched off.
        DISABLED = 3;
        /// Training.
        PORT_CONFIGURATION_TRAINING = 4;
        /// Up.
        LINK_UP = 5;
        /// Recovering from errors.
        LINK_ERROR_RECOVERY = 6;
        /// Being tested.
        PHY_TEST = 7;
    }
}

impl LinkSpeed {
    /// The rate of a lane in Mbit/s, if the value is known to this crate.
    pub fn mbps(self) -> Option<u32> {
        Some(match self {
            Self::SDR => 2_500,
            Self::DDR => 5_000,
            Self::QDR => 10_000,
            Self::FDR10 => 10_312,
            Self::FDR => 14_062,
            Self::EDR => 25_781,
            Self::HDR => 53_125,
            Self::NDR => 106_250,
            Self::XDR => 212_500,
            _ => return None,
        })
    }
}

impl LinkWidth {
    /// The number of lanes, if the value is known to this crate.
    pub fn lanes(self) -> Option<u8> {
        Some(match self {
            Self::X1 => 1,
            Self::X2 => 2,
            Self::X4 => 4,
            Self::X8 => 8,
            Self::X12 => 12,
            _ => return None,
        })
    }
}

bitflags! {
    /// `ibv_port_cap_flags`—Capabilities of a port. Unknown bits are kept.
    #[doc(alias = "ibv_port_cap_flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PortCaps: u32 {
        /// Is the subnet manager.
        #[doc(alias = "IBV_PORT_SM")]
        const SM = cap::IBV_PORT_SM.0;
        /// Notices.
        #[doc(alias = "IBV_PORT_NOTICE_SUP")]
        const NOTICE_SUP = cap::IBV_PORT_NOTICE_SUP.0;
        /// Traps.
        #[doc(alias = "IBV_PORT_TRAP_SUP")]
        const TRAP_SUP = cap::IBV_PORT_TRAP_SUP.0;
        /// Optional delays between packets.
        #[doc(alias = "IBV_PORT_OPT_IPD_SUP")]
        const OPT_IPD_SUP = cap::IBV_PORT_OPT_IPD_SUP.0;
        /// Automatic path migration.
        #[doc(alias = "IBV_PORT_AUTO_MIGR_SUP")]
        const AUTO_MIGR_SUP = cap::IBV_PORT_AUTO_MIGR_SUP.0;
        /// Maps service levels to virtual lanes.
        #[doc(alias = "IBV_PORT_SL_MAP_SUP")]
        const SL_MAP_SUP = cap::IBV_PORT_SL_MAP_SUP.0;
        /// Keeps M_Keys.
        #[doc(alias = "IBV_PORT_MKEY_NVRAM")]
        const MKEY_NVRAM = cap::IBV_PORT_MKEY_NVRAM.0;
        /// Keeps P_Keys.
        #[doc(alias = "IBV_PORT_PKEY_NVRAM")]
        const PKEY_NVRAM = cap::IBV_PORT_PKEY_NVRAM.0;
        /// LED information.
        #[doc(alias = "IBV_PORT_LED_INFO_SUP")]
        const LED_INFO_SUP = cap::IBV_PORT_LED_INFO_SUP.0;
        /// GUID of the system image.
        #[doc(alias = "IBV_PORT_SYS_IMAGE_GUID_SUP")]
        const SYS_IMAGE_GUID_SUP = cap::IBV_PORT_SYS_IMAGE_GUID_SUP.0;
        /// Traps of switches about P_Keys.
        #[doc(alias = "IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP")]
        const PKEY_SW_EXT_PORT_TRAP_SUP = cap::IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP.0;
        /// Speeds beyond QDR.
        #[doc(alias = "IBV_PORT_EXTENDED_SPEEDS_SUP")]
        const EXTENDED_SPEEDS_SUP = cap::IBV_PORT_EXTENDED_SPEEDS_SUP.0;
        /// Has [`PortCaps2`].
        #[doc(alias = "IBV_PORT_CAP_MASK2_SUP")]
        const CAP_MASK2_SUP = cap::IBV_PORT_CAP_MASK2_SUP.0;
        /// Connection management.
        #[doc(alias = "IBV_PORT_CM_SUP")]
        const CM_SUP = cap::IBV_PORT_CM_SUP.0;
        /// SNMP tunneling.
        #[doc(alias = "IBV_PORT_SNMP_TUNNEL_SUP")]
        const SNMP_TUNNEL_SUP = cap::IBV_PORT_SNMP_TUNNEL_SUP.0;
        /// Can be initialised again.
        #[doc(alias = "IBV_PORT_REINIT_SUP")]
        const REINIT_SUP = cap::IBV_PORT_REINIT_SUP.0;
        /// Device management.
        #[doc(alias = "IBV_PORT_DEVICE_MGMT_SUP")]
        const DEVICE_MGMT_SUP = cap::IBV_PORT_DEVICE_MGMT_SUP.0;
        /// Vendor classes.
        #[doc(alias = "IBV_PORT_VENDOR_CLASS_SUP")]
        const VENDOR_CLASS_SUP = cap::IBV_PORT_VENDOR_CLASS_SUP.0;
        /// Direct route notices.
        #[doc(alias = "IBV_PORT_DR_NOTICE_SUP")]
        const DR_NOTICE_SUP = cap::IBV_PORT_DR_NOTICE_SUP.0;
        /// Notices of changed capabilities.
        #[doc(alias = "IBV_PORT_CAP_MASK_NOTICE_SUP")]
        const CAP_MASK_NOTICE_SUP = cap::IBV_PORT_CAP_MASK_NOTICE_SUP.0;
        /// Boot management.
        #[doc(alias = "IBV_PORT_BOOT_MGMT_SUP")]
        const BOOT_MGMT_SUP = cap::IBV_PORT_BOOT_MGMT_SUP.0;
        /// Measures the latency of the link.
        #[doc(alias = "IBV_PORT_LINK_LATENCY_SUP")]
        const LINK_LATENCY_SUP = cap::IBV_PORT_LINK_LATENCY_SUP.0;
        /// Requests clients to reregister.
        #[doc(alias = "IBV_PORT_CLIENT_REG_SUP")]
        const CLIENT_REG_SUP = cap::IBV_PORT_CLIENT_REG_SUP.0;
        /// The port's GIDs are IP addresses.
        #[doc(alias = "IBV_PORT_IP_BASED_GIDS")]
        const IP_BASED_GIDS = cap::IBV_PORT_IP_BASED_GIDS.0;
    }

    /// `ibv_port_cap_flags2`—Further capabilities of a port. Unknown bits are kept.
    #[doc(alias = "ibv_port_cap_flags2")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PortCaps2: u32 {
        /// The node's description can be set.
        #[doc(alias = "IBV_PORT_SET_NODE_DESC_SUP")]
        const SET_NODE_DESC_SUP = cap2::IBV_PORT_SET_NODE_DESC_SUP.0;
        /// Extended information.
        #[doc(alias = "IBV_PORT_INFO_EXT_SUP")]
        const INFO_EXT_SUP = cap2::IBV_PORT_INFO_EXT_SUP.0;
        /// Virtual ports.
        #[doc(alias = "IBV_PORT_VIRT_SUP")]
        const VIRT_SUP = cap2::IBV_PORT_VIRT_SUP.0;
        /// The table of a switch's port states.
        #[doc(alias = "IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP")]
        const SWITCH_PORT_STATE_TABLE_SUP = cap2::IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP.0;
        /// Two lanes.
        #[doc(alias = "IBV_PORT_LINK_WIDTH_2X_SUP")]
        const LINK_WIDTH_2X_SUP = cap2::IBV_PORT_LINK_WIDTH_2X_SUP.0;
        /// HDR.
        #[doc(alias = "IBV_PORT_LINK_SPEED_HDR_SUP")]
        const LINK_SPEED_HDR_SUP = cap2::IBV_PORT_LINK_SPEED_HDR_SUP.0;
        /// NDR.
        #[doc(alias = "IBV_PORT_LINK_SPEED_NDR_SUP")]
        const LINK_SPEED_NDR_SUP = cap2::IBV_PORT_LINK_SPEED_NDR_SUP.0;
    }
}

impl Context {
    /// `ibv_query_port(ctx, port_num, …)`—Reads the attributes of a port, numbered from 1. Enters
    /// the kernel.
    ///
    /// # Errors
    /// - `EINVAL`: there is no such port.
    ///
    /// # Examples
    /// ```
    /// # let (_fabric, ctx) = doctest::device();
    /// use verbs::attr::PortState;
    /// let port = ctx.query_port(1)?;
    /// if port.state() != PortState::ACTIVE {
    ///     println!("{} is {:?}", ctx.name(), port.state());
    /// }
    /// # Ok::<(), verbs::Error>(())
    /// ```
    ///
    /// # References
    /// [ibv_query_port(3)](https://man7.org/linux/man-pages/man3/ibv_query_port.3.html)
    #[doc(alias = "ibv_query_port")]
    pub fn query_port(&self, port_num: u8) -> Result<PortAttr> {
        let mut raw = ffi::ibv_port_attr::zeroed();
        // SAFETY: the context is open for as long as `self` lives, and C writes `raw`, a valid
        // place, only before the return.
        let ret = unsafe { ffi::ibv_query_port(self.as_raw(), port_num, &raw mut raw) };
        cvt_errno("ibv_query_port", ret)
            .map_err(|err| err.detail(format!("port {port_num} of {}", self.name())))?;
        Ok(PortAttr { raw })
    }

    /// `ibv_query_port_speed(ctx, port_num, …)`—Reads a port's effective speed, in Mbit/s. Since
    /// rdma-core 62. Enters the kernel.
    ///
    /// # Errors
    /// - `Unsupported`, `EOPNOTSUPP`: no support in the library, the kernel or the device.
    ///
    /// # References
    /// `ibv_query_port_speed(3)` of rdma-core
    #[doc(alias = "ibv_query_port_speed")]
    pub fn query_port_speed(&self, port_num: u8) -> Result<u64> {
        const CALL: &str = "ibv_query_port_speed";
        let query = ffi::late::ibv_query_port_speed().ok_or_else(|| {
            let reason = "the installed rdma-core is older than 62";
            Error::refused(CALL, io::ErrorKind::Unsupported, reason)
        })?;
        let mut speed = 0;
        // SAFETY: the context is open for as long as `self` lives, and `speed` is a valid place.
        let ret = unsafe { query(self.as_raw(), port_num.into(), &raw mut speed) };
        cvt_errno(CALL, ret)?;
        Ok(speed * 100)
    }
}

/// `ibv_port_attr`—State and capabilities of a port.
///
/// # References
/// [ibv_query_port(3)](https://man7.org/linux/man-pages/man3/ibv_query_port.3.html)
#[doc(alias = "ibv_port_attr")]
#[derive(Clone, Copy)]
pub struct PortAttr {
    raw: ffi::ibv_port_attr,
}

macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident: $ty:ty;)*) => {$(
        $(#[$doc])*
        pub fn $name(&self) -> $ty {
            self.raw.$name
        }
    )*};
}

impl PortAttr {
    /// The logical state.
    pub fn state(&self) -> PortState {
        PortState(self.raw.state.0)
    }

    /// The physical state.
    pub fn phys_state(&self) -> PhysState {
        PhysState(self.raw.phys_state)
    }

    /// The largest MTU.
    pub fn max_mtu(&self) -> Mtu {
        Mtu(self.raw.max_mtu.0)
    }

    /// The MTU in use.
    pub fn active_mtu(&self) -> Mtu {
        Mtu(self.raw.active_mtu.0)
    }

    /// The entries of the GID table, the empty ones included.
    pub fn gid_tbl_len(&self) -> u32 {
        self.raw.gid_tbl_len.try_into().unwrap_or(0)
    }

    /// The capabilities of the port.
    pub fn caps(&self) -> PortCaps {
        PortCaps::from_bits_retain(self.raw.port_cap_flags)
    }

    /// The further capabilities of the port.
    pub fn caps2(&self) -> PortCaps2 {
        PortCaps2::from_bits_retain(self.raw.port_cap_flags2.into())
    }

    fields! {
        /// Maximum number of bytes of a message.
        max_msg_sz: u32;
        /// Number of packets with a wrong P_Key.
        bad_pkey_cntr: u32;
        /// Number of packets with a wrong Q_Key.
        qkey_viol_cntr: u32;
        /// The entries of the P_Key table.
        pkey_tbl_len: u16;
        /// The local identifier; 0 on Ethernet.
        lid: u16;
        /// The local identifier of the subnet manager.
        sm_lid: u16;
        /// Number of low bits of the local identifier for paths (LMC).
        lmc: u8;
        /// The number of virtual lanes, as a code.
        max_vl_num: u8;
        /// The service level of the subnet manager.
        sm_sl: u8;
        /// The delay of the subnet's management: 4.096 µs times two to the power of this.
        subnet_timeout: u8;
        /// The type of the port's initialisation by the subnet manager.
        init_type_reply: u8;
    }

    /// The width of the link.
    pub fn active_width(&self) -> LinkWidth {
        LinkWidth(self.raw.active_width)
    }

    /// The speed of each lane.
    pub fn active_speed(&self) -> LinkSpeed {
        match self.raw.active_speed_ex() {
            0 => LinkSpeed(self.raw.active_speed.into()),
            speed => LinkSpeed(speed),
        }
    }

    /// The kind of link.
    pub fn link_layer(&self) -> LinkLayer {
        LinkLayer(self.raw.link_layer)
    }

    /// `IBV_QPF_GRH_REQUIRED`—Whether every packet needs a global route, as on RoCE.
    #[doc(alias = "IBV_QPF_GRH_REQUIRED")]
    pub fn is_grh_required(&self) -> bool {
        self.raw.flags & ffi::IBV_QPF_GRH_REQUIRED != 0
    }

    /// The C form of the attributes.
    pub fn as_raw(&self) -> &ffi::ibv_port_attr {
        &self.raw
    }
}

impl fmt::Debug for PortAttr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortAttr")
            .field("state", &self.state())
            .field("link_layer", &self.link_layer())
            .field("active_mtu", &self.active_mtu())
            .field("lid", &self.lid())
            .field("active_width", &self.active_width())
            .field("active_speed", &self.active_speed())
            .field("caps", &self.caps())
            .finish_non_exhaustive()
    }
}
