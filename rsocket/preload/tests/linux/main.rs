//! Calls of a program under the library, on a fabric of softnic, compared with the same calls on TCP sockets of this
//! kernel.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

// The test is linked with the library, whose functions come before the C library's.
extern crate rspreload as _;

mod addresses;
mod border;
mod calls;
mod connects;
mod descriptors;
mod endings;
mod fallback;
mod listeners;
mod loopback;
mod program;
mod transfers;
