//! Finds librdmacm, regenerates the bindings from its headers, and detects newer items.
//!
//! Output: `OUT_DIR/bindings.rs`, the cfgs in [`NEWER`], and the metadata `DEP_RDMACM_*`. The other files here are
//! links to ibverbs-sys.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "how a build script talks to cargo"
)]

mod script;

use script::{LibrarySpec, Script};
use std::process::ExitCode;

const RDMACM: LibrarySpec = LibrarySpec {
    name: "rdmacm",
    package: "librdmacm",
    at_least: "1.3",
    prefix: "RDMACM",
    debian: "librdmacm-dev",
};

const NEWER: &[(&str, &str)] = &[
    ("rdmacm_addrinfo_async", "fn rdma_resolve_addrinfo"),
    ("rdmacm_repoll", "fn repoll_create"),
];

fn main() -> ExitCode {
    Script {
        spec: RDMACM,
        newer: NEWER,
        #[cfg(feature = "bindgen")]
        select,
    }
    .run()
}

#[cfg(feature = "bindgen")]
fn select(builder: bindgen::Builder) -> bindgen::Builder {
    /// Handles and events, destroyed or acknowledged exactly once: no `Copy`.
    const LINEAR: &str = "rdma_(cm_id|event_channel|cm_event|addrinfo)";

    builder
        .allowlist_file(r".*/rdma/(rdma_cma|rdma_verbs|rsocket)\.h|.*/infiniband/ib\.h")
        .blocklist_item("[AP]F_IB")
        .bitfield_enum("rdma_cm_join_mc_attr_mask")
        .no_copy(LINEAR)
}
