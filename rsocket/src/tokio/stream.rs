//! Streams.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{Shutdown, SocketAddr, ToSocketAddrs},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use cm::Key;
use verbs::tokio::WatchedFd;

use super::{
    reactor::{Reactor, Task},
    watch,
};
use crate::{
    connecting::Connecting, connection::Connection, engine::Engine, options::Options,
    proto::stream::StreamStats, stream, timers::TimerId,
};

/// A [stream](crate::Stream) for asynchronous tasks.
///
/// ```
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main]
/// # async fn main() -> std::io::Result<()> {
/// # let _fabric = doctest::lasting_host();
/// # let listener = rsocket::Listener::bind("10.9.0.1:7471")?;
/// # let server = std::thread::spawn(move || {
/// #     let (mut stream, _) = listener.accept()?;
/// #     std::io::copy(&mut stream.try_clone()?, &mut stream)
/// # });
/// let mut stream = rsocket::tokio::Stream::connect("10.9.0.1:7471").await?;
/// stream.write_all(b"hello").await?;
/// let mut answer = [0; 5];
/// stream.read_exact(&mut answer).await?;
/// # Ok(())
/// # }
/// ```
///
/// A task with continuous data to read or room to write yields to other tasks regularly, as with tokio's own
/// streams.
///
/// Dropping a future loses no byte. After dropping the stream, written data is delivered in the background,
/// according to [`Options::linger`].
#[derive(Debug)]
pub struct Stream {
    stream: stream::Stream,
    reading: Task<Connection>,
    writing: Task<Connection>,
}

/// A connection attempt, cancelled on drop.
struct Attempt {
    connecting: Arc<Connecting>,
    watched: WatchedFd,
    engine: Arc<Engine>,
    /// Handle of the engine's timeout.
    timeout: Option<TimerId<Key>>,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(timeout) = self.timeout {
            self.engine.forget_timeout(timeout);
        }
    }
}

impl Attempt {
    async fn result(&self) -> io::Result<Arc<Connection>> {
        self.watched.readable(|| self.connecting.take()).await?
    }
}

impl Stream {
    /// Connects to an address with the default [`Options`].
    ///
    /// # Errors
    /// As for [`Options::connect`].
    pub async fn connect(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_with(addr, &Options::new()).await
    }

    /// Connects like [`Options::connect`], with the same timeout. Resolving a host name blocks the calling thread.
    /// Dropping the future cancels the attempt.
    ///
    /// # Errors
    /// As for [`Options::connect`].
    pub async fn connect_with(addr: impl ToSocketAddrs, options: &Options) -> io::Result<Self> {
        let addrs: Vec<_> = addr.to_socket_addrs()?.collect();
        let engine = Engine::get()?;
        let mut last = None;
        for addr in addrs {
            match attempt(options, &engine, addr).await {
                Ok(connection) => {
                    return Self::new(stream::Stream::new(connection, &engine, options));
                }
                Err(err) => last = Some(err),
            }
        }
        Err(last.unwrap_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "no address to connect to")
        }))
    }

    /// Wraps a stream and makes the stream nonblocking. Must be called within a runtime.
    ///
    /// # Errors
    /// The runtime cannot watch its descriptor.
    pub fn new(stream: stream::Stream) -> io::Result<Self> {
        stream.set_nonblocking(true);
        let reactor = Reactor::new(stream.connection())?;
        Ok(Self {
            reading: Task::new(&reactor),
            writing: Task::new(&reactor),
            stream,
        })
    }

    /// Unwraps the stream, still nonblocking. The runtime stops watching.
    pub fn into_inner(self) -> stream::Stream {
        self.stream
    }

    /// Returns the counters of this side of the stream; see [`rsocket::Stream::stats`](crate::Stream::stats). Does not
    /// block, and makes no system call.
    pub fn stats(&self) -> StreamStats {
        self.stream.stats()
    }

    /// Returns the stream, for calls that do not block.
    pub fn get_ref(&self) -> &stream::Stream {
        &self.stream
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let connection = self.stream.connection();
        let read = self.reading.poll(cx, |mode| {
            let buf_slice = IoSliceMut::new(buf.initialize_unfilled());
            connection.recv(&mut [buf_slice], false, mode)
        });
        let len = ready!(read)?;
        buf.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let connection = self.stream.connection();
        self.writing.poll(cx, |mode| connection.send(bufs, mode))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing: no data is held back.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.get_ref().shutdown(Shutdown::Write))
    }
}

async fn attempt(
    options: &Options,
    engine: &Arc<Engine>,
    addr: SocketAddr,
) -> io::Result<Arc<Connection>> {
    let connecting = Connecting::start(engine, options, addr)?;
    let key = connecting.key();
    let timeout = options.connect_timeout;
    let attempt = Attempt {
        watched: watch(connecting.event_fd())?,
        connecting,
        timeout: timeout.and_then(|timeout| engine.time_out_after(timeout, key)),
        engine: Arc::clone(engine),
    };
    attempt.result().await
}
