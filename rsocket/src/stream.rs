//! Streams of bytes.

use std::{
    fmt,
    io::{self, IoSlice, IoSliceMut, Read, Write},
    net::{Shutdown, SocketAddr, ToSocketAddrs},
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{
    connection::Connection,
    engine::Engine,
    opening::{Opening, timed_out},
    options::Options,
    proto::stream::{Direction, Readiness, Settings},
    waiting::Patience,
};

/// A stream of bytes to a peer and back, in the manner of [`std::net::TcpStream`].
///
/// It can be used by several threads: reading and writing go on at the same time. A
/// [clone](Self::try_clone) is the same stream.
///
/// Dropping the last clone waits until the peer has got everything, at most as long as
/// [`Options::linger`] says. A [nonblocking](Self::set_nonblocking) stream waits in the background, as do
/// one with [`Options::linger_in_background`] and one that is dropped on a thread of a tokio runtime
/// (feature `tokio`): dropping these returns at once.
pub struct Stream {
    inner: Arc<Inner>,
}

/// A connection, and how calls on it wait. The connection ends with the last clone of the stream.
struct Inner {
    connection: Arc<Connection>,
    engine: Arc<Engine>,
    nonblocking: AtomicBool,
    read_timeout: Mutex<Option<Duration>>,
    write_timeout: Mutex<Option<Duration>>,
    linger: Mutex<Duration>,
    linger_in_background: AtomicBool,
}

impl Stream {
    /// Connects to an address, with the default [`Options`].
    ///
    /// # Errors
    /// As for [`Options::connect`].
    pub fn connect(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Options::new().connect(addr)
    }

    pub(crate) fn new(
        connection: Arc<Connection>,
        engine: &Arc<Engine>,
        options: &Options,
    ) -> Self {
        connection.set_limit(options.limit());
        if let Some(interval) = options.keep_alive {
            engine.keep_alive(&connection, interval);
        }
        Self {
            inner: Arc::new(Inner {
                connection,
                engine: Arc::clone(engine),
                nonblocking: AtomicBool::new(false),
                read_timeout: Mutex::default(),
                write_timeout: Mutex::default(),
                linger: Mutex::new(options.linger),
                linger_in_background: AtomicBool::new(options.linger_in_background),
            }),
        }
    }

    /// Another handle of the same stream, in the manner of [`std::net::TcpStream::try_clone`]. The
    /// time-outs and whether calls block are those of all clones. Does not block.
    ///
    /// ```no_run
    /// use std::io::{Read, Write};
    ///
    /// let mut reader = rsocket::Stream::connect("10.9.0.1:7471")?;
    /// let mut writer = reader.try_clone()?;
    /// std::thread::spawn(move || writer.write_all(b"hello"));
    /// let mut answer = String::new();
    /// reader.read_to_string(&mut answer)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// None at present.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            inner: Arc::clone(&self.inner),
        })
    }

    fn patience(&self, timeout: &Mutex<Option<Duration>>) -> Patience {
        if self.inner.nonblocking.load(Relaxed) {
            return Patience::Watch(0);
        }
        let timeout = timeout.lock().unwrap_or_else(PoisonError::into_inner);
        Patience::from_timeout(*timeout)
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.inner.connection
    }

    pub(crate) fn write_patience(&self) -> Patience {
        self.patience(&self.inner.write_timeout)
    }

    /// What can be done without waiting. When that changes, the [descriptor](AsFd::as_fd) becomes
    /// readable.
    ///
    /// # Errors
    /// The device has failed.
    pub fn readiness(&self) -> io::Result<Readiness> {
        self.connection().shared().readiness()
    }

    /// The sizes that the connection has.
    pub fn settings(&self) -> Settings {
        self.connection().settings()
    }

    /// Receives bytes without taking them: the next call receives them again, and what has come since.
    ///
    /// # Errors
    /// As for reading.
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        let patience = self.patience(&self.inner.read_timeout);
        self.connection()
            .recv(&mut [IoSliceMut::new(buf)], true, patience)
    }

    /// Ends one direction, or both. What has been written is still delivered.
    ///
    /// # Errors
    /// The device has failed.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.connection().shut_down(match how {
            Shutdown::Read => Direction::Read,
            Shutdown::Write => Direction::Write,
            Shutdown::Both => Direction::Both,
        })
    }

    /// The address of this side.
    pub fn local_addr(&self) -> SocketAddr {
        self.connection().local_addr()
    }

    /// The address of the peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.connection().peer_addr()
    }

    /// Whether reading and writing return at once, with `WouldBlock` when there is nothing to be
    /// done. The [descriptor](AsFd::as_fd) becomes readable when it is worth trying again, whether
    /// to read or to write.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.inner.nonblocking.store(nonblocking, Relaxed);
    }

    /// How long reading may wait before it fails with `WouldBlock`; for ever if not set.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) {
        *self
            .inner
            .read_timeout
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = timeout;
    }

    /// How long writing may wait before it fails with `WouldBlock`; for ever if not set.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) {
        *self
            .inner
            .write_timeout
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = timeout;
    }

    /// How long dropping it may wait, as [`Options::linger`].
    pub fn set_linger(&self, timeout: Duration) {
        *self
            .inner
            .linger
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = timeout;
    }

    /// Whether dropping it returns at once, as [`Options::linger_in_background`].
    pub fn set_linger_in_background(&self, in_background: bool) {
        self.inner
            .linger_in_background
            .store(in_background, Relaxed);
    }

    /// Asks the peer's device for a sign of life so often, as [`Options::keep_alive`]; `None` does
    /// not any more.
    pub fn set_keep_alive(&self, interval: Option<Duration>) {
        let interval = interval.unwrap_or_default();
        self.inner.engine.keep_alive(self.connection(), interval);
    }

    /// How long nothing of what is sent may be acknowledged, as [`Options::user_timeout`]; `None` is
    /// the default.
    pub fn set_user_timeout(&self, timeout: Option<Duration>) {
        let options = Options::new().user_timeout(timeout.unwrap_or_default());
        self.connection().set_limit(options.limit());
    }

    /// Why the connection has failed, if it has.
    pub fn take_error(&self) -> Option<io::Error> {
        self.connection().failure()
    }
}

impl Read for &Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(buf)])
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let patience = self.patience(&self.inner.read_timeout);
        self.connection().recv(bufs, false, patience)
    }
}

impl Write for &Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.connection().send(bufs, self.write_patience())
    }

    /// Nothing is held back, so there is nothing to be done.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(bufs)
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (&*self).write(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    /// Readable when a nonblocking call that would have blocked is worth another try, and until that call
    /// has been made again, or [`readiness`](Self::readiness) has been asked for.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection().as_fd()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("local", &self.local_addr())
            .field("peer", &self.peer_addr())
            .finish_non_exhaustive()
    }
}

/// Whether this is a thread of a runtime, where other tasks wait for it.
#[cfg(feature = "tokio")]
fn is_in_runtime() -> bool {
    tokio::runtime::Handle::try_current().is_ok()
}

#[cfg(not(feature = "tokio"))]
fn is_in_runtime() -> bool {
    false
}

impl Drop for Inner {
    fn drop(&mut self) {
        let linger = *self
            .linger
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if linger.is_zero() {
            return;
        }
        // What fails here has failed for good, and there is nobody left to tell.
        drop(self.connection.shut_down(Direction::Both));
        let patience = Patience::from_timeout(Some(linger));
        let in_background = self.nonblocking.load(Relaxed)
            || self.linger_in_background.load(Relaxed)
            || is_in_runtime();
        if in_background {
            let connection = Arc::clone(&self.connection);
            self.engine.linger(connection, patience.deadline());
        } else {
            while let Err(err) = self.connection.flush(patience) {
                if err.kind() != io::ErrorKind::Interrupted {
                    break;
                }
            }
        }
    }
}

impl Options {
    /// Connects to an address: to each that the name has, until one answers. Blocks.
    ///
    /// # Errors
    /// - `ConnectionRefused`: nobody listens there.
    /// - `TimedOut`: nobody answers.
    /// - `NetworkUnreachable`, `HostUnreachable`: there is no way there.
    /// - `NotFound`, `ENODEV`: there is no RDMA device, or none on the way there.
    /// - `Unsupported`: the peer has another version of the protocol.
    pub fn connect(&self, addr: impl ToSocketAddrs) -> io::Result<Stream> {
        let engine = Engine::get()?;
        let mut last = None;
        for addr in addr.to_socket_addrs()? {
            match self.connect_to(&engine, addr) {
                Ok(connection) => return Ok(Stream::new(connection, &engine, self)),
                Err(err) => last = Some(err),
            }
        }
        Err(last.unwrap_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "no address to connect to")
        }))
    }

    fn connect_to(&self, engine: &Arc<Engine>, addr: SocketAddr) -> io::Result<Arc<Connection>> {
        let opening = Opening::start(engine, self, addr)?;
        match opening.wait(self.connect_timeout) {
            Some(result) => result,
            None => Err(timed_out(self.connect_timeout.unwrap_or_default())),
        }
    }
}
