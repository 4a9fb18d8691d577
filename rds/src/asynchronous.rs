//! Sockets for tasks, independent of the runtime. The type has the name of the blocking one.

use std::{
    future::poll_fn,
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
    task::Poll,
};

use verbs::RemoteRegion;

use crate::{Event, Message, SendOptions, Sent, socket};

/// A socket with awaitable calls.
///
/// The engine wakes tasks through their wakers, so any runtime works, tokio among them. Any number
/// of tasks can share a socket. All calls are cancel safe: a dropped future has received or sent
/// nothing.
///
/// # Examples
/// ```
/// # #[tokio::main]
/// # async fn main() -> std::io::Result<()> {
/// # let _fabric = doctest::lasting_host();
/// # let peer = rds::Socket::bind("10.9.0.2:4000")?;
/// let socket = rds::asynchronous::Socket::new(rds::Socket::bind("10.9.0.1:4000")?);
/// socket.send_to(b"hello", "10.9.0.2:4000".parse().unwrap()).await?;
/// # peer.send_to(b"welcome", "10.9.0.1:4000".parse().unwrap())?;
/// let message = socket.recv_message().await?;
/// println!("{}: {} bytes", message.from(), message.len());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Socket {
    socket: socket::Socket,
}

impl Socket {
    /// Wraps a socket. Calls through the wrapper wait in tasks, even if the socket is blocking.
    pub fn new(socket: socket::Socket) -> Self {
        Self { socket }
    }

    /// The wrapped socket, for calls without waiting.
    pub fn get_ref(&self) -> &socket::Socket {
        &self.socket
    }

    /// Unwraps the socket.
    pub fn into_inner(self) -> socket::Socket {
        self.socket
    }

    /// Repeats `attempt` until the result is other than `WouldBlock`.
    async fn until<T>(&self, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        poll_fn(|cx| {
            let mut registered = false;
            loop {
                match attempt() {
                    Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
                    result => return Poll::Ready(result),
                }
                // A change before the registration wakes no task, so try once more.
                if registered {
                    return Poll::Pending;
                }
                self.socket.wake_on_change(cx.waker());
                registered = true;
            }
        })
        .await
    }

    /// [`rds::Socket::send`](crate::Socket::send), waiting like [`send_to`](Self::send_to).
    ///
    /// # Errors
    /// As for [`rds::Socket::send`](crate::Socket::send).
    pub async fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let options = SendOptions::new();
        Ok(self.send_msg(&[IoSlice::new(bytes)], &options).await?.len)
    }

    /// [`rds::Socket::send_to`](crate::Socket::send_to), waiting for room in the send buffer and for the congestion of the
    /// destination to end.
    ///
    /// # Errors
    /// As for [`rds::Socket::send_to`](crate::Socket::send_to).
    pub async fn send_to(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        let options = SendOptions::new().to(to);
        Ok(self.send_msg(&[IoSlice::new(bytes)], &options).await?.len)
    }

    /// [`rds::Socket::send_msg`](crate::Socket::send_msg), waiting like [`send_to`](Self::send_to).
    ///
    /// # Errors
    /// As for [`rds::Socket::send_msg`](crate::Socket::send_msg).
    pub async fn send_msg(&self, bufs: &[IoSlice<'_>], options: &SendOptions) -> io::Result<Sent> {
        let options = options.clone().dont_wait();
        self.until(|| self.socket.send_msg(bufs, &options)).await
    }

    /// [`rds::Socket::send_zerocopy`](crate::Socket::send_zerocopy), waiting like [`send_to`](Self::send_to).
    ///
    /// # Errors
    /// As for [`rds::Socket::send_zerocopy`](crate::Socket::send_zerocopy).
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

    /// [`rds::Socket::recv_event`](crate::Socket::recv_event), waiting for a message or another event.
    ///
    /// # Errors
    /// As for [`rds::Socket::recv_event`](crate::Socket::recv_event).
    pub async fn recv_event(&self) -> io::Result<Event> {
        self.until(|| self.socket.try_recv_event()).await
    }

    /// [`rds::Socket::recv_message`](crate::Socket::recv_message), waiting for a message.
    ///
    /// # Errors
    /// As for [`rds::Socket::recv_message`](crate::Socket::recv_message).
    pub async fn recv_message(&self) -> io::Result<Message> {
        self.until(|| self.socket.try_recv_message()).await
    }

    /// [`rds::Socket::recv`](crate::Socket::recv), waiting for a message.
    ///
    /// # Errors
    /// As for [`rds::Socket::recv`](crate::Socket::recv).
    pub async fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv_from(buf).await?.0)
    }

    /// [`rds::Socket::recv_from`](crate::Socket::recv_from), waiting for a message.
    ///
    /// # Errors
    /// As for [`rds::Socket::recv_from`](crate::Socket::recv_from).
    pub async fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let message = self.recv_message().await?;
        let copied = message.copy_to(&mut [IoSliceMut::new(buf)]);
        Ok((copied, message.from()))
    }
}
