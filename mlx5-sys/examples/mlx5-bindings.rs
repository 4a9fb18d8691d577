//! Prints the regenerated bindings, preceded by the release of rdma-core.
//!
//! Used by `cargo xtask codegen` to write the checked-in bindings.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "output for `cargo xtask codegen`"
)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(release) = option_env!("MLX5_RELEASE").filter(|_| cfg!(regenerated)) else {
        eprintln!(
            "this build has no regenerated bindings: install libclang, and pkg-config for \
                   rdma-core's release"
        );
        return ExitCode::FAILURE;
    };
    println!("// rdma-core {release}");
    print!("{}", include_str!(concat!(env!("OUT_DIR"), "/bindings.rs")));
    ExitCode::SUCCESS
}
