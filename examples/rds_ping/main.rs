//! `rds-ping` of rds-tools, with its options: asks a host for signs of life over RDS.
//!
//! ```sh
//! cargo run -p examples --bin rds-ping -- -c 5 10.9.0.2
//! ```
//!
//! The answers come from the host itself, a Linux kernel with `rds_rdma` or any program that uses
//! this crate. They carry nothing by which they could be told apart, so questions are asked from
//! several ports by turns, and from none that still waits for an answer.
#![expect(clippy::print_stdout, reason = "this is what the program is for")]

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

/// Ask a host for signs of life over RDS
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// End after so many questions
    #[arg(short = 'c', value_name = "COUNT")]
    count: Option<u64>,
    /// Time between two questions, in seconds, `ms` or `us`
    #[arg(short = 'i', value_name = "TIME", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// The address to ask from [default: the one that packets there come from]
    #[arg(short = 'I', value_name = "ADDRESS")]
    source: Option<IpAddr>,
    /// Type of service
    #[arg(short = 'Q', value_name = "TOS", default_value_t = 0)]
    tos: u8,
    /// Let `rds-info` ask this program there
    #[arg(long, value_name = "SOCKET")]
    info_socket: Option<PathBuf>,
    /// Whom to ask
    destination: String,
}

/// `0.5`, `20ms`, `20msec`, `100us` or `100usec`.
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
    let number: f64 = number.parse().map_err(|_| "this is no time".to_owned())?;
    Duration::try_from_secs_f64(number * factor).map_err(|err| err.to_string())
}

/// Ports that are asked from.
const SOCKETS: usize = 8;

/// A port, and what was asked from there.
struct Asker {
    socket: Socket,
    number: u64,
    asked: Instant,
    waits: bool,
    answers: u32,
}

impl Asker {
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
            asked: Instant::now(),
            waits: false,
            answers: 0,
        })
    }

    /// Takes what has come; how many answers.
    fn hear(&mut self, host: IpAddr) -> Result<u64> {
        self.socket.readiness(Interest::Read)?;
        let mut heard = 0;
        loop {
            let from = match self.socket.recv_from(&mut []) {
                Ok((_, from)) => from,
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok(heard),
                Err(err) => return Err(err).context("receiving"),
            };
            let mut line = format!(
                " {:3}: {} usec",
                self.number,
                self.asked.elapsed().as_micros()
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
            heard += 1;
        }
    }
}

fn ping(options: &Options) -> Result<bool> {
    let mut found = (options.destination.as_str(), 0)
        .to_socket_addrs()
        .with_context(|| format!("looking up {}", options.destination))?;
    let host = found.next().context("there is no such address")?.ip();
    let source = options.source.map_or_else(|| source_for(host), Ok);
    let source = source.with_context(|| format!("there is no way to {host}"))?;
    let mut askers = (0..SOCKETS)
        .map(|_| Asker::new(source, options.tos))
        .collect::<io::Result<Vec<_>>>()
        .with_context(|| format!("a socket at {source}"))?;
    let path = options.info_socket.as_deref();
    let _asked = path
        .map(|path| InfoSocket::serve(path, askers[0].socket.engine()))
        .transpose()
        .context("the socket for rds-info")?;
    let (mut sent, mut heard, mut turn) = (0, 0, 0);
    let mut next = Instant::now();
    while options.count.is_none_or(|count| heard < count) {
        let now = Instant::now();
        if now >= next {
            if options.count.is_some_and(|count| sent >= count) {
                break;
            }
            next = now + options.interval;
            let asker = &mut askers[turn];
            if !asker.waits {
                turn = (turn + 1) % SOCKETS;
                sent += 1;
                (asker.number, asker.asked, asker.answers) = (sent, now, 0);
                match asker.socket.send_to(&[], SocketAddr::new(host, 0)) {
                    Ok(_) => asker.waits = true,
                    Err(err) => println!(" {sent:3}: ERROR: {err}"),
                }
            }
        }
        let wait = next.saturating_duration_since(Instant::now());
        let mut fds: Vec<PollFd<'_>> = askers
            .iter()
            .map(|asker| PollFd::from_borrowed_fd(asker.socket.as_fd(), PollFlags::IN))
            .collect();
        match poll(&mut fds, Some(&wait.try_into()?)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(err) => return Err(err).context("waiting"),
        }
        for asker in &mut askers {
            heard += asker.hear(host)?;
        }
    }
    Ok(heard > 0)
}

fn main() -> Result<ExitCode> {
    let heard = ping(&Options::parse())?;
    Ok(if heard {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_has_units() {
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
