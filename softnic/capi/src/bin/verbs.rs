//! The shared library: the functions of `softnic`, `softnic_capi` and `rsocket_capi`, under the names and versions in
//! `symbols.map`.
#![no_main]

extern crate rsocket_capi as _;
extern crate softnic as _;
extern crate softnic_capi as _;

#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
#[path = "../versions.rs"]
mod versions;
