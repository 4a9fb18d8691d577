//! Finds libmlx5, and regenerates the bindings from its header.
//!
//! Output: `OUT_DIR/bindings.rs` and the metadata `DEP_MLX5_*`. The other files here are links to ibverbs-sys.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "how a build script talks to cargo"
)]

mod script;

use script::{LibrarySpec, Script};
use std::process::ExitCode;

const MLX5: LibrarySpec = LibrarySpec {
    name: "mlx5",
    package: "libmlx5",
    at_least: "1.22.39",
    prefix: "MLX5",
    debian: "libibverbs-dev",
};

fn main() -> ExitCode {
    Script {
        spec: MLX5,
        newer: &[],
        #[cfg(feature = "bindgen")]
        select,
    }
    .run()
}

#[cfg(feature = "bindgen")]
fn select(builder: bindgen::Builder) -> bindgen::Builder {
    /// Items of the dynamically connected transport.
    const TYPES: &str = "mlx5dv_(context_attr|qp_init_attr|dc_init_attr)(_flags|_mask|__bindgen_ty_1)?|\
         mlx5dv_(dc_type|dci_streams|qp_ex)";
    const FUNCTIONS: &str = "mlx5dv_(is_supported|open_device|create_qp|qp_ex_from_ibv_qp_ex)";

    builder
        .allowlist_type(TYPES)
        .allowlist_function(FUNCTIONS)
        .bitfield_enum("mlx5dv_(context_attr_flags|qp_init_attr_mask)")
        .no_copy("mlx5dv_qp_ex")
}
