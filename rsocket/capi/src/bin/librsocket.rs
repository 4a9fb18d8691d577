//! The shared library: the functions of `rsocket_capi` with the names in `symbols.map`.
#![no_main]

extern crate rsocket_capi as _;
