//! Prints the bindings that this build regenerated, under the release of rdma-core they are of.
//!
//! `cargo xtask codegen` makes the checked-in bindings of it.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program to look at"
)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(release) = option_env!("RDMACM_RELEASE").filter(|_| cfg!(regenerated)) else {
        eprintln!(
            "this build regenerated nothing: it needs libclang, and pkg-config to know \
                   rdma-core's release"
        );
        return ExitCode::FAILURE;
    };
    println!("// rdma-core {release}");
    print!("{}", include_str!(concat!(env!("OUT_DIR"), "/bindings.rs")));
    ExitCode::SUCCESS
}
