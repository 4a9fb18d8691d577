//! Datagram sockets for tokio.

use std::{
    future::poll_fn,
    io::{self, IoSlice, IoSliceMut},
    net::{SocketAddr, ToSocketAddrs},
    sync::Arc,
};

use rustix::event::epoll;
use verbs::tokio::WatchedFd;

use super::reactor::{Reactor, Task};
use crate::{
    datagram::{DatagramSocket, RecvMeta},
    proto::datagram::DatagramStats,
    socket::{Family, RecvFlags, SendOptions, Socket},
    waiting::WaitMode,
};

/// A [datagram socket](Socket::datagram) for asynchronous tasks, like tokio's `UdpSocket`.
///
/// Any number of tasks can send and receive concurrently through an [`Arc`]. Dropping a future loses no
/// received datagram. Dropping the socket blocks until the device has sent all datagrams, like
/// [`Socket::close`], usually for microseconds.
///
/// ```no_run
/// # async fn f() -> std::io::Result<()> {
/// let server = rsocket::tokio::Datagram::bind("10.9.0.1:7174")?;
/// let client = rsocket::tokio::Datagram::bind("10.9.0.1:0")?;
/// client.connect(server.local_addr()?)?;
/// client.send(b"hello").await?;
/// let mut hello = [0; 100];
/// let (len, peer) = server.recv_from(&mut hello).await?;
/// assert_eq!(&hello[..len], b"hello");
/// server.send_to(b"welcome", peer).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Datagram {
    socket: Socket,
    datagram: Arc<DatagramSocket>,
    reactor: Arc<Reactor<DatagramSocket>>,
    /// Readable when UDP's send buffer has room, for datagrams sent over UDP.
    udp: WatchedFd,
}

impl Datagram {
    /// Creates a socket bound to a local address. Port 0 selects a free port. Must be called within a
    /// runtime.
    ///
    /// Of the addresses of a host name, the first available is used.
    ///
    /// # Errors
    /// As for [`Socket::datagram`] and [`Socket::bind`].
    pub fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        let mut last = None;
        for addr in addr.to_socket_addrs()? {
            let family = match addr {
                SocketAddr::V4(_) => Family::V4,
                SocketAddr::V6(_) => Family::V6,
            };
            let socket = Socket::datagram(family)?;
            match socket.bind(addr) {
                Ok(()) => return Self::new(socket),
                Err(err) => last = Some(err),
            }
        }
        Err(last.unwrap_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "no address to bind to")
        }))
    }

    /// Wraps a socket and makes the socket nonblocking. Must be called within a runtime.
    ///
    /// # Errors
    /// - `InvalidInput`: the socket is not a [datagram socket](Socket::datagram), or has been closed.
    /// - The runtime cannot watch its descriptors.
    pub fn new(socket: Socket) -> io::Result<Self> {
        let datagram = socket.datagram_socket().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "the socket is not for datagrams",
            )
        })?;
        // A member of this set for the life of the UDP socket; closing the duplicate has no effect.
        let writable = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(
            &writable,
            socket.udp_socket()?,
            data,
            epoll::EventFlags::OUT,
        )?;
        socket.set_nonblocking(true);
        Ok(Self {
            reactor: Reactor::new(&datagram)?,
            udp: WatchedFd::new(writable)?,
            datagram,
            socket,
        })
    }

    /// Returns the counters of the socket. Does not block, and makes no system call.
    pub fn stats(&self) -> DatagramStats {
        self.datagram.stats()
    }

    /// Returns the socket, for calls that do not block.
    pub fn get_ref(&self) -> &Socket {
        &self.socket
    }

    /// Unwraps the socket, still nonblocking.
    pub fn into_inner(self) -> Socket {
        self.socket
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// As for [`Socket::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns the [connected](Self::connect) peer.
    ///
    /// # Errors
    /// - `NotConnected`: the socket has no peer.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// Selects the peer for sending and the only source for receiving. Sends nothing and does not block.
    ///
    /// # Errors
    /// As for [`Socket::connect`].
    pub fn connect(&self, peer: SocketAddr) -> io::Result<()> {
        self.socket.connect(peer)
    }

    /// Sends one datagram to the [connected](Self::connect) peer as soon as there is room. Returns its
    /// length. After dropping the future, the datagram may or may not have been sent.
    ///
    /// # Errors
    /// As for [`Socket::send_msg`], but not `WouldBlock`.
    pub async fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.send_msg(&[IoSlice::new(bytes)], &SendOptions::new())
            .await
    }

    /// Sends one datagram to an address, like [`send`](Self::send).
    ///
    /// # Errors
    /// As for [`Socket::send_msg`], but not `WouldBlock`.
    pub async fn send_to(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.send_msg(&[IoSlice::new(bytes)], &SendOptions::new().to(to))
            .await
    }

    /// Sends the bytes of several buffers as one datagram, with options, like [`send`](Self::send). Fails with
    /// `WouldBlock` only with [`dont_wait`](SendOptions::dont_wait).
    ///
    /// # Errors
    /// As for [`Socket::send_msg`].
    pub async fn send_msg(&self, bufs: &[IoSlice<'_>], options: &SendOptions) -> io::Result<usize> {
        if options.dont_wait {
            return self.socket.send_msg(bufs, options);
        }
        loop {
            let sent = self.until(|mode| match self.datagram.send(bufs, options.to, mode) {
                // The kernel's error: UDP's send buffer is full.
                Err(err) if is_full(&err) => Ok(Err(err)),
                result => result.map(Ok),
            });
            match sent.await? {
                Err(err) if is_full(&err) => {
                    let mut waited = false;
                    let attempt_once = || std::mem::replace(&mut waited, true).then_some(());
                    self.udp.readable(attempt_once).await?;
                }
                result => return result,
            }
        }
    }

    /// Receives one datagram, truncated to the buffer, and returns its length; 0 also after a
    /// [shutdown](Socket::shutdown) of reading.
    ///
    /// # Errors
    /// As for [`Socket::recv_msg`], but not `WouldBlock`.
    pub async fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        let meta = self.receive(&mut [IoSliceMut::new(buf)], false).await?;
        Ok(meta.len)
    }

    /// Receives one datagram, truncated to the buffer, and returns its length and source.
    ///
    /// # Errors
    /// - `UnexpectedEof`: reading has been [shut down](Socket::shutdown), and all datagrams have been
    ///   received.
    /// - As for [`Socket::recv_msg`], but not `WouldBlock`.
    pub async fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let meta = self.receive(&mut [IoSliceMut::new(buf)], false).await?;
        meta.with_source()
    }

    /// Receives like [`recv`](Self::recv), and leaves the datagram for the next receive.
    ///
    /// # Errors
    /// As for [`Socket::recv_msg`], but not `WouldBlock`.
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        let meta = self.receive(&mut [IoSliceMut::new(buf)], true).await?;
        Ok(meta.len)
    }

    /// Receives like [`recv_from`](Self::recv_from), and leaves the datagram for the next receive.
    ///
    /// # Errors
    /// As for [`recv_from`](Self::recv_from).
    pub async fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let meta = self.receive(&mut [IoSliceMut::new(buf)], true).await?;
        meta.with_source()
    }

    /// Receives one datagram into several buffers, with its full length and source. Fails with `WouldBlock`
    /// only with [`DONT_WAIT`](RecvFlags::DONT_WAIT).
    ///
    /// # Errors
    /// As for [`Socket::recv_msg`].
    pub async fn recv_msg(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> io::Result<RecvMeta> {
        if flags.contains(RecvFlags::DONT_WAIT) {
            return self.socket.recv_msg(bufs, flags);
        }
        self.receive(bufs, flags.contains(RecvFlags::PEEK)).await
    }

    async fn receive(&self, bufs: &mut [IoSliceMut<'_>], peek: bool) -> io::Result<RecvMeta> {
        self.until(|mode| self.datagram.recv(bufs, peek, mode))
            .await
    }

    /// Retries an attempt until it does not block.
    async fn until<T>(
        &self,
        mut attempt: impl FnMut(WaitMode<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        let task = Task::new(&self.reactor);
        poll_fn(|cx| task.poll(cx, &mut attempt)).await
    }
}

/// Whether the kernel's UDP send buffer is full.
fn is_full(err: &io::Error) -> bool {
    err.kind() == io::ErrorKind::WouldBlock && err.raw_os_error().is_some()
}
