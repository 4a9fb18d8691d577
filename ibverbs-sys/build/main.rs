//! Finds libibverbs, regenerates the bindings from its headers, and tells what they contain.
//!
//! Out come `OUT_DIR/bindings.rs`, the cfgs in [`NEWER`] and the metadata `DEP_IBVERBS_*`.

#[cfg(feature = "bindgen")]
mod headers;
mod library;

use library::{Found, Wanted};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const IBVERBS: Wanted = Wanted {
    name: "ibverbs",
    package: "libibverbs",
    at_least: "1.14",
    prefix: "IBVERBS",
    debian: "libibverbs-dev",
};

/// What appeared after rdma-core 39: a cfg, and the text in the bindings that proves it.
const NEWER: &[(&str, &str)] = &[
    ("ibv_atomic_write", "pub wr_atomic_write:"),
    ("ibv_flush", "pub wr_flush:"),
    (
        "ibv_data_in_order_caps",
        "struct ibv_query_qp_data_in_order_caps(",
    ),
    ("ibv_active_speed_ex", "pub active_speed_ex:"),
    ("ibv_reg_mr_ex", "pub fn ibv_reg_mr_ex("),
    ("ibv_dmah", "pub fn ibv_alloc_dmah("),
    ("ibv_query_port_speed", "pub fn ibv_query_port_speed("),
    ("ibv_dm_dmabuf", "pub fn ibv_dm_export_dmabuf_fd("),
    ("ibv_buf", "pub fn ibv_alloc_buf("),
    ("ibv_comp_cntr", "pub fn ibv_create_comp_cntr("),
];

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=wrapper.h");
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    let found = if env::var_os("DOCS_RS").is_some() {
        Found::default()
    } else {
        match library::find(&IBVERBS) {
            Ok(found) => found,
            Err(message) => {
                eprintln!("{message}");
                return ExitCode::FAILURE;
            }
        }
    };
    let regenerated = regenerate(&found);
    println!("cargo::rustc-check-cfg=cfg(regenerated)");
    if regenerated.is_some() {
        println!("cargo::rustc-cfg=regenerated");
    }
    let bindings = regenerated.unwrap_or_else(checked_in);

    for (cfg, probe) in NEWER {
        println!("cargo::rustc-check-cfg=cfg({cfg})");
        if bindings.contains(probe) {
            println!("cargo::rustc-cfg={cfg}");
        }
    }
    let include = env::join_paths(&found.include).expect("an include path has no colon");
    println!("cargo::metadata=include={}", include.display());
    println!("cargo::rustc-env=IBVERBS_INCLUDE={}", include.display());
    println!(
        "cargo::metadata=version={}",
        found.version.as_deref().unwrap_or_default()
    );
    if let Some(release) = found.release() {
        println!("cargo::metadata=release={release}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("bindings.rs"), bindings).expect("OUT_DIR is writable");
    ExitCode::SUCCESS
}

/// The bindings of rdma-core 44, made by `cargo xtask codegen`.
fn checked_in() -> String {
    let path = Path::new("src/bindings.rs");
    println!("cargo::rerun-if-changed={}", path.display());
    fs::read_to_string(path).expect("the crate contains its bindings")
}

#[cfg(not(feature = "bindgen"))]
fn regenerate(_: &Found) -> Option<String> {
    None
}

#[cfg(feature = "bindgen")]
fn regenerate(found: &Found) -> Option<String> {
    /// Handles, and things to give back exactly once: a copy in Rust would be a lie.
    const LINEAR: &str = "verbs_context|ibv_(context|device|pd|td|xrcd|mr|mw|dm|dmah|buf|cq|cq_ex|\
        comp_channel|comp_cntr|qp|qp_ex|srq|wq|rwq_ind_table|ah|flow|flow_action|counters|\
        async_event|_compat_ibv_port_attr)|_compat_ibv_port_attr|verbs_ex_private";
    /// Sets of flags, which `|` combines.
    const FLAGS: &str = "ibv_.*(_flags2?|_mask|_caps|_cap_bits|_op_size|rx_hash_fields)|\
        ibv_placement_type|ibv_qp_attach_comp_cntr_op|ib_uverbs_.*_flags?";
    /// In the headers, but not for programs: a private symbol, and the kernel's own business.
    const PRIVATE: &str = "ibv_wr_opcode_str|ibv_static_providers|ibv_reg_mr|ibv_reg_mr_iova|rdma_driver_id|\
        ib_uverbs_(core_support|query_port_resp_ex|buffer_.*|comp_cntr_.*|qp_attach_.*)";

    // docs.rs has the headers of some distribution, which need not be the documented ones.
    if env::var_os("DOCS_RS").is_some() {
        return None;
    }
    let bindings = headers::builder(&found.include)?
        .allowlist_file(r".*/infiniband/(verbs|verbs_api|ib_user_ioctl_verbs|sa|tm_types)\.h")
        .blocklist_item(PRIVATE)
        .blocklist_type("ibv_gid(__.*)?")
        .bitfield_enum(FLAGS)
        .no_copy(LINEAR)
        .generate()
        .expect("bindgen reads the installed headers");
    Some(bindings.to_string())
}
