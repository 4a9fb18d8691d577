//! One connection, over RDMA or TCP, and the modes of waiting.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::fd::{AsFd, BorrowedFd},
};

use anyhow::{Context, Result};
use rsocket::{Listener, Stream};
use verbs::fd::wait_readable;

use super::{options::Options, plan::Goal, test_option::TestOption};

/// Source of connections: a listener, or the server's address.
#[derive(Debug)]
pub enum Source {
    /// A listener, over RDMA.
    Rsocket(Listener),
    /// A listener, over TCP.
    Tcp(TcpListener),
    /// A server to connect to.
    Peer,
}

#[derive(Debug)]
enum Transport {
    Rsocket(Stream),
    Tcp(TcpStream),
}

/// Mode of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    /// Blocking calls.
    Blocking,
    /// Repeated non-blocking calls.
    Spinning,
    /// Non-blocking calls after `poll`.
    Polling,
}

/// A connection to the peer.
#[derive(Debug)]
pub struct Connection {
    transport: Transport,
    waiting: Waiting,
}

fn rsocket_options(options: &Options, goal: Goal) -> rsocket::Options {
    let inline = match goal {
        Goal::Latency => options.inline,
        Goal::Bandwidth => 0,
        Goal::Custom => 64,
    };
    let chosen = rsocket::Options::new()
        .backlog(1)
        .send_buffer(options.buffer())
        .receive_buffer(options.buffer())
        .inline(inline)
        .iomap_size(1);
    match options.keep_alive() {
        Some(interval) => chosen.keep_alive(interval),
        None => chosen,
    }
}

impl Source {
    /// Creates the listener, on the server.
    ///
    /// # Errors
    /// Listening failed.
    pub fn new(options: &Options, goal: Goal) -> Result<Self> {
        if options.server.is_some() {
            return Ok(Self::Peer);
        }
        let (host, port) = options.bind();
        let context = || format!("cannot listen at {host}, port {port}");
        if options.has(TestOption::Sockets) {
            let listener = TcpListener::bind((host, port)).with_context(context)?;
            return Ok(Self::Tcp(listener));
        }
        let listener = rsocket_options(options, goal)
            .listen((host, port))
            .with_context(context)?;
        Ok(Self::Rsocket(listener))
    }

    /// Accepts or establishes the next connection.
    ///
    /// # Errors
    /// Connecting or accepting failed.
    pub fn connect(&self, options: &Options, goal: Goal) -> Result<Connection> {
        let transport = match self {
            Self::Rsocket(listener) => Transport::Rsocket(listener.accept()?.0),
            Self::Tcp(listener) => Transport::Tcp(listener.accept()?.0),
            Self::Peer => {
                let (host, port) = options.server().unwrap_or_default();
                let context = || format!("cannot connect to {host}, port {port}");
                if options.has(TestOption::Sockets) {
                    let stream = TcpStream::connect((host, port)).with_context(context)?;
                    Transport::Tcp(stream)
                } else {
                    let mut chosen = rsocket_options(options, goal);
                    if let Some(source) = options.source()? {
                        chosen = chosen.source(source);
                    }
                    let stream = chosen.connect((host, port)).with_context(context)?;
                    Transport::Rsocket(stream)
                }
            }
        };
        let waiting = match (options.is_blocking(), options.has(TestOption::Async)) {
            (true, _) => Waiting::Blocking,
            (false, true) => Waiting::Polling,
            (false, false) => Waiting::Spinning,
        };
        let nonblocking = waiting != Waiting::Blocking;
        match &transport {
            Transport::Rsocket(stream) => stream.set_nonblocking(nonblocking),
            Transport::Tcp(stream) => {
                stream.set_nonblocking(nonblocking)?;
                stream.set_nodelay(true)?;
            }
        }
        Ok(Connection { transport, waiting })
    }
}

impl Connection {
    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let mut remaining = bytes;
        while !remaining.is_empty() {
            let sent = match &mut self.transport {
                Transport::Rsocket(stream) => stream.write(remaining),
                Transport::Tcp(stream) => stream.write(remaining),
            };
            if let Some(sent) = self.attempted(sent).context("cannot send")? {
                remaining = &remaining[sent..];
            }
        }
        Ok(())
    }

    /// Fills `bytes`.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn receive(&mut self, bytes: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            let rest = &mut bytes[filled..];
            let received = match &mut self.transport {
                Transport::Rsocket(stream) => stream.read(rest),
                Transport::Tcp(stream) => stream.read(rest),
            };
            match self.attempted(received).context("cannot receive")? {
                Some(0) => anyhow::bail!("the peer has ended the connection"),
                Some(received) => filled += received,
                None => {}
            }
        }
        Ok(())
    }

    /// Result of a call; `None` to repeat the call after waiting.
    fn attempted(&self, result: io::Result<usize>) -> Result<Option<usize>> {
        match result {
            Ok(count) => Ok(Some(count)),
            Err(err) if err.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => {
                if self.waiting == Waiting::Polling
                    && let Transport::Rsocket(stream) = &self.transport
                {
                    wait_readable("poll", stream.as_fd(), None)?;
                }
                Ok(None)
            }
            Err(err) => Err(err.into()),
        }
    }

    /// Returns the RDMA stream, if any.
    pub fn stream(&self) -> Option<&Stream> {
        match &self.transport {
            Transport::Rsocket(stream) => Some(stream),
            Transport::Tcp(_) => None,
        }
    }

    /// Writes `bytes` to the peer's mapping at offset 0.
    ///
    /// # Errors
    /// The connection has ended, or the peer has mapped no memory there.
    pub fn write_mapped(&self, bytes: &[u8]) -> Result<()> {
        let stream = self.stream().context("TCP has no mapped memory")?;
        let mut done = 0;
        while done < bytes.len() {
            let written = stream.write_at(&bytes[done..], done as u64);
            match self.attempted(written).context("cannot write")? {
                Some(0) => anyhow::bail!("the peer has mapped no more than {done} bytes"),
                Some(written) => done += written,
                None => {}
            }
        }
        Ok(())
    }

    /// Shuts down both directions.
    ///
    /// # Errors
    /// The shutdown failed.
    pub fn shut_down(self) -> io::Result<()> {
        match self.transport {
            Transport::Rsocket(stream) => {
                // Blocking, so that drop waits until the peer has received all data.
                stream.set_nonblocking(false);
                stream.shutdown(Shutdown::Both)
            }
            Transport::Tcp(stream) => stream.shutdown(Shutdown::Both),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.transport {
            Transport::Rsocket(stream) => stream.as_fd(),
            Transport::Tcp(stream) => stream.as_fd(),
        }
    }
}
