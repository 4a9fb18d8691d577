//! Finds libefa, and regenerates the bindings from its header.
//!
//! Output: `OUT_DIR/bindings.rs` and the metadata `DEP_EFA_*`. The other files here are links to ibverbs-sys.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "how a build script talks to cargo"
)]

mod script;

use script::{LibrarySpec, Script};
use std::process::ExitCode;

const EFA: LibrarySpec = LibrarySpec {
    name: "efa",
    package: "libefa",
    at_least: "1.2.44",
    prefix: "EFA",
    debian: "libibverbs-dev",
};

fn main() -> ExitCode {
    Script {
        spec: EFA,
        newer: &[],
        #[cfg(feature = "bindgen")]
        select,
    }
    .run()
}

#[cfg(feature = "bindgen")]
fn select(builder: bindgen::Builder) -> bindgen::Builder {
    builder
        .allowlist_file(r".*/infiniband/efadv\.h")
        .no_copy("efadv_cq")
}
