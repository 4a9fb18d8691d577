//! What the user wants.

use clap::ValueEnum;
use cm::{AddrHints, PortSpace};

use crate::pingpong::options::number;

/// The choices of both sides.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server; `None`: this is one.
    pub server: Option<String>,
    /// The local address.
    pub bind: Option<String>,
    /// What the addresses are.
    pub format: Format,
    /// The port space of all identifiers.
    pub space: PortSpace,
    /// How many peers.
    pub connections: u32,
    /// How many messages each way.
    pub message_count: u32,
    /// Their size, in bytes.
    pub message_size: u32,
    /// The type of service.
    pub tos: Option<u8>,
}

/// What an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A name, or an address
    Name,
    /// An address
    Ip,
    /// An address
    Ipv6,
    /// InfiniBand's own address
    Gid,
}

impl Options {
    /// What to ask for names with.
    pub fn hints(&self) -> AddrHints {
        let hints = AddrHints::new().port_space(self.space);
        match self.format {
            Format::Name => hints,
            Format::Ip | Format::Ipv6 => hints.numeric_host(),
            Format::Gid => hints.infiniband(),
        }
    }
}

/// A port space for datagrams, by its name or its number.
///
/// # Errors
/// It is another one.
pub fn space_of(text: &str) -> Result<PortSpace, String> {
    match (text, number::<u32>(text)) {
        ("udp", _) | (_, Ok(0x111)) => Ok(PortSpace::Udp),
        ("ipoib", _) | (_, Ok(0x2)) => Ok(PortSpace::IpoIb),
        _ => Err("it is neither udp (0x111) nor ipoib (0x2)".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_spaces_have_names_and_numbers() {
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
