//! `rds-ping` of rds-tools, with its options: pings a host over RDS.
//!
//! ```sh
//! cargo run -p examples --bin rds-ping -- -c 5 10.9.0.2
//! ```
//!
//! The host itself answers: a Linux kernel with `rds_rdma`, or any program with this crate. Answers
//! carry no sequence number, so pings are sent from several ports in turn, and never from a port
//! with a ping in flight.
#![expect(
    clippy::print_stdout,
    reason = "the output is the purpose of the program"
)]

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    os::fd::AsFd,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::Parser;
use examples::rds_tool::{info_socket::InfoSocket, source::source_for};
use rds::{Engine, Interest, Socket};
use rustix::event::{PollFd, PollFlags, poll};

/// Ping a host over RDS
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Number of pings
    #[arg(short = 'c', value_name = "COUNT")]
    count: Option<u64>,
    /// Interval between pings, in seconds, `ms` or `us`
    #[arg(short = 'i', value_name = "TIME", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Pinger address [default: from the route to the host]
    #[arg(short = 'I', value_name = "ADDRESS")]
    source: Option<IpAddr>,
    /// Type of service
    #[arg(short = 'Q', value_name = "TOS", default_value_t = 0)]
    tos: u8,
    /// Socket for `rds-info`
    #[arg(long, value_name = "SOCKET")]
    info_socket: Option<PathBuf>,
    /// Host to ping
    destination: String,
}

/// Parses `0.5`, `20ms`, `20msec`, `100us` or `100usec`.
fn interval(text: &str) -> Result<Duration, String> {
    let units = [
        ("msec", 1e-3),
        ("ms", 1e-3),
        ("usec", 1e-6),
        ("us", 1e-6),
        ("", 1.0),
    ];
    let found = units
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
    let (number, factor) = found.unwrap_or((text, &1.0));
    let number: f64 = number
        .parse()
        .map_err(|_| "expected a time such as 0.5, 20ms or 100us".to_owned())?;
    Duration::try_from_secs_f64(number * factor).map_err(|err| err.to_string())
}

/// Number of source ports.
const SOCKETS: usize = 8;

/// A source port with the ping in flight.
struct Pinger {
    socket: Socket,
    number: u64,
    sent_at: Instant,
    waits: bool,
    answers: u32,
}

impl Pinger {
    fn new(source: IpAddr, tos: u8) -> io::Result<Self> {
        let socket = Engine::shared()?.socket()?;
        socket.bind_to((source, 0).into())?;
        socket.set_nonblocking(true);
        if tos != 0 {
            socket.set_tos(tos)?;
        }
        Ok(Self {
            socket,
            number: 0,
            sent_at: Instant::now(),
            waits: false,
            answers: 0,
        })
    }

    /// Receives all answers; returns their number.
    fn receive(&mut self, host: IpAddr) -> Result<u64> {
        self.socket.readiness(Interest::Read)?;
        let mut received = 0;
        loop {
            let from = match self.socket.recv_from(&mut []) {
                Ok((_, from)) => from,
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok(received),
                Err(err) => return Err(err).context("receiving"),
            };
            let mut line = format!(
                " {:3}: {} usec",
                self.number,
                self.sent_at.elapsed().as_micros()
            );
            if from.ip() != host {
                line += &format!(" ({})", from.ip());
            }
            if self.answers > 0 {
                line += " DUP!";
            }
            println!("{line}");
            self.answers += 1;
            self.waits = false;
            received += 1;
        }
    }
}

fn ping(options: &Options) -> Result<bool> {
    let mut found = (options.destination.as_str(), 0)
        .to_socket_addrs()
        .with_context(|| format!("looking up {}", options.destination))?;
    let host = found.next().context("the name has no address")?.ip();
    let source = options.source.map_or_else(|| source_for(host), Ok);
    let source = source.with_context(|| format!("no route to {host}"))?;
    let mut pingers = (0..SOCKETS)
        .map(|_| Pinger::new(source, options.tos))
        .collect::<io::Result<Vec<_>>>()
        .with_context(|| format!("a socket at {source}"))?;
    let path = options.info_socket.as_deref();
    let _asked = path
        .map(|path| InfoSocket::serve(path, pingers[0].socket.engine()))
        .transpose()
        .context("the socket for rds-info")?;
    let (mut sent, mut received, mut index) = (0, 0, 0);
    let mut next = Instant::now();
    while options.count.is_none_or(|count| received < count) {
        let now = Instant::now();
        if now >= next {
            if options.count.is_some_and(|count| sent >= count) {
                break;
            }
            next = now + options.interval;
            let pinger = &mut pingers[index];
            if !pinger.waits {
                index = (index + 1) % SOCKETS;
                sent += 1;
                (pinger.number, pinger.sent_at, pinger.answers) = (sent, now, 0);
                match pinger.socket.send_to(&[], SocketAddr::new(host, 0)) {
                    Ok(_) => pinger.waits = true,
                    Err(err) => println!(" {sent:3}: ERROR: {err}"),
                }
            }
        }
        let wait = next.saturating_duration_since(Instant::now());
        let mut fds: Vec<PollFd<'_>> = pingers
            .iter()
            .map(|pinger| PollFd::from_borrowed_fd(pinger.socket.as_fd(), PollFlags::IN))
            .collect();
        match poll(&mut fds, Some(&wait.try_into()?)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(err) => return Err(err).context("waiting"),
        }
        for pinger in &mut pingers {
            received += pinger.receive(host)?;
        }
    }
    Ok(received > 0)
}

fn main() -> Result<ExitCode> {
    examples::trace::print_selected();
    let received = ping(&Options::parse())?;
    Ok(if received {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_accepts_units() {
        let seconds = |text| interval(text).map(|interval| interval.as_secs_f64());
        assert_eq!(seconds("2"), Ok(2.0));
        assert_eq!(seconds("0.5"), Ok(0.5));
        assert_eq!(seconds("20ms"), Ok(0.02));
        assert_eq!(seconds("20msec"), Ok(0.02));
        assert_eq!(seconds("100us"), Ok(0.0001));
        assert_eq!(seconds("100usec"), Ok(0.0001));
        for bad in ["", "ms", "x", "-1", "1min"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
