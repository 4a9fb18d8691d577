//! What libraries share whose functions programs call as the C library's: `librspreload.so`,
//! `librdspreload.so`, and, of the part about errors and addresses, `librsocket.so`.
//!
//! Such a library knows some of the program's descriptors as its own, in a [`Table`]. For these, its
//! functions do something else; for all others, they call the functions that were there before
//! ([`real!`]). The functions themselves are made by macros in the crate that exports them:
//! [`interpose!`] for one with a descriptor, [`messages!`] for what receives and sends,
//! [`descriptors!`] for what programs do with all descriptors, and [`waiting!`] for what waits for
//! many.

mod address;
mod errno;
#[doc(hidden)]
pub mod files;
mod functions;
mod real;
mod signals;
mod table;
#[doc(hidden)]
pub mod wait;

pub use address::{Encoded, encode};
pub use errno::{fits, last_errno, os, run, set_errno};
pub use files::{Descriptors, duplicate};
#[doc(hidden)]
pub use libc;
pub use real::find;
pub use signals::restarting;
pub use table::{MOST, Table, is_owner, own, watch_forks};
pub use wait::{Mask, Polled, Selected, milliseconds};
