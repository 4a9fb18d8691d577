//! Connection setup as a sequence of steps, independent of blocking or asynchronous waiting.

use std::{
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use verbs::{Error, Init, QueuePair, Result};

use crate::{
    addr::Addr,
    channel::EventChannel,
    connection::Connection,
    datagram::DatagramPeer,
    event::{ConnectFailure, Event},
    id::CmId,
    multicast::{Membership, MulticastGroup},
    param::{ConnParam, PeerParam},
    phases::{AddrResolved, RouteResolved, ServiceResolved},
    port_space::PortSpace,
    resolve::explain,
};

/// Default timeout of a resolution, as in `rdma_create_ep`.
const RESOLVE: Duration = Duration::from_secs(2);

/// Deadline of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Option<Instant>,
    timeout: Option<Duration>,
}

impl Deadline {
    /// Computes the deadline; `None` for no limit, also when the time is beyond the range of the clock.
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        Self {
            at: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            timeout,
        }
    }

    /// Time left; `None` without a limit.
    pub(crate) fn remaining(self) -> Option<Duration> {
        self.at
            .map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Error of a call at the deadline.
    pub(crate) fn missed(self, call: &'static str) -> Error {
        let timeout = self.timeout.unwrap_or_default();
        let reason = format!("not done within {timeout:?}");
        Error::refused(call, io::ErrorKind::TimedOut, reason)
    }
}

/// A waiter for the events of an exclusively owned channel.
pub(crate) trait Events {
    /// The channel.
    fn channel(&self) -> &EventChannel;

    /// Time left; `None` without a limit.
    fn remaining(&self) -> Option<Duration>;

    /// Waits for the next event, on behalf of `call`.
    async fn next(&self, call: &'static str) -> Result<Event>;
}

/// A blocking waiter.
#[derive(Debug)]
pub(crate) struct Thread<'a> {
    pub(crate) channel: &'a EventChannel,
    pub(crate) deadline: Deadline,
}

impl Events for Thread<'_> {
    fn channel(&self) -> &EventChannel {
        self.channel
    }

    fn remaining(&self) -> Option<Duration> {
        self.deadline.remaining()
    }

    async fn next(&self, call: &'static str) -> Result<Event> {
        match self.deadline.remaining() {
            None => self.channel.wait(),
            Some(remaining) => match self.channel.wait_timeout(remaining)? {
                Some(event) => Ok(event),
                None => Err(self.deadline.missed(call)),
            },
        }
    }
}

/// Runs steps with [`Thread`] as waiter, which blocks and so never returns pending.
pub(crate) fn block<T>(steps: impl Future<Output = Result<T>>) -> Result<T> {
    use std::task::{Context, Poll, Waker};
    match std::pin::pin!(steps).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        // Unreachable: a thread's events block.
        Poll::Pending => Err(Error::refused(
            "block",
            io::ErrorKind::WouldBlock,
            "the steps wait for another waiter",
        )),
    }
}

/// This side of a route.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalEnd {
    pub(crate) space: PortSpace,
    pub(crate) source: Option<SocketAddr>,
    /// Type of service; the kernel's default if `None`.
    pub(crate) tos: Option<u8>,
}

/// Resolves the address.
async fn resolve_addr(
    events: &impl Events,
    end: LocalEnd,
    destination: SocketAddr,
) -> Result<CmId<AddrResolved>> {
    const CALL: &str = "rdma_resolve_addr";
    let source = end.source;
    let mut id = events.channel().create_id_in(end.space)?;
    if let Some(tos) = end.tos {
        id.set_tos(tos)?;
    }
    id.resolve_addr(source, destination, events.remaining().unwrap_or(RESOLVE))?;
    let peer = PeerDetail(Some(destination.into()));
    loop {
        match peer.next(events, CALL).await? {
            Event::AddrResolved(id) => return Ok(id),
            Event::AddrError { error, .. } => {
                return Err(unresolved(error, source, destination));
            }
            other => peer.check(CALL, other)?,
        }
    }
}

/// The error of a resolution, with the addresses.
fn unresolved(error: Error, source: Option<SocketAddr>, destination: SocketAddr) -> Error {
    let error = error.detail(destination.to_string());
    explain(
        error,
        source.map(Into::into),
        Some(destination.into()),
        false,
    )
}

/// Resolves the address and the route.
pub(crate) async fn resolve(
    events: &impl Events,
    end: LocalEnd,
    destination: SocketAddr,
) -> Result<CmId<RouteResolved>> {
    const CALL: &str = "rdma_resolve_route";
    let source = end.source;
    let id = resolve_addr(events, end, destination).await?;
    id.resolve_route(events.remaining().unwrap_or(RESOLVE))?;
    let peer = PeerDetail(Some(destination.into()));
    loop {
        match peer.next(events, CALL).await? {
            Event::RouteResolved(id) => return Ok(id),
            Event::RouteError { error, .. } => {
                return Err(unresolved(error, source, destination));
            }
            other => peer.check(CALL, other)?,
        }
    }
}

/// Connects and establishes the connection.
pub(crate) async fn connect<SW, RW>(
    events: &impl Events,
    id: CmId<RouteResolved>,
    qp: QueuePair<verbs::Rc, Init, SW, RW>,
    param: &ConnParam,
) -> Result<(Connection<SW, RW>, PeerParam)> {
    const CALL: &str = "rdma_connect";
    let peer = PeerDetail(id.any_peer_addr());
    id.connect(&qp, param)
        .map_err(|refused| peer.name(refused.error))?;
    loop {
        match peer.next(events, CALL).await? {
            Event::ConnectResponse(response) => {
                let peer = response.param().clone();
                return Ok((response.establish(qp)?, peer));
            }
            other => peer.check(CALL, other)?,
        }
    }
}

/// Resolves the datagram address of a peer.
pub(crate) async fn resolve_service(
    events: &impl Events,
    id: CmId<RouteResolved>,
    private_data: &[u8],
) -> Result<(CmId<ServiceResolved>, DatagramPeer)> {
    const CALL: &str = "rdma_connect";
    let peer = PeerDetail(id.any_peer_addr());
    id.resolve_service(private_data)
        .map_err(|refused| peer.name(refused.error))?;
    loop {
        match peer.next(events, CALL).await? {
            Event::ServiceResolved { id, peer } => return Ok((id, peer)),
            other => peer.check(CALL, other)?,
        }
    }
}

/// Joins a multicast group.
pub(crate) async fn join(
    events: &impl Events,
    end: LocalEnd,
    group: SocketAddr,
    membership: Membership,
) -> Result<(CmId<AddrResolved>, MulticastGroup)> {
    const CALL: &str = "rdma_join_multicast_ex";
    let mut id = resolve_addr(events, end, group).await?;
    id.join_multicast(group, membership)?;
    let peer = PeerDetail(Some(group.into()));
    loop {
        match peer.next(events, CALL).await? {
            Event::MulticastJoined { group, .. } => return Ok((id, group)),
            Event::MulticastFailed { error, .. } => return Err(error),
            other => peer.check(CALL, other)?,
        }
    }
}

/// The address of the peer, or of the group, for errors.
struct PeerDetail(Option<Addr>);

impl PeerDetail {
    /// Adds the address to an error.
    fn name(&self, error: Error) -> Error {
        match self.0 {
            Some(addr) => error.detail(addr.to_string()),
            None => error,
        }
    }

    /// Waits for the next event, on behalf of `call`.
    async fn next(&self, events: &impl Events, call: &'static str) -> Result<Event> {
        let event = events.next(call).await;
        event.map_err(|error| self.name(error))
    }

    /// Returns an error if an unexpected event ends the connection; other events are ignored.
    fn check(&self, call: &'static str, event: Event) -> Result<()> {
        let failure = match event {
            Event::ConnectFailed { failure, .. } => failure,
            Event::DeviceRemoval(_) => ConnectFailure::DeviceRemoved,
            Event::Disconnected { cause, .. } => cause.unwrap_or(ConnectFailure::Disconnected),
            _ => return Ok(()),
        };
        Err(self.name(failure.into_error(call)))
    }
}

impl ConnectFailure {
    /// Converts the failure to the error of a blocking call, with the failure as source.
    pub(crate) fn into_error(self, call: &'static str) -> Error {
        Error::refused(call, self.kind(), self)
    }

    /// The nearest portable kind of error.
    pub fn kind(&self) -> io::ErrorKind {
        match *self {
            Self::Rejected { .. } | Self::ServiceRejected { .. } => {
                io::ErrorKind::ConnectionRefused
            }
            Self::Unreachable { status } if status == -libc::ETIMEDOUT => io::ErrorKind::TimedOut,
            Self::Unreachable { .. } => io::ErrorKind::HostUnreachable,
            Self::Failed { .. } | Self::Displaced => io::ErrorKind::ConnectionAborted,
            Self::Disconnected => io::ErrorKind::ConnectionReset,
            Self::DeviceRemoved => io::ErrorKind::NetworkDown,
        }
    }

    /// The failure behind an error of a blocking or an asynchronous call, with the status and the private
    /// data of the peer's application.
    ///
    /// ```
    /// # let _fabric = doctest::host();
    /// use cm::ConnectFailure;
    /// let err = cm::connect("10.9.0.1:7471").unwrap_err();
    /// if let Some(ConnectFailure::Rejected { private_data, .. }) = ConnectFailure::of(&err) {
    ///     println!("rejected with {}", String::from_utf8_lossy(private_data));
    /// }
    /// ```
    pub fn of(error: &Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_failure_is_found_behind_its_error() {
        let failure = ConnectFailure::Rejected {
            reason: 28,
            private_data: b"full".to_vec(),
        };
        let error = failure.clone().into_error("rdma_connect");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(
            error.to_string(),
            "`rdma_connect` failed: rejected by the peer's application"
        );
        assert_eq!(ConnectFailure::of(&error), Some(&failure));
        assert!(std::error::Error::source(&error).is_none());
        let other = Error::from_errno("rdma_connect", libc::EINVAL);
        assert_eq!(ConnectFailure::of(&other), None);
    }

    #[test]
    fn deadline_beyond_the_clock_is_none() {
        assert_eq!(Deadline::after(Some(Duration::MAX)).remaining(), None);
        assert_eq!(Deadline::after(None).remaining(), None);
        let now = Deadline::after(Some(Duration::ZERO));
        assert_eq!(now.remaining(), Some(Duration::ZERO));
        let missed = now.missed("rdma_connect");
        assert_eq!(missed.kind(), io::ErrorKind::TimedOut);
        assert!(missed.to_string().contains("within 0ns"), "{missed}");
    }

    #[test]
    fn steps_with_a_foreign_waiter_fail() {
        let err = block(std::future::pending::<Result<()>>()).unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::WouldBlock);
        assert!(block(async { Ok(1) }).is_ok());
    }
}
