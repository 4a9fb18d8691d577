//! Shared parts of libraries that interpose libc functions: `librspreload.so`, `librdspreload.so`,
//! and, for errors and addresses, `librsocket.so`.
//!
//! Such a library has some of the program's descriptors in a [`Table`]. Interposed functions handle
//! these, and call the next definition ([`real!`]) for all others. The functions are defined by
//! macros in the exporting crate: [`interpose!`] for one function with a descriptor, [`messages!`]
//! for receiving and sending, [`descriptors!`] for any descriptor, and [`waiting!`] for `poll` and
//! `select`.

mod address;
#[doc(hidden)]
pub mod border;
mod errno;
#[doc(hidden)]
pub mod files;
mod functions;
mod real;
mod table;
mod unaligned;
#[doc(hidden)]
pub mod wait;

pub use address::{Encoded, encode};
pub use border::{Returned, cross, uncancelled};
pub use errno::{fits, last_errno, os, run, set_errno};
pub use files::{Descriptors, duplicate, is_internal, is_of_device};
#[doc(hidden)]
pub use libc;
pub use real::find;
pub use table::{MAX_DESCRIPTORS, Table, claim_ownership, is_owner, watch_forks};
pub use unaligned::{load, store};
pub use wait::{Mask, Polled, Selected, milliseconds};
