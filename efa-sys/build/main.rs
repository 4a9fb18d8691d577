//! Finds libefa, and regenerates the bindings from its header.
//!
//! Output: `OUT_DIR/bindings.rs` and the metadata `DEP_EFA_*`. The other files here are links to ibverbs-sys.
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

const EFA: LibrarySpec = LibrarySpec {
    name: "efa",
    package: "libefa",
    at_least: "1.2.44",
    prefix: "EFA",
    debian: "libibverbs-dev",
};

fn main() -> ExitCode {
    // efadv.h includes verbs.h: use the file read by ibverbs-sys.
    let verbs = env::var_os("DEP_IBVERBS_INCLUDE").expect("ibverbs-sys sets the folder of verbs.h");
    Script {
        spec: EFA,
        newer: &[],
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
    let builder = headers::builder(include)?
        .allowlist_file(r".*/infiniband/efadv\.h")
        .no_copy("efadv_cq");
    Some(headers::generate(builder))
}
