//! The command line: the options of the C program, by the same letters.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    time::Duration,
};

use anyhow::Context;
use clap::Parser;

use super::test_option::TestOption;

/// Measure a stream: latency, and then bandwidth
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Options {
    /// Connect to the server at this address; without an address, run the server
    #[arg(short = 's', value_name = "ADDRESS")]
    pub server: Option<String>,
    /// Listen at this address, or connect from it
    #[arg(short = 'b', value_name = "ADDRESS")]
    bind: Option<String>,
    /// Format of addresses
    #[arg(short = 'f', value_name = "FORMAT", default_value = "name", value_parser = ["name", "ip", "ipv6"])]
    format: String,
    /// Size of the send buffer and of the receive buffer, in bytes [default: 1 MiB]
    #[arg(short = 'B', value_name = "BYTES")]
    buffer: Option<u32>,
    /// Maximum number of bytes sent inline, when measuring latency
    #[arg(short = 'i', value_name = "BYTES", default_value_t = 64)]
    pub inline: u32,
    /// Number of rounds; measures only this configuration
    #[arg(short = 'I', value_name = "COUNT")]
    iterations: Option<u64>,
    /// Number of transfers in each direction per round; measures only this configuration
    #[arg(short = 'C', value_name = "COUNT")]
    transfers: Option<u64>,
    /// Bytes of a transfer, to measure only this size; or `all`, for more sizes
    #[arg(short = 'S', value_name = "BYTES|all", value_parser = size)]
    size: Option<Size>,
    /// The port
    #[arg(short = 'p', value_name = "PORT", default_value_t = 7471)]
    port: u16,
    /// Interval between keepalive probes, in seconds
    #[arg(short = 'k', value_name = "SECONDS")]
    keep_alive: Option<u64>,
    /// s|sockets: TCP; a|async: wait for readiness; b|blocking: blocking calls; n|nonblocking: repeated
    /// non-blocking calls (default); v|verify: check the data; r|resolve: same as the default
    #[arg(short = 'T', value_name = "OPTION", value_parser = test_option)]
    test: Vec<TestOption>,
}

#[derive(Clone, Copy, Debug)]
enum Size {
    All,
    Bytes(usize),
}

/// Default number of rounds and transfers.
const DEFAULT_COUNT: u64 = 1000;
const DEFAULT_SIZE: usize = 1000;

impl Options {
    /// Whether `-T` includes this option.
    pub fn has(&self, option: TestOption) -> bool {
        self.test.contains(&option)
    }

    /// Whether calls block; the last option takes precedence.
    pub fn is_blocking(&self) -> bool {
        TestOption::are_blocking(&self.test)
    }

    /// The server's address.
    pub fn server(&self) -> Option<(&str, u16)> {
        Some((self.server.as_deref()?, self.port))
    }

    /// The address to listen at.
    pub fn bind(&self) -> (&str, u16) {
        let any = if self.format == "ipv6" {
            "::"
        } else {
            "0.0.0.0"
        };
        (self.bind.as_deref().unwrap_or(any), self.port)
    }

    /// The address to connect from, if one is given.
    ///
    /// # Errors
    /// Resolving the address failed.
    pub fn source(&self) -> anyhow::Result<Option<SocketAddr>> {
        let Some(host) = self.bind.as_deref() else {
            return Ok(None);
        };
        let addrs = (host, 0).to_socket_addrs();
        let addrs = addrs.with_context(|| format!("cannot connect from {host}"));
        Ok(addrs?.next())
    }

    /// Twice the given size, as for every socket.
    pub fn buffer(&self) -> u32 {
        self.buffer.unwrap_or(1 << 19).saturating_mul(2)
    }

    /// Interval between keepalive probes.
    pub fn keep_alive(&self) -> Option<Duration> {
        self.keep_alive.map(Duration::from_secs)
    }

    /// The single configuration to measure, if given: rounds, transfers and size.
    pub fn custom(&self) -> Option<(u64, u64, usize)> {
        let size = match self.size {
            Some(Size::Bytes(size)) => Some(size),
            Some(Size::All) | None => None,
        };
        if self.iterations.is_none() && self.transfers.is_none() && size.is_none() {
            return None;
        }
        Some((
            self.iterations.unwrap_or(1),
            self.transfers.unwrap_or(DEFAULT_COUNT),
            size.unwrap_or(DEFAULT_SIZE),
        ))
    }

    /// Whether to measure more sizes than by default.
    pub fn all_sizes(&self) -> bool {
        matches!(self.size, Some(Size::All))
    }
}

fn size(text: &str) -> Result<Size, String> {
    if text.eq_ignore_ascii_case("all") {
        return Ok(Size::All);
    }
    match text.parse() {
        Ok(bytes) if bytes > 0 => Ok(Size::Bytes(bytes)),
        _ => Err("neither a number of bytes nor `all`".to_owned()),
    }
}

fn test_option(text: &str) -> Result<TestOption, String> {
    if matches!(text.to_ascii_lowercase().as_str(), "f" | "fork") {
        return Err("a server that forks is not supported".to_owned());
    }
    match TestOption::read(text) {
        Some(TestOption::Echo) | None => Err("one of s, a, b, n, r, v".to_owned()),
        Some(option) => Ok(option),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocking_mode_is_set_by_the_last_option() {
        let parse = |line: &str| Options::try_parse_from(line.split(' '));
        let options = parse("rstream -T n -T V -T blocking -T socket").unwrap();
        assert!(options.is_blocking() && options.has(TestOption::Verify));
        assert!(options.has(TestOption::Sockets) && !options.has(TestOption::Async));
        assert!(!parse("rstream -T b -T n").unwrap().is_blocking());
        assert!(!parse("rstream").unwrap().is_blocking());
        for (wrong, why) in [
            ("f", "forks is not supported"),
            ("e", "one of s"),
            ("x", "one of s"),
        ] {
            let err = parse(&format!("rstream -T {wrong}")).unwrap_err();
            assert!(err.to_string().contains(why), "{err}");
        }
    }
}
