//! Events of a run, as passed to the caller's callback.

use std::fmt;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Error, Result, bail};

/// Name of a guest: `a`, `b`, and so on.
///
/// ```
/// use soft_roce::Host;
///
/// let c: Host = "c".parse().unwrap();
/// assert_eq!(c, Host::at(2).unwrap());
/// assert_eq!(c.address(), "10.9.0.3");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host(u8);

impl Host {
    /// The first, or only, guest.
    pub const A: Self = Self(0);
    /// The second guest.
    pub const B: Self = Self(1);

    /// Maximum number of guests of a run: one for each letter.
    pub const MAX: usize = 26;

    /// The guest with this index, from 0; none from [`Host::MAX`].
    pub fn at(index: usize) -> Option<Self> {
        let index = u8::try_from(index).ok()?;
        (usize::from(index) < Self::MAX).then_some(Self(index))
    }

    /// The index, from 0.
    pub fn index(self) -> usize {
        self.0.into()
    }

    /// The guest's IPv4 address; commands have it in the variable of the upper-case name: `$A`.
    pub fn address(self) -> String {
        format!("10.9.0.{}", self.number())
    }

    /// The guest's IPv6 address; commands have it in the variable of the upper-case name and a 6: `$A6`.
    pub fn address6(self) -> String {
        format!("fd09::{:x}", self.number())
    }

    /// The guest's Ethernet address.
    pub(crate) fn mac(self) -> String {
        format!("52:54:00:09:00:{:02x}", self.number())
    }

    /// Variables with the addresses, for commands.
    pub(crate) fn variables(self) -> [(String, String); 2] {
        let name = self.to_string().to_uppercase();
        [
            (name.clone(), self.address()),
            (format!("{name}6"), self.address6()),
        ]
    }

    fn number(self) -> u8 {
        self.0 + 1
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", char::from(b'a' + self.0))
    }
}

impl FromStr for Host {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.as_bytes() {
            [letter @ b'a'..=b'z'] => Ok(Self(letter - b'a')),
            _ => bail!("`{text}` is no host: hosts are a, b, c and so on"),
        }
    }
}

/// Output stream of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// An event of a run: time, guest and kind.
#[derive(Clone, Debug)]
pub struct Event {
    /// Time of the event.
    pub at: Instant,
    /// The guest.
    pub host: Host,
    /// Kind, with the data of the event.
    pub kind: EventKind,
}

/// Kind of an [`Event`].
#[derive(Clone, Debug)]
pub enum EventKind {
    /// The guest is up; the commands start when all guests are.
    Up,
    /// Output of the command: one line in line mode, otherwise a chunk.
    Output(Stream, Vec<u8>),
    /// Exit code of the command.
    Ended(i32),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_each_host_reads_back() {
        for index in 0..Host::MAX {
            let host = Host::at(index).unwrap();
            assert_eq!(host.to_string().parse::<Host>().unwrap(), host);
            assert_eq!(host.index(), index);
        }
        assert_eq!(Host::at(Host::MAX), None);
        for name in ["", "A", "ab", "1", "{"] {
            assert!(name.parse::<Host>().is_err(), "{name}");
        }
    }

    #[test]
    fn last_host_has_addresses_of_its_own() {
        let last = Host::at(Host::MAX - 1).unwrap();
        assert_eq!(last.mac(), "52:54:00:09:00:1a");
        assert_eq!(
            last.variables(),
            [("Z", "10.9.0.26"), ("Z6", "fd09::1a")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }
}
