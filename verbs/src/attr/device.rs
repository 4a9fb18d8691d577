//! The attributes of a device.

use std::{fmt, ops::RangeInclusive, ptr};

use ibverbs_sys as ffi;

use super::caps::{
    AtomicCap, CqModerationCaps, DeviceCaps, OdpCaps, OdpGeneralCaps, OdpTransportCaps,
    PacketPacingCaps, PciAtomicCaps, PciAtomicSizes, QpTypes, RawPacketCaps, RssCaps, RxHashFields,
    RxHashFunctions, TagMatchingCaps, TagMatchingFlags, TsoCaps,
};
use crate::{
    context::Context,
    device::Guid,
    error::{Result, cvt_errno},
};

impl Context {
    /// `ibv_query_device_ex(ctx, …)`—Reads the identity and the capabilities of the device. Enters
    /// the kernel.
    ///
    /// A device with only the plain `ibv_query_device` reports zeros for everything else.
    ///
    /// # Errors
    /// - `ENOMEM`: out of memory.
    ///
    /// # Examples
    /// ```
    /// # let (_fabric, ctx) = doctest::device();
    /// use verbs::attr::DeviceCaps;
    /// let attr = ctx.query_device()?;
    /// println!("firmware {}, {} queue pairs", attr.fw_ver(), attr.max_qp());
    /// if attr.caps().contains(DeviceCaps::XRC) {
    ///     println!("with extended reliable connections");
    /// }
    /// # Ok::<(), verbs::Error>(())
    /// ```
    ///
    /// # References
    /// [ibv_query_device_ex(3)](https://man7.org/linux/man-pages/man3/ibv_query_device_ex.3.html),
    /// [ibv_query_device(3)](https://man7.org/linux/man-pages/man3/ibv_query_device.3.html)
    #[doc(alias = "ibv_query_device_ex")]
    #[doc(alias = "ibv_query_device")]
    pub fn query_device(&self) -> Result<DeviceAttr> {
        let mut raw = ffi::ibv_device_attr_ex::zeroed();
        // SAFETY: the context is open for as long as `self` lives, there is no input, and C writes
        // `raw`, a valid place, only before the return.
        let ret = unsafe { ffi::ibv_query_device_ex(self.as_raw(), ptr::null(), &raw mut raw) };
        cvt_errno("ibv_query_device_ex", ret)?;
        Ok(DeviceAttr { raw })
    }
}

/// `ibv_device_attr_ex`—Identity and capabilities of a device.
///
/// # References
/// [ibv_query_device_ex(3)](https://man7.org/linux/man-pages/man3/ibv_query_device_ex.3.html)
#[doc(alias = "ibv_device_attr")]
#[doc(alias = "ibv_device_attr_ex")]
#[derive(Clone, Copy)]
pub struct DeviceAttr {
    raw: ffi::ibv_device_attr_ex,
}

/// A limit with the C type `int`, never negative.
fn limit(value: i32) -> u32 {
    value.try_into().unwrap_or(0)
}

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            pub fn $name(&self) -> u32 {
                limit(self.raw.orig_attr.$name)
            }
        )*

        /// The limits above, by name.
        pub fn limits(&self) -> impl Iterator<Item = (&'static str, u32)> {
            [$((stringify!($name), self.$name()),)*].into_iter()
        }
    };
}

impl DeviceAttr {
    /// The version of the firmware.
    pub fn fw_ver(&self) -> String {
        let bytes = self.raw.orig_attr.fw_ver.map(|byte| byte.to_ne_bytes()[0]);
        let version = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(version).into_owned()
    }

    /// The globally unique identifier of the node.
    pub fn node_guid(&self) -> Guid {
        Guid(self.raw.orig_attr.node_guid.to_ne().to_be_bytes())
    }

    /// The globally unique identifier of the node's system.
    pub fn sys_image_guid(&self) -> Guid {
        Guid(self.raw.orig_attr.sys_image_guid.to_ne().to_be_bytes())
    }

    /// Maximum number of bytes of one memory region.
    pub fn max_mr_size(&self) -> u64 {
        self.raw.orig_attr.max_mr_size
    }

    /// The supported page sizes, as a set of bits.
    pub fn page_size_cap(&self) -> u64 {
        self.raw.orig_attr.page_size_cap
    }

    /// The vendor, by its IEEE number.
    pub fn vendor_id(&self) -> u32 {
        self.raw.orig_attr.vendor_id
    }

    /// The maker's number of the product.
    pub fn vendor_part_id(&self) -> u32 {
        self.raw.orig_attr.vendor_part_id
    }

    /// The version of the hardware.
    pub fn hw_ver(&self) -> u32 {
        self.raw.orig_attr.hw_ver
    }

    limits! {
        /// Maximum number of queue pairs.
        max_qp;
        /// Maximum number of requests in flight on one queue.
        max_qp_wr;
        /// Maximum number of elements of a request.
        max_sge;
        /// Maximum number of elements of an RDMA read.
        max_sge_rd;
        /// Maximum number of completion queues.
        max_cq;
        /// Maximum number of entries of a completion queue.
        max_cqe;
        /// Maximum number of memory regions.
        max_mr;
        /// Maximum number of protection domains.
        max_pd;
        /// Maximum number of RDMA reads and atomics served by a queue pair at once.
        max_qp_rd_atom;
        /// Maximum number of RDMA reads and atomics served by an end-to-end context at once.
        max_ee_rd_atom;
        /// Maximum number of RDMA reads and atomics served by the device at once.
        max_res_rd_atom;
        /// Maximum number of outstanding RDMA reads and atomics of a queue pair.
        max_qp_init_rd_atom;
        /// Maximum number of outstanding RDMA reads and atomics of an end-to-end context.
        max_ee_init_rd_atom;
        /// Maximum number of end-to-end contexts.
        max_ee;
        /// Maximum number of reliable datagram domains.
        max_rdd;
        /// Maximum number of memory windows.
        max_mw;
        /// Maximum number of raw IPv6 queue pairs.
        max_raw_ipv6_qp;
        /// Maximum number of raw Ethertype queue pairs.
        max_raw_ethy_qp;
        /// Maximum number of multicast groups.
        max_mcast_grp;
        /// Maximum number of queue pairs in one multicast group.
        max_mcast_qp_attach;
        /// Maximum number of queue pairs in all multicast groups.
        max_total_mcast_qp_attach;
        /// Maximum number of address handles.
        max_ah;
        /// Maximum number of fast memory regions.
        max_fmr;
        /// Maximum number of remaps of a fast memory region.
        max_map_per_fmr;
        /// Maximum number of shared receive queues.
        max_srq;
        /// Maximum number of receives in flight on a shared receive queue.
        max_srq_wr;
        /// Maximum number of elements of a receive of a shared receive queue.
        max_srq_sge;
    }

    /// The scope of the atomics.
    pub fn atomic_cap(&self) -> AtomicCap {
        AtomicCap(self.raw.orig_attr.atomic_cap.0)
    }

    /// Maximum number of partitions.
    pub fn max_pkeys(&self) -> u16 {
        self.raw.orig_attr.max_pkeys
    }

    /// Maximum delay of the device's acknowledgements: 4.096 µs times two to the power of this.
    pub fn local_ca_ack_delay(&self) -> u8 {
        self.raw.orig_attr.local_ca_ack_delay
    }

    /// The number of ports. Ports are numbered from 1.
    pub fn phys_port_cnt(&self) -> u32 {
        match self.raw.phys_port_cnt_ex {
            0 => self.raw.orig_attr.phys_port_cnt.into(),
            count => count,
        }
    }

    /// The numbers of the ports: from 1 to [`phys_port_cnt`](Self::phys_port_cnt), at most 255, the largest
    /// number in a call.
    pub fn port_nums(&self) -> RangeInclusive<u8> {
        1..=u8::try_from(self.phys_port_cnt()).unwrap_or(u8::MAX)
    }

    /// The capabilities of the device.
    pub fn caps(&self) -> DeviceCaps {
        let plain = u64::from(self.raw.orig_attr.device_cap_flags);
        DeviceCaps::from_bits_retain(plain | self.raw.device_cap_flags_ex)
    }

    /// The capabilities for memory paged on demand.
    pub fn odp_caps(&self) -> OdpCaps {
        let caps = &self.raw.odp_caps;
        let transport = OdpTransportCaps::from_bits_retain;
        OdpCaps {
            general: OdpGeneralCaps::from_bits_retain(caps.general_caps),
            rc: transport(caps.per_transport_caps.rc_odp_caps),
            uc: transport(caps.per_transport_caps.uc_odp_caps),
            ud: transport(caps.per_transport_caps.ud_odp_caps),
            xrc: transport(self.raw.xrc_odp_caps),
        }
    }

    /// The valid bits of a completion timestamp; 0 without timestamps.
    pub fn completion_timestamp_mask(&self) -> u64 {
        self.raw.completion_timestamp_mask
    }

    /// The frequency of the device's clock, in kHz; 0 if not reported.
    pub fn hca_core_clock(&self) -> u64 {
        self.raw.hca_core_clock
    }

    /// Segmentation of TCP.
    pub fn tso_caps(&self) -> TsoCaps {
        TsoCaps {
            max_tso: self.raw.tso_caps.max_tso,
            supported_qpts: QpTypes::from_bits_retain(self.raw.tso_caps.supported_qpts),
        }
    }

    /// Spreading packets over receive queues.
    pub fn rss_caps(&self) -> RssCaps {
        let caps = &self.raw.rss_caps;
        RssCaps {
            supported_qpts: QpTypes::from_bits_retain(caps.supported_qpts),
            max_rwq_indirection_tables: caps.max_rwq_indirection_tables,
            max_rwq_indirection_table_size: caps.max_rwq_indirection_table_size,
            rx_hash_fields: RxHashFields::from_bits_retain(caps.rx_hash_fields_mask),
            rx_hash_function: RxHashFunctions::from_bits_retain(caps.rx_hash_function.into()),
        }
    }

    /// Maximum number of receive work queues.
    pub fn max_wq_type_rq(&self) -> u32 {
        self.raw.max_wq_type_rq
    }

    /// Limits of the send rates of queue pairs.
    pub fn packet_pacing_caps(&self) -> PacketPacingCaps {
        let caps = &self.raw.packet_pacing_caps;
        PacketPacingCaps {
            qp_rate_limit_min: caps.qp_rate_limit_min,
            qp_rate_limit_max: caps.qp_rate_limit_max,
            supported_qpts: QpTypes::from_bits_retain(caps.supported_qpts),
        }
    }

    /// The capabilities for raw packets.
    pub fn raw_packet_caps(&self) -> RawPacketCaps {
        RawPacketCaps::from_bits_retain(self.raw.raw_packet_caps)
    }

    /// Tag matching.
    pub fn tm_caps(&self) -> TagMatchingCaps {
        let caps = &self.raw.tm_caps;
        TagMatchingCaps {
            max_rndv_hdr_size: caps.max_rndv_hdr_size,
            max_num_tags: caps.max_num_tags,
            flags: TagMatchingFlags::from_bits_retain(caps.flags),
            max_ops: caps.max_ops,
            max_sge: caps.max_sge,
        }
    }

    /// Moderation of completion queues.
    pub fn cq_mod_caps(&self) -> CqModerationCaps {
        CqModerationCaps {
            max_cq_count: self.raw.cq_mod_caps.max_cq_count,
            max_cq_period: self.raw.cq_mod_caps.max_cq_period,
        }
    }

    /// The bytes of memory on the device; 0 if there is none to allocate.
    pub fn max_dm_size(&self) -> u64 {
        self.raw.max_dm_size
    }

    /// Atomics over PCI.
    pub fn pci_atomic_caps(&self) -> PciAtomicCaps {
        let caps = &self.raw.pci_atomic_caps;
        PciAtomicCaps {
            fetch_add: PciAtomicSizes::from_bits_retain(caps.fetch_add.into()),
            swap: PciAtomicSizes::from_bits_retain(caps.swap.into()),
            compare_swap: PciAtomicSizes::from_bits_retain(caps.compare_swap.into()),
        }
    }

    /// The C form of the attributes.
    pub fn as_raw(&self) -> &ffi::ibv_device_attr_ex {
        &self.raw
    }
}

impl fmt::Debug for DeviceAttr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("DeviceAttr");
        shown
            .field("fw_ver", &self.fw_ver())
            .field("node_guid", &self.node_guid())
            .field("phys_port_cnt", &self.phys_port_cnt())
            .field("caps", &self.caps());
        for (name, limit) in self.limits() {
            shown.field(name, &limit);
        }
        shown.finish_non_exhaustive()
    }
}
