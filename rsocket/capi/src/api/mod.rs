//! The C functions by topic.

mod data;
mod memory;
mod place;
mod poll;
mod set;
mod socket;
pub(crate) mod udp;

pub use data::*;
pub use place::*;
pub use poll::*;
pub use set::*;
pub use socket::*;
