//! Finds libibverbs, regenerates the bindings from its headers, and detects newer items.
//!
//! Output: `OUT_DIR/bindings.rs`, the cfgs in [`NEWER`], and the metadata `DEP_IBVERBS_*`.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a build script communicates with cargo on standard output"
)]

mod script;

use script::{LibrarySpec, Script};
use std::process::ExitCode;

const IBVERBS: LibrarySpec = LibrarySpec {
    name: "ibverbs",
    package: "libibverbs",
    at_least: "1.14",
    prefix: "IBVERBS",
    debian: "libibverbs-dev",
};

const NEWER: &[(&str, &str)] = &[
    ("ibv_atomic_write", "wr_atomic_write"),
    ("ibv_flush", "wr_flush"),
    (
        "ibv_data_in_order_caps",
        "struct ibv_query_qp_data_in_order_caps",
    ),
    ("ibv_active_speed_ex", "active_speed_ex"),
    ("ibv_odp_flush", "IBV_ODP_SUPPORT_FLUSH"),
    ("ibv_reg_mr_ex", "fn ibv_reg_mr_ex"),
    ("ibv_dmah", "fn ibv_alloc_dmah"),
    (
        "ibv_data_in_order_device",
        "IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY",
    ),
    ("ibv_query_port_speed", "fn ibv_query_port_speed"),
    ("ibv_buf", "fn ibv_alloc_buf"),
    ("ibv_comp_cntr", "fn ibv_create_comp_cntr"),
];

fn main() -> ExitCode {
    Script {
        spec: IBVERBS,
        newer: NEWER,
        #[cfg(feature = "bindgen")]
        select,
    }
    .run()
}

#[cfg(feature = "bindgen")]
fn select(builder: bindgen::Builder) -> bindgen::Builder {
    /// Handles and events, destroyed or acknowledged exactly once: no `Copy`.
    const LINEAR: &str = "ibv_(context|device|pd|td|xrcd|mr|mw|dm|dmah|buf|cq|cq_ex|comp_channel|\
        comp_cntr|qp|qp_ex|srq|wq|rwq_ind_table|ah|flow|flow_action|counters|async_event)|\
        verbs_context|verbs_ex_private|_compat_ibv_port_attr";
    /// Sets of flags, combined by `|`.
    const FLAGS: &str = "ibv_.*(_flags2?|_mask|_caps|_cap_bits|_op_size)|ibv_rx_hash_fields|\
        ibv_placement_type|ibv_qp_attach_comp_cntr_op|ib_uverbs_.*_flags?";
    /// Functions hidden by a macro of the same name, a symbol renamed in every release, and a symbol only in static
    /// libraries.
    const HIDDEN: &str = "ibv_reg_mr|ibv_reg_mr_iova|ibv_wr_opcode_str|ibv_static_providers";
    /// Internal types of the kernel interface.
    const KERNEL: &str = "rdma_driver_id|ib_uverbs_(core_support|query_port_resp_ex|buffer_.*|\
        comp_cntr_.*|qp_attach_.*)";
    /// Written in Rust, in `gid.rs` and `names.rs`.
    const OURS: &str = "ibv_gid(__.*)?|ETHERNET_LL_SIZE";

    builder
        .allowlist_file(r".*/infiniband/(verbs|verbs_api|ib_user_ioctl_verbs|sa|tm_types)\.h")
        .blocklist_item(HIDDEN)
        .blocklist_item(KERNEL)
        .blocklist_item(OURS)
        .bitfield_enum(FLAGS)
        .no_copy(LINEAR)
}
