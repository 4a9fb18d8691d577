//! Frames of `RoCEv2`: IPv4 or IPv6, UDP to port 4791, the headers of InfiniBand's transport, and the ICRC.
//!
//! A [`Frame`] is one datagram from the first byte of its IP header to the last byte of its ICRC. Decoding accepts any
//! bytes and never panics; a decoded frame borrows its payload.
//!
//! ```
//! use softnic::wire::{Bth, Extensions, Frame, IpHeader, Opcode};
//! let frame = Frame {
//!     ip: IpHeader::new("10.9.0.1".parse()?, "10.9.0.2".parse()?)?,
//!     src_port: 0xc000,
//!     udp_checksum: 0,
//!     bth: Bth::new(Opcode::RC_SEND_ONLY, 17, 1),
//!     extensions: Extensions::default(),
//!     payload: b"hello",
//! };
//! let mut bytes = Vec::new();
//! frame.encode(&mut bytes)?;
//! assert_eq!(Frame::decode(&bytes)?, frame);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Source: InfiniBand Architecture Specification, volume 1, chapter 9, and annex A17 (`RoCEv2`).
#![forbid(unsafe_code)]

mod aeth;
mod atomic;
mod bth;
mod datagram;
mod dc;
mod error;
mod extensions;
mod flush;
mod frame;
mod icrc;
mod identification;
mod ip;
mod opcode;
mod reader;
mod reth;
mod udp;

pub use aeth::{Aeth, Nak, Syndrome};
pub use atomic::AtomicEth;
pub use bth::Bth;
pub use datagram::Deth;
pub use dc::Dceth;
pub use error::WireError;
pub use extensions::Extensions;
pub use flush::Feth;
pub use frame::Frame;
pub(crate) use identification::{Identifier, clear_identification};
pub use ip::IpHeader;
pub(crate) use ip::checksum;
pub use opcode::{Immediate, Opcode, Operation, Position, Transport};
pub use reth::Reth;
pub use udp::PORT;

/// The IP and UDP headers of a datagram of `payload` bytes, as a socket sends it; `None` if the datagram is too long.
pub(crate) fn socket_headers(ip: &IpHeader, src_port: u16, payload: usize) -> Option<Vec<u8>> {
    let len = u16::try_from(udp::LEN.checked_add(payload)?).ok()?;
    let mut headers = Vec::with_capacity(ip.encoded_len() + udp::LEN);
    ip.encode(len, &mut headers)?;
    udp::Udp {
        src_port,
        len,
        checksum: 0,
    }
    .encode(&mut headers);
    Some(headers)
}
