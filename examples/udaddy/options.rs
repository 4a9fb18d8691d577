//! Options of both sides.

use clap::ValueEnum;
use cm::{AddrHints, PortSpace};

use crate::pingpong::options::number;

/// Options of both sides.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server; `None` on the server.
    pub server: Option<String>,
    /// The local address.
    pub bind: Option<String>,
    /// Format of the addresses.
    pub format: Format,
    /// The port space of all identifiers.
    pub space: PortSpace,
    /// Number of peers.
    pub connections: u32,
    /// Number of messages in each direction.
    pub message_count: u32,
    /// Message size, in bytes.
    pub message_size: u32,
    /// The type of service.
    pub tos: Option<u8>,
}

/// Format of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A host name or an address
    Name,
    /// An IPv4 address
    Ip,
    /// An IPv6 address
    Ipv6,
    /// An InfiniBand address
    Gid,
}

impl Options {
    /// Hints for address lookups.
    pub fn hints(&self) -> AddrHints {
        let hints = AddrHints::new().port_space(self.space);
        match self.format {
            Format::Name => hints,
            Format::Ip | Format::Ipv6 => hints.numeric_host(),
            Format::Gid => hints.infiniband(),
        }
    }
}

/// Parses a datagram port space, given by name or by number.
///
/// # Errors
/// The port space is unknown.
pub fn space_of(text: &str) -> Result<PortSpace, String> {
    match (text, number::<u32>(text)) {
        ("udp", _) | (_, Ok(0x111)) => Ok(PortSpace::Udp),
        ("ipoib", _) | (_, Ok(0x2)) => Ok(PortSpace::IpoIb),
        _ => Err("must be udp (0x111) or ipoib (0x2)".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_of_parses_names_and_numbers() {
        for text in ["udp", "0x111", "273"] {
            assert_eq!(space_of(text), Ok(PortSpace::Udp), "{text}");
        }
        for text in ["ipoib", "2", "0x2"] {
            assert_eq!(space_of(text), Ok(PortSpace::IpoIb), "{text}");
        }
        assert!(space_of("0x106").is_err());
        assert!(space_of("tcp").is_err());
    }
}
