//! The command line: the options of the C program, by the same letters.

use clap::Parser;

use super::message::{CONTROL, Message};
use crate::rstream::test_option::TestOption;

/// Measure datagrams: round trips, and one direction
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Options {
    /// Send to the server at this address; without an address, run the server
    #[arg(short = 's', value_name = "ADDRESS")]
    pub server: Option<String>,
    /// Receive datagrams at this address
    #[arg(short = 'b', value_name = "ADDRESS", default_value = "0.0.0.0")]
    pub bind: String,
    /// Size of the send buffer and of the receive buffer, in bytes [default: 1 MiB]
    #[arg(short = 'B', value_name = "BYTES")]
    buffer: Option<u32>,
    /// Number of transfers; measures only this configuration
    #[arg(short = 'C', value_name = "COUNT")]
    transfers: Option<u32>,
    /// Bytes of a transfer; measures only this configuration
    #[arg(short = 'S', value_name = "BYTES", value_parser = size)]
    size: Option<usize>,
    /// The port
    #[arg(short = 'p', value_name = "PORT", default_value_t = 7174)]
    pub port: u16,
    /// s|sockets: plain UDP; a|async: wait for readiness; b|blocking: blocking calls; n|nonblocking: repeated
    /// non-blocking calls (default); e|echo: the server sends all data back
    #[arg(short = 'T', value_name = "OPTION", value_parser = test_option)]
    test: Vec<TestOption>,
}

impl Options {
    /// Whether `-T` includes this option.
    pub fn has(&self, option: TestOption) -> bool {
        self.test.contains(&option)
    }

    /// Whether calls block; the last option takes precedence.
    pub fn is_blocking(&self) -> bool {
        TestOption::are_blocking(&self.test)
    }

    /// Twice the given size, as for every socket.
    pub fn buffer(&self) -> u32 {
        self.buffer.unwrap_or(1 << 19).saturating_mul(2)
    }

    /// The single configuration to measure, if given: number and size of transfers.
    pub fn custom(&self) -> Option<(u32, usize)> {
        if self.transfers.is_none() && self.size.is_none() {
            return None;
        }
        Some((self.transfers.unwrap_or(1000), self.size.unwrap_or(1000)))
    }
}

fn size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(bytes) if (CONTROL..=Message::MAX_LEN).contains(&bytes) => Ok(bytes),
        _ => Err(format!(
            "a number of {CONTROL} to {} is wanted",
            Message::MAX_LEN
        )),
    }
}

fn test_option(text: &str) -> Result<TestOption, String> {
    match TestOption::read(text) {
        Some(TestOption::Resolve | TestOption::Verify) | None => {
            Err("one of s, a, b, n, e".to_owned())
        }
        Some(option) => Ok(option),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_match_c() {
        let parse = |line: &str| Options::try_parse_from(line.split(' '));
        let options = parse("udpong -s host -S 512 -T b -T echo -B 4096").unwrap();
        assert_eq!(options.custom(), Some((1000, 512)));
        assert_eq!(options.buffer(), 8192);
        assert!(options.is_blocking() && options.has(TestOption::Echo));
        assert!(!options.has(TestOption::Sockets));
        let options = parse("udpong").unwrap();
        assert_eq!((options.custom(), options.port), (None, 7174));
        assert!(!options.is_blocking());
        for wrong in ["-S 15", "-S 2057", "-T x", "-T v", "-p 70000"] {
            assert!(parse(&format!("udpong {wrong}")).is_err(), "{wrong}");
        }
    }
}
