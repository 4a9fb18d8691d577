//! Byte streams.

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
    connecting::{Connecting, timed_out},
    connection::Connection,
    engine::Engine,
    options::Options,
    proto::stream::{Direction, Readiness, Settings, StreamStats},
    waiting::WaitMode,
};

/// A bidirectional byte stream to a peer, like [`std::net::TcpStream`].
///
/// Several threads can use a stream: reads and writes proceed concurrently. [Clones](Self::try_clone) are
/// handles of the same stream.
///
/// A write returns once the bytes are in the send buffer: the engine sends bytes later for which the peer has no room.
///
/// Dropping the last clone returns at once, and the engine delivers the data in the background, at most for
/// [`Options::linger`]. The exit of the process waits for such streams. With a linger time set by the program, the drop
/// blocks until the peer has acknowledged all data, except for [nonblocking](Self::set_nonblocking) streams, with
/// [`Options::linger_in_background`], and on a thread of a tokio runtime (feature `tokio`).
///
/// # Examples
/// ```
/// # let _fabric = doctest::lasting_host();
/// # let listener = rsocket::Listener::bind("10.9.0.1:7471")?;
/// # std::thread::spawn(move || listener.accept().map(|(mut server, _)| std::io::copy(&mut server.try_clone()?, &mut server)));
/// use std::{io::{Read, Write}, net::Shutdown};
///
/// let mut stream = rsocket::Stream::connect("10.9.0.1:7471")?;
/// stream.write_all(b"hello")?;
/// stream.shutdown(Shutdown::Write)?;
/// let mut answer = String::new();
/// stream.read_to_string(&mut answer)?; // until the peer shuts down or disconnects
/// # assert_eq!(answer, "hello");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Stream {
    inner: Arc<StreamInner>,
}

/// A connection with its blocking mode and timeouts. The connection ends with the last clone of the stream.
struct StreamInner {
    connection: Arc<Connection>,
    engine: Arc<Engine>,
    nonblocking: AtomicBool,
    read_timeout: Mutex<Option<Duration>>,
    write_timeout: Mutex<Option<Duration>>,
    linger_in_background: AtomicBool,
}

impl Stream {
    /// Connects to an address with the default [`Options`].
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
        connection.set_limits(options.limit(), options.stall_limit());
        connection.set_linger(options.linger);
        if let Some(interval) = options.keep_alive {
            engine.keep_alive(connection.key(), interval);
        }
        Self {
            inner: Arc::new(StreamInner {
                connection,
                engine: Arc::clone(engine),
                nonblocking: AtomicBool::new(false),
                read_timeout: Mutex::default(),
                write_timeout: Mutex::default(),
                linger_in_background: AtomicBool::new(options.linger_in_background),
            }),
        }
    }

    /// Creates another handle of the same stream, like [`std::net::TcpStream::try_clone`]. Timeouts and the
    /// nonblocking mode are shared by all clones. Does not block.
    ///
    /// ```
    /// # let _fabric = doctest::lasting_host();
    /// # let listener = rsocket::Listener::bind("10.9.0.1:7471")?;
    /// # std::thread::spawn(move || {
    /// #     let (mut stream, _) = listener.accept()?;
    /// #     stream.read_exact(&mut [0; 5])?;
    /// #     stream.write_all(b"welcome")
    /// # });
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

    fn wait_mode(&self, timeout: &Mutex<Option<Duration>>) -> WaitMode<'static> {
        if self.inner.nonblocking.load(Relaxed) {
            return WaitMode::Watch;
        }
        let timeout = timeout.lock().unwrap_or_else(PoisonError::into_inner);
        WaitMode::from_timeout(*timeout)
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.inner.connection
    }

    pub(crate) fn write_mode(&self) -> WaitMode<'static> {
        self.wait_mode(&self.inner.write_timeout)
    }

    /// Returns the operations possible without blocking. On a change, the [descriptor](AsFd::as_fd) becomes
    /// readable.
    ///
    /// # Errors
    /// The device has failed.
    pub fn readiness(&self) -> io::Result<Readiness> {
        self.connection().shared().readiness()
    }

    /// Returns the sizes in use on the connection.
    pub fn settings(&self) -> Settings {
        self.connection().settings()
    }

    /// Returns the counters of this side of the stream. Does not block, and makes no system call.
    ///
    /// ```
    /// # let _fabric = doctest::lasting_host();
    /// # let listener = rsocket::Listener::bind("10.9.0.1:7471")?;
    /// # let _accepted = std::thread::spawn(move || listener.accept());
    /// use std::io::Write;
    ///
    /// let mut stream = rsocket::Stream::connect("10.9.0.1:7471")?;
    /// stream.write_all(b"hello")?;
    /// let stats = stream.stats();
    /// assert_eq!((stats.bytes_sent, stats.messages_sent), (5, 1));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn stats(&self) -> StreamStats {
        self.connection().stats()
    }

    /// Receives bytes and leaves them in the buffer: the next call receives them again, with later data.
    ///
    /// # Errors
    /// As for reading.
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mode = self.wait_mode(&self.inner.read_timeout);
        self.connection()
            .recv(&mut [IoSliceMut::new(buf)], true, mode)
    }

    /// Shuts down one direction or both. Written data is still delivered.
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

    /// Returns the local address.
    ///
    /// # Errors
    /// None today; a `Result` as in [`std::net`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.connection().local_addr())
    }

    /// Returns the address of the peer, also after a disconnect.
    ///
    /// # Errors
    /// None today; a `Result` as in [`std::net`].
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.connection().peer_addr())
    }

    /// Sets whether reads and writes return at once, with `WouldBlock` if not possible. The
    /// [descriptor](AsFd::as_fd) becomes readable when a read or a write is worth another try.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.inner.nonblocking.store(nonblocking, Relaxed);
    }

    /// Sets the time a read may block before failing with `WouldBlock`, as in [`std::net`] on Unix;
    /// unlimited if `None`. `TimedOut` is a failure of the connection.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) {
        *self
            .inner
            .read_timeout
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = timeout;
    }

    /// Sets the time a write may block before failing with `WouldBlock`; unlimited if `None`.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) {
        *self
            .inner
            .write_timeout
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = timeout;
    }

    /// Sets the time for which dropping the stream may block, like [`Options::linger`].
    pub fn set_linger(&self, timeout: Duration) {
        self.connection().set_linger(timeout);
        self.set_linger_in_background(false);
    }

    /// Sets the linger time of the options, and whether a drop waits for it.
    pub(crate) fn follow_linger(&self, options: &Options) {
        self.connection().set_linger(options.linger);
        self.set_linger_in_background(options.linger_in_background);
    }

    /// Sets whether dropping the stream returns at once, like [`Options::linger_in_background`].
    pub fn set_linger_in_background(&self, in_background: bool) {
        self.inner
            .linger_in_background
            .store(in_background, Relaxed);
    }

    /// Sets the interval of keepalive probes, like [`Options::keep_alive`]; `None` disables them.
    pub fn set_keep_alive(&self, interval: Option<Duration>) {
        let interval = interval.unwrap_or_default();
        let key = self.connection().key();
        self.inner.engine.keep_alive(key, interval);
    }

    /// Sets the timeout for unacknowledged data and for data without room, like [`Options::user_timeout`]; `None` restores the default.
    pub fn set_user_timeout(&self, timeout: Option<Duration>) {
        self.set_limits(&Options::new().user_timeout(timeout.unwrap_or_default()));
    }

    /// Sets the timeouts of the options.
    pub(crate) fn set_limits(&self, options: &Options) {
        let connection = self.connection();
        connection.set_limits(options.limit(), options.stall_limit());
    }

    /// Returns the failure of the connection, if any.
    pub fn take_error(&self) -> Option<io::Error> {
        self.connection().failure()
    }
}

impl Read for &Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(buf)])
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mode = self.wait_mode(&self.inner.read_timeout);
        self.connection().recv(bufs, false, mode)
    }
}

impl Write for &Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.connection().send(bufs, self.write_mode())
    }

    /// Does nothing: data for which the peer has room has been sent, and the engine sends the rest.
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
    /// Readable when a call that failed with `WouldBlock` is worth another try. Stays readable until the
    /// retry or a call of [`readiness`](Self::readiness).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection().as_fd()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("local", &self.connection().local_addr())
            .field("peer", &self.connection().peer_addr())
            .finish_non_exhaustive()
    }
}

/// Whether this thread runs a tokio runtime, where blocking would delay other tasks.
#[cfg(feature = "tokio")]
fn is_in_runtime() -> bool {
    tokio::runtime::Handle::try_current().is_ok()
}

#[cfg(not(feature = "tokio"))]
fn is_in_runtime() -> bool {
    false
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        let linger = self.connection.linger();
        if linger.is_zero() {
            return;
        }
        // A failure here is final, and no caller is left to receive the error.
        drop(self.connection.shut_down(Direction::Both));
        let mode = WaitMode::from_timeout(Some(linger));
        let in_background = self.nonblocking.load(Relaxed)
            || self.linger_in_background.load(Relaxed)
            || is_in_runtime();
        if in_background {
            let connection = Arc::clone(&self.connection);
            self.engine.linger(connection, mode.deadline());
        } else {
            while let Err(err) = self.connection.flush(mode) {
                if err.kind() != io::ErrorKind::Interrupted {
                    break;
                }
            }
        }
    }
}

impl Options {
    /// Connects to an address, trying each address of a host name until one answers. Blocks.
    ///
    /// # Errors
    /// - `ConnectionRefused`: no listener at the address.
    /// - `TimedOut`: no answer in time.
    /// - `ConnectionReset`, `ConnectionAborted`: the handshake has failed.
    /// - `NetworkDown`: the device has been removed.
    /// - `NetworkUnreachable`, `HostUnreachable`: no route to the address.
    /// - `NotFound`, `ENODEV`: no RDMA device, or none on the route.
    /// - `PermissionDenied`: as for [`Socket::new`](crate::Socket::new).
    /// - `Unsupported`: the peer has another version of the protocol.
    /// - `AddrNotAvailable`: over Soft-iWARP, the port chosen by the kernel belongs to a recent TCP connection with the
    ///   same listener. Another attempt has another port.
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
        let connecting = Connecting::start(engine, self, addr)?;
        match connecting.wait(self.connect_timeout) {
            Some(result) => result,
            None => Err(timed_out(self.connect_timeout.unwrap_or_default())),
        }
    }
}
