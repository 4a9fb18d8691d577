//! Registered memory.
//!
//! There are three kinds, because there are three ways in which a device and a program can share
//! bytes:
//!
//! - [`Buf`]: one owner at a time. The program may write it, or the device may, never both: posting
//!   moves it to the device, its completion moves it back.
//! - [`SharedBuf`]: frozen. Any number of requests may read it at once, and so may the program.
//! - [`RemoteRegion`]: a peer may read or write it at any time. Nobody has a reference to its
//!   bytes; the program copies in and out.

mod buf;
mod copying;
mod region;
mod remote;

pub use buf::{Buf, SharedBuf};
pub use remote::{RemoteRegion, RemoteToken};
