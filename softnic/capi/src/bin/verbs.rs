//! The shared library: the functions of `softnic` and `softnic_capi`, under the names and versions in `symbols.map`.
#![no_main]

extern crate softnic as _;
extern crate softnic_capi as _;

#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
#[path = "../versions.rs"]
mod versions;
