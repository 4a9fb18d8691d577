//! One datagram socket, over RDMA or UDP, and the modes of waiting.

use std::{
    io::{self, IoSliceMut},
    net::{SocketAddr, ToSocketAddrs, UdpSocket},
    os::fd::AsFd,
    time::Duration,
};

use anyhow::{Context, Result};
use rsocket::{Family, PollEntry, PollEvents, RecvFlags, Socket, poll};

use super::options::Options;
use crate::rstream::test_option::TestOption;

#[derive(Debug)]
enum Transport {
    Rsocket(Box<Socket>),
    Udp(UdpSocket),
}

/// A datagram socket.
#[derive(Debug)]
pub struct Endpoint {
    transport: Transport,
    /// Whether calls wait for readiness by `poll`.
    polls: bool,
}

fn resolve(host: &str, port: u16) -> Result<SocketAddr> {
    let found = (host, port).to_socket_addrs();
    let found = found.with_context(|| format!("cannot find {host}"))?.next();
    found.with_context(|| format!("{host} has no address"))
}

impl Endpoint {
    fn new(options: &Options, like: SocketAddr, bind: SocketAddr) -> Result<Self> {
        let nonblocking = !options.is_blocking();
        let transport = if options.has(TestOption::Sockets) {
            let socket = UdpSocket::bind(bind)?;
            socket.set_nonblocking(nonblocking)?;
            Transport::Udp(socket)
        } else {
            let family = if like.is_ipv4() {
                Family::V4
            } else {
                Family::V6
            };
            let socket = Socket::datagram(family)?;
            socket.set_send_buffer(options.buffer())?;
            socket.set_receive_buffer(options.buffer())?;
            socket.set_nonblocking(nonblocking);
            if bind.port() != 0 {
                socket.bind(bind)?;
            }
            Transport::Rsocket(Box::new(socket))
        };
        Ok(Self {
            transport,
            polls: options.has(TestOption::Async),
        })
    }

    /// Creates the server's socket.
    ///
    /// # Errors
    /// The address is in use, or no device was found.
    pub fn serve(options: &Options) -> Result<Self> {
        let addr = resolve(&options.bind, options.port)?;
        Self::new(options, addr, addr).with_context(|| format!("cannot take datagrams at {addr}"))
    }

    /// Creates the client's socket.
    ///
    /// # Errors
    /// No route to the server.
    pub fn connect(options: &Options, server: &str) -> Result<Self> {
        let server = resolve(server, options.port)?;
        let any = match server {
            SocketAddr::V4(_) => "0.0.0.0:0",
            SocketAddr::V6(_) => "[::]:0",
        };
        let endpoint = Self::new(options, server, any.parse()?)?;
        match &endpoint.transport {
            Transport::Rsocket(socket) => socket.connect(server),
            Transport::Udp(socket) => socket.connect(server),
        }
        .with_context(|| format!("cannot connect to {server}"))?;
        Ok(endpoint)
    }

    /// Waits for readiness; false on a timeout.
    ///
    /// # Errors
    /// Waiting has failed.
    pub fn wait(&self, events: PollEvents, timeout: Option<Duration>) -> io::Result<bool> {
        let entry = match &self.transport {
            Transport::Rsocket(socket) => PollEntry::socket(socket, events),
            Transport::Udp(socket) => PollEntry::fd(socket.as_fd(), events),
        };
        Ok(poll(&mut [entry], timeout)? > 0)
    }

    /// Repeats a non-blocking call until success.
    fn until<T>(
        &self,
        events: PollEvents,
        mut call: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            if self.polls {
                self.wait(events, None)?;
            }
            match call() {
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// Sends a datagram to an address, or to the server.
    ///
    /// # Errors
    /// The datagram is too long, or the destination is unreachable.
    pub fn send(&self, bytes: &[u8], to: Option<SocketAddr>) -> io::Result<()> {
        self.until(PollEvents::OUT, || match (&self.transport, to) {
            (Transport::Rsocket(socket), Some(to)) => socket.send_to(bytes, to),
            (Transport::Rsocket(socket), None) => socket.send(bytes),
            (Transport::Udp(socket), Some(to)) => socket.send_to(bytes, to),
            (Transport::Udp(socket), None) => socket.send(bytes),
        })
        .map(drop)
    }

    /// Receives the next datagram.
    ///
    /// # Errors
    /// The socket has failed.
    pub fn receive(&self, space: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.until(PollEvents::IN, || match &self.transport {
            Transport::Rsocket(socket) => socket.recv_from(space),
            Transport::Udp(socket) => socket.recv_from(space),
        })
    }

    /// Receives the next datagram, if one arrives before the timeout.
    ///
    /// # Errors
    /// The server is unreachable.
    pub fn receive_in_time(
        &self,
        space: &mut [u8],
        timeout: Duration,
    ) -> io::Result<Option<usize>> {
        if !self.wait(PollEvents::IN, Some(timeout))? {
            return Ok(None);
        }
        let received = match &self.transport {
            Transport::Rsocket(socket) => {
                let spaces = &mut [IoSliceMut::new(space)];
                let received = socket.recv_msg(spaces, RecvFlags::DONT_WAIT);
                received.map(|meta| meta.len)
            }
            // Ready.
            Transport::Udp(socket) => socket.recv(space),
        };
        match received {
            Ok(len) => Ok(Some(len)),
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(err) => Err(err),
        }
    }
}
