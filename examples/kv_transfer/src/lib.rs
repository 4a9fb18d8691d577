//! The engine of a KV-cache transfer, explained in the README.
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod cause;
mod engine;
mod lane;
mod lease;
mod message;
mod options;
mod page;
mod peer;
mod reader;
mod shares;
mod writer;

pub use cause::Cause;
pub use lease::LeaseId;
pub use options::Options;
pub use page::{PageSet, Pages};
pub use peer::PeerId;
pub use reader::{Reader, ReaderEvent};
pub use writer::{Writer, WriterEvent};
