//! Datagrams for the runtime tokio.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{SocketAddr, ToSocketAddrs},
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use rustix::event::epoll;
use verbs::tokio::WatchedFd;

use super::{Watchable, Watched, settled};
use crate::{
    datagram::{Port, Received},
    socket::{Family, Socket},
    waiters::Interest,
    waiting::Patience,
};

/// A [socket for datagrams](Socket::datagram) that is used without blocking a thread, in the manner of
/// tokio's `UdpSocket`.
///
/// Any number of tasks can send and receive by the same socket, in an [`Arc`]. Dropping a future of it
/// loses no datagram that has come. Dropping the socket waits, as [`Socket::close`] does, until the
/// device has taken what was sent; that is a matter of microseconds.
///
/// ```no_run
/// # async fn f() -> std::io::Result<()> {
/// let server = rsocket::AsyncDatagram::bind("10.9.0.1:7174")?;
/// let client = rsocket::AsyncDatagram::bind("10.9.0.1:0")?;
/// client.connect(server.local_addr())?;
/// client.send(b"hello").await?;
/// let mut hello = [0; 100];
/// let (len, peer) = server.recv_from(&mut hello).await?;
/// assert_eq!(&hello[..len], b"hello");
/// server.send_to(b"welcome", peer).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncDatagram {
    socket: Socket,
    port: Arc<Port>,
    reading: Direction,
    writing: Direction,
    /// Readable when there is room in UDP's buffer, for what goes that way.
    udp: WatchedFd,
}

impl Watchable for Port {
    fn add_watcher(&self) -> io::Result<(usize, Arc<OwnedFd>)> {
        self.shared().add_watcher()
    }

    fn remove_watcher(&self, watcher: usize) {
        self.shared().remove_watcher(watcher);
    }
}

/// The tasks that wait for the same.
#[derive(Debug)]
struct Direction {
    interest: Interest,
    watched: Watched,
    tasks: AtomicUsize,
}

/// A task among those who wait.
struct Task<'d>(&'d Direction);

impl Drop for Task<'_> {
    fn drop(&mut self) {
        self.0.tasks.fetch_sub(1, SeqCst);
    }
}

impl Direction {
    fn new(port: &Arc<Port>, interest: Interest) -> io::Result<Self> {
        Ok(Self {
            interest,
            watched: Watched::new(port)?,
            tasks: AtomicUsize::new(0),
        })
    }

    /// Tries, and tries again when the descriptor says so.
    async fn until<T>(
        &self,
        port: &Port,
        mut attempt: impl FnMut(Patience) -> Option<io::Result<T>>,
    ) -> io::Result<T> {
        self.tasks.fetch_add(1, SeqCst);
        let _task = Task(self);
        let Watched { watcher, fd } = &self.watched;
        let watcher = watcher.index;
        let result = fd.readable(|| attempt(Patience::Watch(watcher))).await?;
        // Who has succeeded watches no more, and the others look whether there is something for them.
        if self.tasks.load(SeqCst) > 1 {
            port.shared().pass_on(watcher, self.interest);
        }
        result
    }
}

impl AsyncDatagram {
    /// A socket with an address of this host. Port 0 takes a free port. Must be called in a runtime.
    ///
    /// Of the addresses that a name has, the first that can be had is taken.
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

    /// Takes over a socket, which does not block from now on. Must be called in a runtime.
    ///
    /// # Errors
    /// - `InvalidInput`: it is not [for datagrams](Socket::datagram), or has been closed.
    /// - The runtime cannot watch its descriptors.
    pub fn new(socket: Socket) -> io::Result<Self> {
        let port = socket.port().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "the socket is not for datagrams",
            )
        })?;
        // Watched for as long as the socket is there, whatever becomes of this descriptor.
        let room = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&room, socket.udp_socket()?, data, epoll::EventFlags::OUT)?;
        socket.set_nonblocking(true);
        Ok(Self {
            reading: Direction::new(&port, Interest::READ)?,
            writing: Direction::new(&port, Interest::WRITE)?,
            udp: WatchedFd::new(room)?,
            port,
            socket,
        })
    }

    /// The socket, for what needs no waiting.
    pub fn get_ref(&self) -> &Socket {
        &self.socket
    }

    /// The socket as it was; it still does not block.
    pub fn into_inner(self) -> Socket {
        self.socket
    }

    /// The address it is bound to.
    pub fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    /// The peer that it is [connected](Self::connect) with.
    ///
    /// # Errors
    /// - `NotConnected`: there is none.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// Chooses the peer that datagrams go to, and the only one that they are received from. Sends
    /// nothing, and waits for nothing.
    ///
    /// # Errors
    /// As for [`Socket::connect`].
    pub fn connect(&self, peer: SocketAddr) -> io::Result<()> {
        self.socket.connect(peer)
    }

    /// Sends one datagram to the peer that the socket is [connected](Self::connect) with, as soon as
    /// there is room. Returns its length. If the future is dropped, it has been sent or not.
    ///
    /// # Errors
    /// As for [`Socket::send_to`], but not `WouldBlock`.
    pub async fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.send_pieces(&[IoSlice::new(bytes)], None).await
    }

    /// Sends one datagram to an address, as [`send`](Self::send) does.
    ///
    /// # Errors
    /// As for [`Socket::send_to`], but not `WouldBlock`.
    pub async fn send_to(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.send_pieces(&[IoSlice::new(bytes)], Some(to)).await
    }

    async fn send_pieces(
        &self,
        pieces: &[IoSlice<'_>],
        to: Option<SocketAddr>,
    ) -> io::Result<usize> {
        loop {
            let sent = self.writing.until(&self.port, |patience| {
                match self.port.send(pieces, to, patience) {
                    // There is no room in UDP's buffer. That is the system's word, not ours.
                    Err(err) if is_full(&err) => Some(Err(err)),
                    result => settled(result),
                }
            });
            match sent.await {
                Err(err) if is_full(&err) => {
                    let mut waited = false;
                    let look = || std::mem::replace(&mut waited, true).then_some(());
                    self.udp.readable(look).await?;
                }
                result => return result,
            }
        }
    }

    /// Receives one datagram, as many of its bytes as there is room for; returns how many. 0 as well
    /// when reading was [ended](Socket::shutdown).
    ///
    /// # Errors
    /// As for [`Socket::recv_msg`], but not `WouldBlock`.
    pub async fn recv(&self, place: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv_msg(place).await?.len)
    }

    /// Receives one datagram, as many of its bytes as there is room for; returns how many, and who has
    /// sent it.
    ///
    /// # Errors
    /// - `UnexpectedEof`: reading was [ended](Socket::shutdown), and everything has been received.
    /// - As for [`Socket::recv_msg`], but not `WouldBlock`.
    pub async fn recv_from(&self, place: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let Received { len, source, .. } = self.recv_msg(place).await?;
        let source = source.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok((len, source))
    }

    /// Receives one datagram, and tells all that is known of it.
    ///
    /// # Errors
    /// As for [`Socket::recv_msg`], but not `WouldBlock`.
    pub async fn recv_msg(&self, place: &mut [u8]) -> io::Result<Received> {
        self.receive(place, false).await
    }

    /// The same without taking it: the next call receives it again.
    ///
    /// # Errors
    /// As for [`Socket::recv_msg`], but not `WouldBlock`.
    pub async fn peek_msg(&self, place: &mut [u8]) -> io::Result<Received> {
        self.receive(place, true).await
    }

    async fn receive(&self, place: &mut [u8], peek: bool) -> io::Result<Received> {
        let received = self.reading.until(&self.port, |patience| {
            settled(
                self.port
                    .recv(&mut [IoSliceMut::new(place)], peek, patience),
            )
        });
        received.await
    }
}

/// Whether it is the system that has no room.
fn is_full(err: &io::Error) -> bool {
    err.kind() == io::ErrorKind::WouldBlock && err.raw_os_error().is_some()
}
