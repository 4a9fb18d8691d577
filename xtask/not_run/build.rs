//! Passes on whether libibverbs is a library of functions that fail, and whether rdma-core's and UCX's programs are installed.

use std::env;
use std::path::Path;

/// Folder of the distribution's programs.
const PROGRAMS: &str = "/usr/bin";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={PROGRAMS}");
    println!("cargo::rustc-check-cfg=cfg(stub, without_programs, without_ucx)");
    if env::var_os("DEP_IBVERBS_STUB").is_some() {
        println!("cargo::rustc-cfg=stub");
    }
    if !Path::new(PROGRAMS).join("rping").exists() {
        println!("cargo::rustc-cfg=without_programs");
    }
    if !Path::new(PROGRAMS).join("ucx_info").exists() {
        println!("cargo::rustc-cfg=without_ucx");
    }
}
