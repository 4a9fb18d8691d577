//! Sockets in tasks, of whatever runtime.

use std::{
    future::poll_fn,
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
    task::Poll,
};

use verbs::RemoteRegion;

use crate::{Message, Received, SendOptions, Sent, Socket};

/// A socket whose calls can be awaited.
///
/// It is the engine that wakes tasks, so any runtime will do, tokio among them. Any number of tasks
/// can use it at once. All calls are cancel safe: what has not been returned has not happened.
///
/// # Examples
/// ```no_run
/// # async fn f() -> std::io::Result<()> {
/// let socket = rds::AsyncSocket::new(rds::Socket::bind("10.9.0.1:4000")?);
/// socket.send_to(b"hello", "10.9.0.2:4000".parse().unwrap()).await?;
/// let message = socket.recv_message().await?;
/// println!("{}: {} bytes", message.from(), message.len());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncSocket {
    socket: Socket,
}

impl AsyncSocket {
    /// Makes the calls of a socket wait in tasks, whatever they did.
    pub fn new(socket: Socket) -> Self {
        Self { socket }
    }

    /// The socket, for everything that does not wait.
    pub fn get_ref(&self) -> &Socket {
        &self.socket
    }

    /// The socket, to wait in its calls again.
    pub fn into_inner(self) -> Socket {
        self.socket
    }

    /// Tries until it does not have to wait any more.
    async fn until<T>(&self, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        poll_fn(|cx| {
            let mut registered = false;
            loop {
                match attempt() {
                    Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
                    result => return Poll::Ready(result),
                }
                // What has come before is not told: so it is tried once more.
                if registered {
                    return Poll::Pending;
                }
                self.socket.wake_on_change(cx.waker());
                registered = true;
            }
        })
        .await
    }

    /// [`Socket::send_to`], waiting until it can be sent.
    ///
    /// # Errors
    /// As for [`Socket::send_to`].
    pub async fn send_to(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        let options = SendOptions::new().to(to);
        Ok(self.send_msg(&[IoSlice::new(bytes)], &options).await?.len)
    }

    /// [`Socket::send_msg`], waiting until it can be sent.
    ///
    /// # Errors
    /// As for [`Socket::send_msg`].
    pub async fn send_msg(&self, bufs: &[IoSlice<'_>], options: &SendOptions) -> io::Result<Sent> {
        let options = options.clone().dont_wait();
        self.until(|| self.socket.send_msg(bufs, &options)).await
    }

    /// [`Socket::send_zerocopy`], waiting until it can be sent.
    ///
    /// # Errors
    /// As for [`Socket::send_zerocopy`].
    pub async fn send_zerocopy(
        &self,
        memory: &RemoteRegion,
        name: u32,
        options: &SendOptions,
    ) -> io::Result<Sent> {
        let options = options.clone().dont_wait();
        self.until(|| self.socket.send_zerocopy(memory, name, &options))
            .await
    }

    /// [`Socket::recv`], waiting until there is something.
    ///
    /// # Errors
    /// As for [`Socket::recv`].
    pub async fn recv(&self) -> io::Result<Received> {
        self.until(|| self.socket.try_recv()).await
    }

    /// [`Socket::recv_from`], waiting until there is a message, with its bytes where they are.
    ///
    /// # Errors
    /// As for [`Socket::recv_from`].
    pub async fn recv_message(&self) -> io::Result<Message> {
        self.until(|| self.socket.try_recv_message()).await
    }

    /// [`Socket::recv_from`], waiting until there is a message.
    ///
    /// # Errors
    /// As for [`Socket::recv_from`].
    pub async fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let message = self.recv_message().await?;
        let copied = message.copy_to(&mut [IoSliceMut::new(buf)]);
        Ok((copied, message.from()))
    }
}
