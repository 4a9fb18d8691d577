//! The TCP connection between both processes: addresses of queue pairs, and barriers.

use std::{
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};

use crate::{MARKER_PORT, Role};

/// Number and interval of attempts to connect to the passive side, which may start later.
const ATTEMPTS: u32 = 600;
const INTERVAL: Duration = Duration::from_millis(100);

pub(crate) struct Control {
    stream: BufReader<TcpStream>,
}

impl Control {
    /// Waits for the other process.
    pub(crate) fn new(role: Role, addr: SocketAddr) -> Result<Self> {
        let stream = match role {
            Role::Passive => TcpListener::bind(addr)?.accept()?.0,
            Role::Active => (0..ATTEMPTS)
                .find_map(|_| {
                    let stream = TcpStream::connect(addr).ok();
                    if stream.is_none() {
                        thread::sleep(INTERVAL);
                    }
                    stream
                })
                .context("no passive side")?,
        };
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Sends numbers to the other process, and waits for as many from there.
    pub(crate) fn swap<const N: usize>(&mut self, numbers: [u128; N]) -> Result<[u128; N]> {
        let line = numbers.map(|number| format!("{number:x}")).join(" ");
        writeln!(self.stream.get_mut(), "{line}")?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let numbers = line
            .split_whitespace()
            .map(|number| u128::from_str_radix(number, 16))
            .collect::<Result<Vec<_>, _>>()?;
        numbers
            .try_into()
            .map_err(|_| anyhow::anyhow!("the other process has ended, or sent `{line}`"))
    }

    /// Puts a text into the capture, as a datagram that no program receives.
    pub(crate) fn mark(&self, text: &str) -> Result<()> {
        let mut to = self.stream.get_ref().peer_addr()?;
        to.set_port(MARKER_PORT);
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.send_to(text.as_bytes(), to)?;
        Ok(())
    }

    /// Waits until the other process is here, too.
    pub(crate) fn barrier(&mut self) -> Result<()> {
        self.swap([0]).map(drop)
    }
}
