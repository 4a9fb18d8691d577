//! Registered memory.
//!
//! There are three kinds, because there are three ways in which a device and a program can share
//! bytes:
//!
//! - [`Buf`]: one owner at a time. The program may write it, or the device may, never both: posting
//!   moves it to the device, its completion moves it back.
//! - [`SharedBuf`]: frozen. Any number of requests may read it at once, and so may the program.
//!
//! Memory that a *peer* may write at any time is the third kind, and not here yet.

mod buf;
mod region;

pub use buf::{Buf, SharedBuf};
