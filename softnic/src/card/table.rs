//! The table of cards: a row for each, with the source of each number.
//!
//! Sources: a name with a number is an issue or pull request with the output of `ibv_devinfo -v` (openucx/ucx, open-mpi/ompi,
//! claudebarthels/infinity, deepseek-ai/3FS, uccl-project/uccl). Files of drivers are of Linux 6.12 (`drivers/infiniband`),
//! files of providers of rdma-core 65 (`providers`).

use crate::engine::QpKind;

/// Rules by which a driver computes capacities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sizing {
    /// Basic blocks of 64 bytes: `mlx5/verbs.c`, `mlx5_calc_sq_size` and its neighbours.
    Mlx5 {
        /// Maximum number of bytes of a send request.
        max_send_bytes: usize,
        /// Maximum number of basic blocks of a send queue.
        max_blocks: usize,
    },
    /// Power of two of spare requests and requests: `mlx4/verbs.c`, `create_qp_ex`; `mlx4/qp.c`.
    Mlx4 {
        /// Maximum number of requests of a queue, spare ones included.
        max_wqes: usize,
    },
    /// Quanta of 32 bytes: `irdma/uk.c`, `irdma_get_wqe_shift`, `irdma_get_sqdepth`, `irdma_get_rqdepth`.
    Irdma {
        /// Generation of the hardware.
        generation: u8,
        /// Maximum number of quanta of a send queue.
        max_quanta: usize,
    },
    /// Rings of descriptors: `efa/verbs.c`, `efa_check_qp_limits`, `efa_setup_qp`.
    Efa {
        /// Maximum number of receive descriptors.
        max_descriptors: usize,
    },
    /// At least 7 requests: `hw/cxgb4/qp.c`, `c4iw_create_qp`; `hw/cxgb4/cq.c`, `c4iw_create_cq`.
    Cxgb4,
    /// Powers of two: `hw/erdma/erdma_verbs.c`, `erdma_qp_validate_cap`; `erdma/erdma_verbs.c`, `erdma_create_cq`.
    Erdma,
    /// One less than a power of two, and inline data in the place of elements: `sw/rxe/rxe_qp.c`, `rxe_qp_init_req`.
    Rxe,
    /// Powers of two: `sw/siw/siw_verbs.c`, `siw_create_qp`, `siw_create_cq`.
    Siw,
    /// As requested: no source for a rounding was found.
    AsRequested,
}

/// Atomicity of a device's atomics, `ibv_atomic_cap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomics {
    None,
    /// With the device's own.
    Hca,
    /// With the processor's, too.
    Global,
}

/// The row of a card. `None` stands for a value without a source.
#[derive(Debug)]
pub(crate) struct Specification {
    pub(crate) sizing: Sizing,
    /// Types of queue pairs, beside which the driver refuses all others.
    pub(crate) kinds: &'static [QpKind],
    /// Error number for other types.
    pub(crate) kind_errno: i32,
    /// Error number for more requests than the limit.
    pub(crate) depth_errno: i32,
    /// Error number for a completion queue beyond the limit.
    pub(crate) cq_errno: i32,
    pub(crate) vendor_id: Option<u32>,
    pub(crate) vendor_part_id: Option<u32>,
    pub(crate) hw_ver: Option<u32>,
    pub(crate) page_size_cap: Option<u64>,
    pub(crate) device_cap_flags: Option<u32>,
    pub(crate) max_mr_size: u64,
    pub(crate) max_qp: Option<u32>,
    pub(crate) max_qp_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_sge_rd: Option<u32>,
    pub(crate) max_cq: Option<u32>,
    pub(crate) max_cqe: Option<u32>,
    pub(crate) max_mr: Option<u32>,
    pub(crate) max_pd: Option<u32>,
    pub(crate) max_qp_rd_atom: u8,
    pub(crate) max_qp_init_rd_atom: u8,
    pub(crate) max_res_rd_atom: Option<u32>,
    pub(crate) atomics: Option<Atomics>,
    /// Reported number of windows; calls fail with `EOPNOTSUPP` where the driver has no windows.
    pub(crate) max_mw: Option<u32>,
    pub(crate) has_windows: bool,
    pub(crate) max_mcast_grp: Option<u32>,
    pub(crate) max_mcast_qp_attach: Option<u32>,
    pub(crate) max_total_mcast_qp_attach: Option<u32>,
    pub(crate) max_ah: Option<u32>,
    /// `None` for a driver without shared receive queues, whose calls fail with `EOPNOTSUPP`.
    pub(crate) srq: Option<SharedReceives>,
    pub(crate) max_pkeys: Option<u32>,
    pub(crate) local_ca_ack_delay: Option<u8>,
    /// Maximum number of bytes of inline data; `None` if the size of a request alone limits them.
    pub(crate) max_inline: Option<u32>,
    pub(crate) max_msg_sz: u32,
    pub(crate) gid_tbl_len: Option<u32>,
    /// Whether the driver resizes completion queues.
    pub(crate) resizes_cqs: bool,
    /// Whether the driver executes flushes and atomic writes.
    pub(crate) has_placement: bool,
    /// Whether the driver lowers a depth of reads above its limit, in place of an error.
    pub(crate) lowers_depths: bool,
}

/// Limits of shared receive queues; `None` for a value without a source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedReceives {
    pub(crate) max_srq: Option<u32>,
    pub(crate) max_wr: Option<u32>,
    pub(crate) max_sge: Option<u32>,
    /// Whether the driver resizes the queues.
    pub(crate) resizes: bool,
}

const ALL_KINDS: &[QpKind] = &[
    QpKind::Rc,
    QpKind::Uc,
    QpKind::Ud,
    QpKind::XrcSend,
    QpKind::XrcRecv,
];
/// Operations of the driver mlx5: `mlx5/verbs.c`, `create_qp`.
const MLX5_KINDS: &[QpKind] = &[
    QpKind::Rc,
    QpKind::Uc,
    QpKind::Ud,
    QpKind::XrcSend,
    QpKind::XrcRecv,
    QpKind::Dci,
    QpKind::Dct,
];
const RC: &[QpKind] = &[QpKind::Rc];
const RC_UD: &[QpKind] = &[QpKind::Rc, QpKind::Ud];

/// A row without values, for those without a source.
const UNKNOWN: Specification = Specification {
    sizing: Sizing::AsRequested,
    kinds: ALL_KINDS,
    kind_errno: libc::EOPNOTSUPP,
    depth_errno: libc::EINVAL,
    cq_errno: libc::EINVAL,
    vendor_id: None,
    vendor_part_id: None,
    hw_ver: None,
    page_size_cap: None,
    device_cap_flags: None,
    max_mr_size: u64::MAX,
    max_qp: None,
    max_qp_wr: 0,
    max_send_sge: 0,
    max_recv_sge: 0,
    max_sge_rd: None,
    max_cq: None,
    max_cqe: None,
    max_mr: None,
    max_pd: None,
    max_qp_rd_atom: 0,
    max_qp_init_rd_atom: 0,
    max_res_rd_atom: None,
    atomics: None,
    max_mw: None,
    has_windows: true,
    max_mcast_grp: None,
    max_mcast_qp_attach: None,
    max_total_mcast_qp_attach: None,
    max_ah: None,
    srq: None,
    max_pkeys: None,
    local_ca_ack_delay: None,
    max_inline: None,
    max_msg_sz: 1 << 31,
    gid_tbl_len: None,
    resizes_cqs: true,
    has_placement: false,
    lowers_depths: false,
};

pub(super) const CONNECTX_3: Specification = Specification {
    sizing: Sizing::Mlx4 {
        // hw/mlx4/main.c: max_qp_wr is this number less MLX4_IB_SQ_MAX_SPARE, 33.
        max_wqes: 16384,
    },
    vendor_id: Some(0x02c9),                    // infinity#5
    vendor_part_id: Some(4099),                 // infinity#5
    hw_ver: Some(0),                            // infinity#5
    page_size_cap: Some(0xffff_fe00),           // infinity#5
    device_cap_flags: Some(0x057e_9c66),        // infinity#5
    max_mr_size: u64::MAX,                      // infinity#5
    max_qp: Some(131_000),                      // infinity#5
    max_qp_wr: 16351,                           // infinity#5
    max_send_sge: 32,                           // infinity#5
    max_recv_sge: 32,                           // infinity#5
    max_sge_rd: Some(30),                       // infinity#5
    max_cq: Some(65408),                        // infinity#5
    max_cqe: Some(4_194_303),                   // infinity#5
    max_mr: Some(524_032),                      // infinity#5
    max_pd: Some(32764),                        // infinity#5
    max_qp_rd_atom: 16,                         // infinity#5
    max_qp_init_rd_atom: 128,                   // infinity#5
    max_res_rd_atom: Some(2_096_000),           // infinity#5
    atomics: Some(Atomics::Hca),                // infinity#5
    max_mw: Some(0),                            // infinity#5
    max_mcast_grp: Some(8192),                  // infinity#5
    max_mcast_qp_attach: Some(248),             // infinity#5
    max_total_mcast_qp_attach: Some(2_031_616), // infinity#5
    max_ah: Some(2_147_483_647),                // infinity#5
    srq: Some(SharedReceives {
        max_srq: Some(65472), // infinity#5
        max_wr: Some(16383),  // infinity#5
        max_sge: Some(31),    // infinity#5
        resizes: false,       // infinity#5: no SRQ_RESIZE in device_cap_flags
    }),
    max_pkeys: Some(128),         // infinity#5
    local_ca_ack_delay: Some(15), // infinity#5
    max_inline: Some(1024),       // mlx4/verbs.c, create_qp_ex
    ..UNKNOWN
};

/// Attributes on which all recorded outputs of mlx5 agree.
const MLX5: Specification = Specification {
    kinds: MLX5_KINDS,
    sizing: Sizing::Mlx5 {
        // libfabric#3790: 988 bytes of inline data, 4 bytes of their header, 32 bytes of other segments.
        max_send_bytes: 1024,
        // hw/mlx5/main.c: the same power of two as max_qp_wr.
        max_blocks: 32768,
    },
    vendor_id: Some(0x02c9),                      // UCX#9830, UCX#10317
    hw_ver: Some(0),                              // UCX#9830, UCX#8229, UCX#10317
    page_size_cap: Some(0xffff_ffff_ffff_f000),   // UCX#9830, UCX#8229, UCX#10317
    max_mr_size: u64::MAX,                        // UCX#9830, UCX#8229, UCX#10317
    max_qp_wr: 32768,                             // UCX#9830, UCX#8229, UCX#10317
    max_send_sge: 30,                             // ompi#6137, UCX#10317
    max_recv_sge: 32,                             // hw/mlx5/main.c: 512 bytes of 16 each
    max_sge_rd: Some(30),                         // ompi#6137
    max_cq: Some(16_777_216),                     // ompi#6137, UCX#10317
    max_cqe: Some(4_194_303),                     // ompi#6137, UCX#10317
    max_mr: Some(16_777_216),                     // ompi#6137, UCX#10317
    max_qp_rd_atom: 16,                           // ompi#6137, UCX#10317
    max_qp_init_rd_atom: 16,                      // ompi#6137, UCX#10317
    atomics: Some(Atomics::Hca),                  // ompi#6137, UCX#10317
    max_mw: Some(16_777_216),                     // UCX#10317
    max_mcast_grp: Some(2_097_152),               // UCX#10317
    max_mcast_qp_attach: Some(240),               // UCX#10317
    max_total_mcast_qp_attach: Some(503_316_480), // UCX#10317
    max_ah: Some(2_147_483_647),                  // UCX#10317
    srq: Some(SharedReceives {
        max_srq: Some(8_388_608), // UCX#10317
        max_wr: Some(32767),      // UCX#10317
        max_sge: Some(31),        // UCX#10317
        resizes: false,           // no SRQ_RESIZE in device_cap_flags
    }),
    max_pkeys: Some(128),         // UCX#10317
    local_ca_ack_delay: Some(16), // UCX#10317
    max_msg_sz: 1 << 30,          // UCX#10430
    ..UNKNOWN
};

pub(super) const CONNECTX_5: Specification = Specification {
    vendor_part_id: Some(4119),          // UCX#9830
    device_cap_flags: Some(0xed72_1c36), // UCX#9830
    max_qp: Some(262_144),               // UCX#9830
    max_pd: Some(16_777_216),            // ompi#6137
    max_res_rd_atom: Some(4_194_304),    // ompi#6137
    ..MLX5
};

pub(super) const CONNECTX_6: Specification = Specification {
    vendor_part_id: Some(4123),          // UCX#8229
    device_cap_flags: Some(0xe97e_1c36), // UCX#8229
    max_qp: Some(262_144),               // UCX#8229
    ..MLX5
};

pub(super) const CONNECTX_6_LX: Specification = Specification {
    vendor_part_id: Some(4127),          // UCX#10317
    device_cap_flags: Some(0x2532_1c36), // UCX#10317
    max_qp: Some(131_072),               // UCX#10317
    max_pd: Some(8_388_608),             // UCX#10317
    max_res_rd_atom: Some(2_097_152),    // UCX#10317
    ..MLX5
};

pub(super) const E810: Specification = Specification {
    sizing: Sizing::Irdma {
        generation: 2,     // hw/irdma/icrdma_hw.c
        max_quanta: 32768, // hw/irdma/user.h, IRDMA_QP_SW_MAX_WQ_QUANTA
    },
    kinds: RC_UD,                        // irdma/uverbs.c, irdma_ucreate_qp
    vendor_id: Some(0x8086),             // 3FS#192
    vendor_part_id: Some(5522),          // 3FS#192
    hw_ver: Some(2),                     // 3FS#192
    page_size_cap: Some(0x4020_1000),    // 3FS#192
    device_cap_flags: Some(0x0122_1000), // 3FS#192
    max_mr_size: 1 << 45,                // hw/irdma/defs.h, 3FS#192
    max_qp_wr: 4063,                     // hw/irdma/icrdma_hw.h
    max_send_sge: 13,                    // hw/irdma/icrdma_hw.h
    max_recv_sge: 13,                    // hw/irdma/icrdma_hw.h
    max_sge_rd: Some(13),                // hw/irdma/icrdma_hw.h
    max_cqe: Some(1_048_574),            // hw/irdma/user.h, 3FS#192
    max_qp_rd_atom: 127,                 // hw/irdma/icrdma_hw.h
    max_qp_init_rd_atom: 255,            // hw/irdma/icrdma_hw.h
    atomics: Some(Atomics::None),        // 3FS#192
    srq: None,                           // hw/irdma/verbs.c: no create_srq
    max_inline: Some(101),               // hw/irdma/user.h
    max_msg_sz: 0x7fff_ffff,             // hw/irdma/user.h
    resizes_cqs: true,                   // hw/irdma/icrdma_hw.c, IRDMA_FEATURE_CQ_RESIZE
    ..UNKNOWN
};

pub(super) const E810_FW_1_74: Specification = Specification {
    max_qp: Some(4092),                     // 3FS#192
    max_qp_wr: 8127,                        // 3FS#192
    max_send_sge: 6,                        // 3FS#192
    max_recv_sge: 6,                        // 3FS#192
    max_sge_rd: Some(6),                    // 3FS#192
    max_cq: Some(8189),                     // 3FS#192
    max_mr: Some(4_194_301),                // 3FS#192
    max_pd: Some(262_141),                  // 3FS#192
    max_qp_rd_atom: 8,                      // 3FS#192
    max_qp_init_rd_atom: 8,                 // 3FS#192
    max_res_rd_atom: Some(0),               // 3FS#192
    max_mw: Some(0),                        // 3FS#192
    max_mcast_grp: Some(4096),              // 3FS#192
    max_mcast_qp_attach: Some(8),           // 3FS#192
    max_total_mcast_qp_attach: Some(32768), // 3FS#192
    max_ah: Some(131_072),                  // 3FS#192
    max_pkeys: Some(1),                     // 3FS#192
    local_ca_ack_delay: Some(0),            // 3FS#192
    ..E810
};

pub(super) const X722: Specification = Specification {
    sizing: Sizing::Irdma {
        generation: 1,    // hw/irdma/i40iw_hw.c
        max_quanta: 2048, // hw/irdma/i40iw_hw.h, I40IW_QP_SW_MAX_WQ_QUANTA
    },
    kinds: RC,                      // hw/irdma/verbs.c, irdma_validate_qp_attrs
    vendor_id: Some(0x8086),        // hw/irdma/verbs.c, irdma_query_device: of the PCI device
    page_size_cap: Some(0x20_1000), // hw/irdma/i40iw_hw.c
    max_mr_size: 1 << 45,           // hw/irdma/defs.h
    max_qp_wr: 895,                 // hw/irdma/i40iw_hw.h, I40IW_MAX_QP_WRS
    max_send_sge: 3,                // hw/irdma/i40iw_hw.h
    max_recv_sge: 3,                // hw/irdma/i40iw_hw.h
    max_sge_rd: Some(1),            // hw/irdma/i40iw_hw.h
    max_qp_rd_atom: 63,             // hw/irdma/i40iw_hw.h
    max_qp_init_rd_atom: 127,       // hw/irdma/i40iw_hw.h
    atomics: Some(Atomics::None),   // hw/irdma/verbs.c
    srq: None,                      // hw/irdma/verbs.c: no create_srq
    max_inline: Some(48),           // hw/irdma/i40iw_hw.h
    max_msg_sz: 0x7fff_ffff,        // hw/irdma/i40iw_hw.h
    resizes_cqs: false,             // hw/irdma/verbs.c, irdma_resize_cq
    ..UNKNOWN
};

pub(super) const T6: Specification = Specification {
    sizing: Sizing::Cxgb4,
    kinds: RC,                    // hw/cxgb4/qp.c, c4iw_create_qp
    depth_errno: libc::E2BIG,     // hw/cxgb4/qp.c, c4iw_create_qp
    max_mr_size: u64::MAX,        // hw/cxgb4/t4.h, T4_MAX_MR_SIZE
    max_qp_wr: 8189,              // hw/cxgb4/device.c, t4_max_qp_depth
    max_send_sge: 17,             // hw/cxgb4/t4.h
    max_recv_sge: 4,              // hw/cxgb4/t4.h, T4_MAX_RECV_SGE
    max_sge_rd: Some(1),          // hw/cxgb4/provider.c
    max_cqe: Some(65518),         // hw/cxgb4/device.c
    max_qp_rd_atom: 32,           // hw/cxgb4/cm.c, c4iw_max_read_depth
    max_qp_init_rd_atom: 32,      // hw/cxgb4/provider.c
    atomics: Some(Atomics::None), // hw/cxgb4/provider.c
    max_mw: Some(0),              // hw/cxgb4/provider.c: not set, beside IB_DEVICE_MEM_WINDOW
    srq: Some(SharedReceives {
        max_srq: None,
        max_wr: Some(8189), // hw/cxgb4/provider.c
        max_sge: Some(4),   // hw/cxgb4/provider.c
        resizes: false,     // hw/cxgb4/qp.c, c4iw_modify_srq
    }),
    local_ca_ack_delay: Some(0), // hw/cxgb4/provider.c
    max_inline: Some(280),       // hw/cxgb4/t4.h, T4_MAX_SEND_INLINE
    max_msg_sz: u32::MAX,        // hw/cxgb4/provider.c, c4iw_query_port
    resizes_cqs: false,          // cxgb4/verbs.c: no resize_cq; SPDK#1747
    ..UNKNOWN
};

pub(super) const BNXT_P5: Specification = Specification {
    kinds: RC_UD,                   // bnxt_re/verbs.c, bnxt_re_check_qp_limits
    kind_errno: libc::EINVAL,       // bnxt_re/verbs.c, bnxt_re_check_qp_limits
    vendor_id: Some(0x14e4), // hw/bnxt_re/ib_verbs.c, bnxt_re_query_device: of the PCI device
    max_mr_size: 1 << 39,    // hw/bnxt_re/bnxt_re.h
    max_qp: Some(131_073),   // uccl#250
    max_qp_wr: 4351,         // uccl#250
    max_send_sge: 13,        // hw/bnxt_re/qplib_sp.c
    max_recv_sge: 13,        // hw/bnxt_re/qplib_sp.c
    max_sge_rd: Some(13),    // hw/bnxt_re/ib_verbs.c
    max_cqe: Some(8_388_607), // hw/bnxt_re/qplib_sp.h
    max_qp_rd_atom: 126,     // hw/bnxt_re/qplib_sp.c
    max_qp_init_rd_atom: 126, // hw/bnxt_re/qplib_sp.c
    atomics: Some(Atomics::Global), // hw/bnxt_re/ib_verbs.c
    srq: Some(SharedReceives {
        max_srq: None,
        max_wr: None,
        max_sge: None,
        resizes: false, // hw/bnxt_re/ib_verbs.c, bnxt_re_modify_srq
    }),
    max_inline: Some(208), // hw/bnxt_re/qplib_sp.c: 13 elements of 16 bytes
    max_msg_sz: 1 << 30,   // hw/bnxt_re/ib_verbs.c, BNXT_RE_MAX_MR_SIZE_LOW
    lowers_depths: true,   // Linux a25d112fe9c8
    ..UNKNOWN
};

pub(super) const QL41000: Specification = Specification {
    kinds: &[QpKind::Rc, QpKind::XrcSend, QpKind::XrcRecv], // hw/qedr/verbs.c, qedr_check_qp_attrs
    vendor_id: Some(0x1077),                                // UCX#5148
    vendor_part_id: Some(32880),                            // UCX#5148
    hw_ver: Some(0),                                        // UCX#5148
    page_size_cap: Some(0xffff_f000),                       // UCX#5148
    device_cap_flags: Some(0x0020_9080),                    // UCX#5148
    max_mr_size: 1 << 40,                                   // UCX#5148
    max_qp: Some(8568),                                     // UCX#5148
    max_qp_wr: 32767,                                       // UCX#5148
    max_send_sge: 4,                                        // UCX#5148
    max_recv_sge: 4,                                        // UCX#5148
    max_sge_rd: Some(4),                                    // UCX#5148
    max_cq: Some(17136),                                    // UCX#5148
    max_cqe: Some(8_388_480),                               // UCX#5148
    max_mr: Some(131_070),                                  // UCX#5148
    max_pd: Some(65536),                                    // UCX#5148
    max_qp_rd_atom: 32,                                     // UCX#5148
    max_qp_init_rd_atom: 32,                                // UCX#5148
    max_res_rd_atom: Some(0),                               // UCX#5148
    has_windows: false, // UCX#5148: no MEM_WINDOW in device_cap_flags
    srq: Some(SharedReceives {
        max_srq: None,
        max_wr: None,
        max_sge: None,
        resizes: false, // UCX#5148: no SRQ_RESIZE in device_cap_flags
    }),
    ..UNKNOWN
};

pub(super) const EFA: Specification = Specification {
    sizing: Sizing::Efa {
        max_descriptors: 32768, // UCX contrib/ibmock/config.c, max_rq_wr
    },
    kinds: &[QpKind::Ud, QpKind::Srd],  // efa/verbs.c: UD and SRD
    vendor_id: Some(7439),              // UCX contrib/ibmock/config.c
    vendor_part_id: Some(61345),        // UCX contrib/ibmock/config.c
    hw_ver: Some(61345),                // UCX contrib/ibmock/config.c
    page_size_cap: Some(4_294_963_200), // UCX contrib/ibmock/config.c
    device_cap_flags: Some(0),          // UCX contrib/ibmock/config.c
    max_mr_size: 103_079_215_104,       // UCX contrib/ibmock/config.c
    max_qp: Some(256),                  // UCX contrib/ibmock/config.c
    max_qp_wr: 4096,                    // UCX contrib/ibmock/config.c
    max_send_sge: 2,                    // UCX contrib/ibmock/config.c, max_sq_sge
    max_recv_sge: 3,                    // UCX contrib/ibmock/config.c, max_rq_sge
    max_sge_rd: Some(1),                // UCX contrib/ibmock/config.c
    max_cq: Some(512),                  // UCX contrib/ibmock/config.c
    max_cqe: Some(32768),               // UCX contrib/ibmock/config.c
    max_mr: Some(262_144),              // UCX contrib/ibmock/config.c
    max_pd: Some(256),                  // UCX contrib/ibmock/config.c
    max_qp_rd_atom: 0,                  // UCX contrib/ibmock/config.c
    max_qp_init_rd_atom: 0,             // UCX contrib/ibmock/config.c
    max_res_rd_atom: Some(0),           // UCX contrib/ibmock/config.c
    atomics: Some(Atomics::None),       // UCX contrib/ibmock/config.c
    max_mw: Some(0),                    // UCX contrib/ibmock/config.c
    has_windows: false,                 // efa/efa.c: no alloc_mw
    max_mcast_grp: Some(0),             // UCX contrib/ibmock/config.c
    max_mcast_qp_attach: Some(0),       // UCX contrib/ibmock/config.c
    max_total_mcast_qp_attach: Some(0), // UCX contrib/ibmock/config.c
    max_ah: Some(1024),                 // UCX contrib/ibmock/config.c
    srq: None,                          // efa/efa.c: no create_srq
    max_pkeys: Some(1),                 // UCX contrib/ibmock/config.c
    local_ca_ack_delay: Some(0),        // UCX contrib/ibmock/config.c
    max_inline: Some(32),               // UCX contrib/ibmock/config.c, inline_buf_size
    max_msg_sz: 8928,                   // UCX contrib/ibmock/config.c
    gid_tbl_len: Some(1),               // UCX contrib/ibmock/config.c
    resizes_cqs: false,                 // efa/efa.c: no resize_cq
    ..UNKNOWN
};

pub(super) const ERDMA: Specification = Specification {
    sizing: Sizing::Erdma,
    kinds: RC,                      // hw/erdma/erdma_verbs.c, erdma_qp_validate_attr
    cq_errno: libc::EIO,            // erdma/erdma_verbs.c, erdma_create_cq
    max_qp_wr: 8192,                // hw/erdma/erdma_verbs.h, ERDMA_MAX_SEND_WR
    max_send_sge: 6,                // hw/erdma/erdma_verbs.h
    max_recv_sge: 1,                // hw/erdma/erdma_verbs.h
    max_sge_rd: Some(1),            // hw/erdma/erdma_verbs.h
    max_qp_rd_atom: 128,            // hw/erdma/erdma_verbs.h, ERDMA_MAX_ORD
    max_qp_init_rd_atom: 128,       // hw/erdma/erdma_verbs.h, ERDMA_MAX_IRD
    atomics: Some(Atomics::Global), // hw/erdma/erdma_verbs.c: of devices with the capability
    has_windows: false,             // erdma/erdma.c: no alloc_mw
    srq: None,                      // erdma/erdma.c: no create_srq
    max_inline: Some(96),           // hw/erdma/erdma_verbs.h, ERDMA_MAX_INLINE
    max_msg_sz: u32::MAX,           // hw/erdma/erdma_verbs.c, erdma_query_port
    resizes_cqs: false,             // erdma/erdma.c: no resize_cq
    ..UNKNOWN
};

pub(super) const RXE: Specification = Specification {
    sizing: Sizing::Rxe,
    kinds: &[QpKind::Rc, QpKind::Uc, QpKind::Ud], // sw/rxe/rxe_verbs.c
    vendor_part_id: Some(0),                      // sw/rxe/rxe_param.h
    hw_ver: Some(0),                              // sw/rxe/rxe_param.h
    page_size_cap: Some(0xffff_f000),             // sw/rxe/rxe_param.h
    max_mr_size: u64::MAX,                        // sw/rxe/rxe_param.h
    max_qp: Some((1 << 20) - 16),                 // sw/rxe/rxe_param.h
    max_qp_wr: 1 << 20,                           // sw/rxe/rxe_param.h
    max_send_sge: 32,                             // sw/rxe/rxe_param.h
    max_recv_sge: 32,                             // sw/rxe/rxe_param.h
    max_sge_rd: Some(32),                         // sw/rxe/rxe_param.h
    max_cq: Some(1 << 20),                        // sw/rxe/rxe_param.h
    max_cqe: Some(32767),                         // sw/rxe/rxe_param.h
    max_pd: Some(1 << 20),                        // sw/rxe/rxe_param.h
    max_qp_rd_atom: 128,                          // sw/rxe/rxe_param.h
    max_qp_init_rd_atom: 128,                     // sw/rxe/rxe_param.h
    max_res_rd_atom: Some(0x3_f000),              // sw/rxe/rxe_param.h
    atomics: Some(Atomics::Hca),                  // sw/rxe/rxe.c
    max_mcast_grp: Some(8192),                    // sw/rxe/rxe_param.h
    max_mcast_qp_attach: Some(56),                // sw/rxe/rxe_param.h
    max_total_mcast_qp_attach: Some(0x7_0000),    // sw/rxe/rxe_param.h
    max_ah: Some((1 << 15) - 1),                  // sw/rxe/rxe_param.h
    srq: Some(SharedReceives {
        max_srq: None,
        max_wr: Some(1 << 20), // sw/rxe/rxe_param.h
        max_sge: Some(27),     // sw/rxe/rxe_param.h
        resizes: true,         // sw/rxe/rxe_param.h, IB_DEVICE_SRQ_RESIZE
    }),
    max_pkeys: Some(64),          // sw/rxe/rxe_param.h
    local_ca_ack_delay: Some(15), // sw/rxe/rxe_param.h
    max_inline: Some(512),        // sw/rxe/rxe_param.h: 32 elements of 16 bytes
    has_placement: true,          // sw/rxe/rxe_opcode.c
    ..UNKNOWN
};

pub(super) const SIW: Specification = Specification {
    sizing: Sizing::Siw,
    kinds: RC,                    // sw/siw/siw_verbs.c, siw_create_qp
    vendor_id: Some(0x62_6d74),   // sw/siw/siw.h
    vendor_part_id: Some(0),      // sw/siw/siw.h
    max_mr_size: u64::MAX,        // sw/siw/siw_verbs.c
    max_qp: Some(102_400),        // sw/siw/siw.h
    max_qp_wr: 32768,             // sw/siw/siw.h
    max_send_sge: 6,              // uapi/rdma/siw-abi.h
    max_recv_sge: 6,              // uapi/rdma/siw-abi.h
    max_sge_rd: Some(1),          // sw/siw/siw.h
    max_cq: Some(102_400),        // sw/siw/siw.h
    max_cqe: Some(3_276_800),     // sw/siw/siw.h
    max_mr: Some(1_024_000),      // sw/siw/siw.h
    max_pd: Some(102_400),        // sw/siw/siw.h
    max_qp_rd_atom: 128,          // sw/siw/siw.h
    max_qp_init_rd_atom: 128,     // sw/siw/siw.h
    atomics: Some(Atomics::None), // sw/siw/siw_verbs.c
    max_mw: Some(0),              // sw/siw/siw.h
    has_windows: false,           // siw/siw.c: no alloc_mw
    srq: Some(SharedReceives {
        max_srq: Some(102_400), // sw/siw/siw.h
        max_wr: Some(327_680),  // sw/siw/siw.h
        max_sge: Some(6),       // uapi/rdma/siw-abi.h
        resizes: false,         // sw/siw/siw_verbs.c, siw_modify_srq
    }),
    max_inline: Some(80), // uapi/rdma/siw-abi.h: 5 elements of 16 bytes
    max_msg_sz: u32::MAX, // sw/siw/siw_verbs.c, siw_query_port
    resizes_cqs: false,   // siw/siw.c: no resize_cq
    ..UNKNOWN
};
