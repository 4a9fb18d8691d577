//! The C functions by topic.

mod data;
mod mapping;
mod memory;
mod poll;
mod set;
mod socket;
pub(crate) mod udp;

pub use data::*;
pub use mapping::*;
pub use poll::*;
pub use set::*;
pub use socket::*;
