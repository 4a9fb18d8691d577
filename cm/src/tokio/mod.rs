//! Connecting and accepting in tasks of [tokio](https://docs.rs/tokio) (feature `tokio`).
//!
//! No function spawns a task or a thread. Every future can be dropped at any time: operations in progress are
//! cancelled, and unread events stay available for the next call, as documented for each. Only handshakes and disconnects have
//! a deadline; for others use `tokio::time::timeout`, which drops the future.
//!
//! # Examples
//! ```
//! # #[tokio::main]
//! # async fn main() -> verbs::Result<()> {
//! #     let _fabric = doctest::lasting_host();
//! #     tokio::select! { biased; served = serve() => served, sent = send() => sent }
//! # }
//! use cm::tokio::{Endpoint, Listener, connect};
//!
//! async fn serve() -> verbs::Result<()> {
//!     let listener: Listener = Listener::bind("10.9.0.1:7471".parse().unwrap())?;
//!     loop {
//!         let mut endpoint = listener.accept().await?;
//!         let buf = endpoint.pd().alloc_buf(64)?;
//!         endpoint.post_recv(buf)?;
//!         println!("{:?}", endpoint.recv_comp().await?.received()?);
//!     }
//! }
//!
//! async fn send() -> verbs::Result<()> {
//!     let mut endpoint: Endpoint = connect("10.9.0.1:7471".parse().unwrap()).await?;
//!     let hello = endpoint.pd().register_buf(*b"hello")?;
//!     endpoint.post(verbs::op::Send::new(hello))?;
//!     endpoint.send_comp().await?.ok()?;
//!     endpoint.disconnect().await
//! }
//! ```

mod channel;
mod endpoint;
mod halves;
mod listener;

use std::{future::poll_fn, io, net::SocketAddr, pin::pin, task::Poll, time::Duration};

use ::tokio::time::timeout;
use verbs::{Error, Result};

use crate::{
    dial::{self, Events},
    endpoint::{Ending, EndpointBuilder, Outgoing, QueueChoice},
    event::Event,
};

pub use channel::EventChannel;
pub use endpoint::Endpoint;
pub(crate) use endpoint::WatchedCqs;
pub use halves::{RecvHalf, SendHalf};
pub use listener::{Incoming, Listener};

/// Connects to a listener, with the defaults of [`EndpointBuilder`].
///
/// Cancel safe: a partial connection is destroyed.
///
/// # Errors
/// As for [`EndpointBuilder::connect`].
///
/// # Panics
/// Outside of a runtime with I/O and time enabled.
pub async fn connect(addr: SocketAddr) -> Result<Endpoint> {
    connect_with(&EndpointBuilder::new(), addr, |_| Ok(())).await
}

/// Connects to a listener with the given configuration. `prepare` runs before connecting, for example to post
/// receives. The builder's timeout applies to each resolution and to the handshake.
///
/// Cancel safe: a partial connection is destroyed.
///
/// # Errors
/// As for [`EndpointBuilder::connect`], and those of `prepare`.
///
/// # Panics
/// Outside of a runtime with I/O and time enabled.
pub async fn connect_with<SW: 'static, RW: 'static, Q: QueueChoice>(
    choices: &EndpointBuilder<Q>,
    addr: SocketAddr,
    prepare: impl FnOnce(&mut Outgoing<SW, RW, Q>) -> Result<()>,
) -> Result<Endpoint<SW, RW, Q>> {
    let channel = EventChannel::new(choices.channel()?)?;
    let task = Task {
        channel: &channel,
        timeout: choices.timeout_of_steps(),
    };
    let id = Outgoing::<SW, RW, Q>::resolve_route(&task, choices, addr).await?;
    let mut outgoing = Outgoing::new(channel.into_inner(), id, choices)?;
    prepare(&mut outgoing)?;
    let (id, qp, queues, choices, channel) = outgoing.dismantle();
    let channel = EventChannel::new(channel)?;
    let task = Task {
        channel: &channel,
        timeout: None,
    };
    let param = choices.conn_param();
    let connected = dial::connect(&task, id, qp, &param);
    let (connection, peer) = in_time("rdma_connect", choices.connect_timeout(), connected).await?;
    Endpoint::from_parts(connection, peer, queues, channel, Ending::open())
}

/// An asynchronous waiter.
struct Task<'a> {
    channel: &'a EventChannel,
    timeout: Option<Duration>,
}

impl Events for Task<'_> {
    fn channel(&self) -> &crate::EventChannel {
        self.channel.get_ref()
    }

    fn remaining(&self) -> Option<Duration> {
        self.timeout
    }

    async fn next(&self, _: &'static str) -> Result<Event> {
        self.channel.wait().await
    }
}

/// Waits for a future, at most for `limit`, if any; `None` after that.
async fn at_most<T>(limit: Option<Duration>, future: impl Future<Output = T>) -> Option<T> {
    match limit {
        None => Some(future.await),
        Some(limit) => timeout(limit, future).await.ok(),
    }
}

/// Waits for the outcome of `call`, at most for `limit`.
async fn in_time<T>(
    call: &'static str,
    limit: Duration,
    future: impl Future<Output = Result<T>>,
) -> Result<T> {
    at_most(Some(limit), future).await.unwrap_or_else(|| {
        let reason = format!("not done within {limit:?}");
        Err(Error::refused(call, io::ErrorKind::TimedOut, reason))
    })
}

/// The first result of two futures.
enum First<A, B> {
    A(A),
    B(B),
}

/// Waits for the first of two futures, and drops the other; both must be cancel safe.
async fn first<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> First<A, B> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|cx| {
        if let Poll::Ready(a) = a.as_mut().poll(cx) {
            return Poll::Ready(First::A(a));
        }
        b.as_mut().poll(cx).map(First::B)
    })
    .await
}
