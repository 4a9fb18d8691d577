//! The protocol without input and output: bytes and completions go in, requests come out.
//!
//! Independent of devices, threads and clocks: the same code runs over RDMA, in a simulator and under a
//! fuzzer.

mod connect;
pub mod datagram;
mod entry;
mod message;
mod order;
mod scale;
pub mod stream;

pub use connect::{BadConnectData, ConnectData, VERSION};
pub use entry::{Mapping, Target};
pub use message::{Control, Message};
pub use order::ByteOrder;
pub use scale::{MAX_SCALED, decode as decode_size, encode as encode_size};
