//! Errors of decoding and encoding frames.

use std::{error::Error, fmt};

/// Error of decoding or encoding a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end within the named header.
    Truncated(&'static str),
    /// The IP version is neither 4 nor 6.
    IpVersion(u8),
    /// An IPv4 header with options; the value is the header length in 32-bit words.
    IpOptions(u8),
    /// An IPv4 packet that is a fragment.
    Fragment,
    /// The checksum of the IPv4 header is wrong.
    IpChecksum,
    /// A protocol other than UDP.
    Protocol(u8),
    /// A UDP port other than 4791.
    Port(u16),
    /// The lengths in the IP and UDP headers disagree, or exceed the bytes.
    Length,
    /// A version of the transport header other than 0.
    TransportVersion(u8),
    /// An unknown opcode.
    Opcode(u8),
    /// The pad count exceeds the payload.
    Pad(u8),
    /// The ICRC does not match the frame; the value is the computed ICRC.
    Icrc(u32),
    /// The extension headers do not match the opcode.
    Headers(u8),
    /// The payload exceeds the maximum of a UDP datagram; the value is its length in bytes.
    Payload(usize),
    /// The two addresses are of different families.
    AddressFamilies,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated(header) => write!(f, "the frame ends within its {header}"),
            Self::IpVersion(version) => write!(f, "IP version {version} is neither 4 nor 6"),
            Self::IpOptions(words) => write!(f, "an IPv4 header of {words} words has options"),
            Self::Fragment => f.write_str("the IPv4 packet is a fragment"),
            Self::IpChecksum => f.write_str("the checksum of the IPv4 header is wrong"),
            Self::Protocol(protocol) => write!(f, "IP protocol {protocol} is not UDP (17)"),
            Self::Port(port) => write!(f, "UDP port {port} is not that of RoCEv2 (4791)"),
            Self::Length => f.write_str("the lengths of the IP and UDP headers do not fit"),
            Self::TransportVersion(version) => write!(f, "transport version {version} is not 0"),
            Self::Opcode(opcode) => write!(f, "opcode {opcode:#04x} is unknown"),
            Self::Pad(pad) => write!(f, "{pad} bytes of padding exceed the payload"),
            Self::Icrc(icrc) => write!(f, "the ICRC of the frame would be {icrc:#010x}"),
            Self::Headers(opcode) => {
                write!(
                    f,
                    "the extension headers are not those of opcode {opcode:#04x}"
                )
            }
            Self::Payload(len) => write!(f, "a payload of {len} bytes exceeds a datagram"),
            Self::AddressFamilies => f.write_str("one address is IPv4, the other IPv6"),
        }
    }
}

/// Reads as [`Display`](fmt::Display): `unwrap` and `fn main() -> Result` print it.
impl fmt::Debug for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for WireError {}
