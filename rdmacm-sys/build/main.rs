//! Finds librdmacm, regenerates the bindings from its headers, and detects newer items.
//!
//! Output: `OUT_DIR/bindings.rs`, the cfgs in [`NEWER`], and the metadata `DEP_RDMACM_*`. The other files here are
//! links to ibverbs-sys.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "how a build script talks to cargo"
)]

#[cfg(feature = "bindgen")]
mod headers;
mod library;
mod script;
mod stub;

use library::LibrarySpec;
use script::Script;
use std::env;
use std::path::PathBuf;
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
    // rdma_cma.h includes verbs.h: use the file read by ibverbs-sys.
    let verbs = env::var_os("DEP_IBVERBS_INCLUDE").expect("ibverbs-sys sets the folder of verbs.h");
    Script {
        spec: RDMACM,
        newer: NEWER,
        regenerate,
    }
    .run(env::split_paths(&verbs))
}

#[cfg(not(feature = "bindgen"))]
fn regenerate(_: &[PathBuf]) -> Option<String> {
    None
}

#[cfg(feature = "bindgen")]
fn regenerate(include: &[PathBuf]) -> Option<String> {
    /// Handles and events, destroyed or acknowledged exactly once: no `Copy`.
    const LINEAR: &str = "rdma_(cm_id|event_channel|cm_event|addrinfo)";

    let builder = headers::builder(include)?
        .allowlist_file(r".*/rdma/(rdma_cma|rdma_verbs|rsocket)\.h|.*/infiniband/ib\.h")
        .blocklist_item("[AP]F_IB")
        .bitfield_enum("rdma_cm_join_mc_attr_mask")
        .no_copy(LINEAR);
    Some(headers::generate(builder))
}
