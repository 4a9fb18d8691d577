//! The rsockets protocol without I/O: connect data, messages and completions in, requests out.
//!
//! The wire format is that of librdmacm's rsockets (`rsocket(7)`): the private data of a connection, RDMA
//! writes with 32 bits of immediate data, and tables written by the peer. rdma-core describes it in
//! `librdmacm/docs/rsocket`; messages in the tests were recorded from its library.
//!
//! This crate depends on no device, thread or clock. A driver such as the crate `rsocket` owns these and the
//! memory, posts the requests, and reports completions and the time. So the same code runs over RDMA, in a
//! simulator (`tests/simulator`) and under a fuzzer (`tests/fuzz`). Input from the peer cannot cause a panic.
//!
//! | module | is |
//! |---|---|
//! | the root | [`ConnectData`], the private data; [`Message`]; [`Target`] and [`Mapping`], table entries |
//! | [`stream`] | one side of a connected stream |
//! | [`datagram`] | a datagram socket: resolution of peers over UDP, headers between queue pairs |
//!
//! ```
//! use rsocket_proto::stream::{Burst, Local, Settings, Stream};
//! use rsocket_proto::{ByteOrder, ConnectData, Message};
//!
//! let settings = Settings::default();
//! let local = Local {
//!     table_addr: 0x1000,
//!     table_rkey: 1,
//!     buffer_addr: 0x10_0000,
//!     buffer_rkey: 2,
//!     order: ByteOrder::HOST,
//! };
//! // The private data of the peer, with the same sizes and addresses.
//! let private_data = Stream::connect_data(&settings, &local).encode();
//! let peer = ConnectData::decode(&private_data)?;
//!
//! let mut stream = Stream::new(settings, &local, &peer);
//! let write = stream.send(&mut Burst::default(), 5).expect("a new stream has room");
//! // The driver posts an RDMA write of five bytes into the peer's buffer...
//! assert_eq!((write.addr, write.rkey), (0x10_0000, 2));
//! // ...with the message as immediate data...
//! let message = write.message.expect("data has a message");
//! assert_eq!(Message::decode(message.encode()), Message::Data(5));
//! // ...and reports the completion.
//! stream.sent(write.tag, true);
//! assert!(stream.is_flushed());
//! # Ok::<(), rsocket_proto::BadConnectData>(())
//! ```
#![forbid(unsafe_code)]

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
