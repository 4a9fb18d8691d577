//! Connection policy: when to dial a peer, when to wait, and how to resolve crossed requests.
//!
//! The peer may be a Linux kernel. A kernel redials immediately and forever, gives up a live
//! connection when a new request arrives, and never yields while dialing. So a host without
//! messages to send does not dial, waits for the peer's request after losing a connection, and
//! waits longer after being rejected.

use std::{collections::VecDeque, net::IpAddr, ops::Range, time::Duration};

use fastrand::Rng;

/// Time-out of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Age from which an own attempt yields to a request of the peer.
const YIELD_AFTER: Duration = Duration::from_secs(2);
/// How long a request of the peer is held while the previous connection closes, or another one in
/// favor of this peer. Then the request is rejected.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Upper bound of the backoff between attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(1);
/// Upper bound of the first random backoff after an unreachable peer; doubled for each further
/// failure.
const INITIAL_BACKOFF: Duration = Duration::from_millis(1);
/// Range of the random wait for the peer's request after the loss of a connection, in milliseconds.
const LOSS_BACKOFF_MS: Range<u64> = 20..200;
/// Range of the random backoff after a rejection, in milliseconds, for the host with the lower
/// address and for the other. Doubled for each further failure.
const REFUSAL_BACKOFF_MS: [Range<u64>; 2] = [10..50, 50..200];

/// A connection attempt, and the resulting connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attempt(u64);

/// A peer's connection request, numbered by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(pub u64);

/// An action for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Dial the peer.
    Dial(Attempt),
    /// Post receives, then accept the request of the peer.
    Accept(RequestId, Attempt),
    /// Reject the peer's request, with [`REJECTED`](super::wire::REJECTED) as private data.
    Reject(RequestId),
    /// Close the attempt or connection: handle arrived frames, destroy the queue pair, then call
    /// [`closed`](Link::closed).
    Close(Attempt),
}

/// Why an attempt failed or a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The peer has rejected the request. Kernels do so while dialing.
    Refused,
    /// The peer does not exist or does not listen.
    Unreachable,
    /// An established connection was lost, or the peer violated the protocol.
    Lost,
}

/// Demand for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Demand {
    /// No socket is bound.
    Nothing,
    /// Sockets are bound, but nothing is queued. A lost connection is reestablished once.
    Sockets,
    /// Messages are queued, or a socket waits for the peer's congestion map.
    Messages,
}

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkState {
    /// No connection, and no dialing before this time.
    Down(Duration),
    /// A request of the peer waits for [`Link::admit`].
    Pending {
        request: RequestId,
        since: Duration,
    },
    Connecting {
        attempt: Attempt,
        since: Duration,
        dialled: bool,
    },
    Up(Attempt),
    Closing {
        attempt: Attempt,
        /// Backoff after closing.
        wait: Duration,
        /// Pending request of the peer, and its arrival time.
        request: Option<(RequestId, Duration)>,
    },
}

/// State of the connection between two hosts for one type of service.
#[derive(Debug)]
pub struct Link {
    state: LinkState,
    /// The peer has the higher address.
    is_lower: bool,
    /// The peer has rejected a request since the last connection, and so is taken for a host that
    /// never yields.
    was_refused: bool,
    /// A connection was lost, and no attempt was made since.
    was_lost: bool,
    /// Consecutive failed attempts.
    failures: u32,
    next: u64,
    rng: Rng,
    actions: VecDeque<Action>,
}

impl Link {
    /// Creates a link between two different addresses. `seed` initializes the random number
    /// generator for backoff.
    pub fn new(local: IpAddr, peer: IpAddr, seed: u64) -> Self {
        Self {
            state: LinkState::Down(Duration::ZERO),
            is_lower: local < peer,
            was_refused: false,
            was_lost: false,
            failures: 0,
            next: 0,
            rng: Rng::with_seed(seed),
            actions: VecDeque::new(),
        }
    }

    fn attempt(&mut self) -> Attempt {
        self.next += 1;
        Attempt(self.next)
    }

    /// The current attempt or connection.
    pub fn current(&self) -> Option<Attempt> {
        match self.state {
            LinkState::Down(_) | LinkState::Pending { .. } => None,
            LinkState::Connecting { attempt, .. }
            | LinkState::Up(attempt)
            | LinkState::Closing { attempt, .. } => Some(attempt),
        }
    }

    /// Whether the connection is up.
    pub fn is_up(&self) -> bool {
        matches!(self.state, LinkState::Up(_))
    }

    /// Whether the connection is up, with no pending action.
    pub fn is_idle(&self) -> bool {
        self.is_up() && self.actions.is_empty()
    }

    /// Whether there is no connection and no attempt, with no pending action.
    pub fn is_down(&self) -> bool {
        matches!(self.state, LinkState::Down(_)) && self.actions.is_empty()
    }

    /// When the current request of the peer arrived or was accepted, while the connection is not yet
    /// established.
    pub fn pending_since(&self) -> Option<Duration> {
        match self.state {
            LinkState::Pending { since, .. }
            | LinkState::Connecting {
                since,
                dialled: false,
                ..
            } => Some(since),
            _ => None,
        }
    }

    /// Whether a request of the peer waits for [`admit`](Self::admit).
    pub fn is_held(&self) -> bool {
        matches!(self.state, LinkState::Pending { .. })
    }

    /// Whether the connection is up, or connecting, or about to be.
    pub fn is_active(&self) -> bool {
        !matches!(self.state, LinkState::Down(_) | LinkState::Closing { .. })
    }

    /// Whether the connection is closing, and no request of the peer waits for its end.
    pub fn is_ending(&self) -> bool {
        matches!(self.state, LinkState::Closing { request: None, .. })
    }

    /// Accepts the held request of the peer, if any: call when there are resources for a connection.
    pub fn admit(&mut self, now: Duration) {
        if let LinkState::Pending { request, .. } = self.state {
            self.accept(now, request);
        }
    }

    /// Holds an accepted request again, because resources are missing. Returns whether the attempt
    /// was the current one, which then needs no close.
    pub fn defer(&mut self, now: Duration, attempt: Attempt, request: RequestId) -> bool {
        let is_current = matches!(
            self.state,
            LinkState::Connecting { attempt: this, dialled: false, .. } if this == attempt
        );
        if is_current {
            let since = now;
            self.state = LinkState::Pending { request, since };
        }
        is_current
    }

    /// Whether the next [`poll`](Self::poll) would dial.
    pub fn is_about_to_dial(&self, now: Duration, demand: Demand) -> bool {
        matches!(self.state, LinkState::Down(at) if at <= now) && self.wants(demand)
    }

    /// Delays dialing until this time.
    pub fn postpone(&mut self, until: Duration) {
        if let LinkState::Down(at) = &mut self.state {
            *at = until.max(*at);
        }
    }

    /// Ends a connection, an attempt or a held request in favor of another peer. Does not count as a
    /// loss, so the link does not redial without messages. The caller reports
    /// [`closed`](Self::closed).
    pub fn retire(&mut self, now: Duration) {
        match self.state {
            LinkState::Up(attempt) | LinkState::Connecting { attempt, .. } => {
                self.close(attempt, Duration::ZERO, None);
            }
            LinkState::Pending { request, .. } => {
                self.actions.push_back(Action::Reject(request));
                self.state = LinkState::Down(now);
            }
            LinkState::Down(_) | LinkState::Closing { .. } => {}
        }
    }

    /// Whether an attempt of this host is in progress.
    pub fn is_dialing(&self) -> bool {
        matches!(self.state, LinkState::Connecting { dialled: true, .. })
    }

    /// Whether a connection attempt is in progress.
    pub fn is_connecting(&self) -> bool {
        matches!(self.state, LinkState::Connecting { .. })
    }

    /// The next action, if any.
    pub fn poll(&mut self, now: Duration, demand: Demand) -> Option<Action> {
        match self.state {
            LinkState::Down(at) if at <= now && self.wants(demand) => {
                self.was_lost = false;
                let attempt = self.attempt();
                self.state = LinkState::Connecting {
                    attempt,
                    since: now,
                    dialled: true,
                };
                self.actions.push_back(Action::Dial(attempt));
            }
            LinkState::Connecting { attempt, since, .. } if since + CONNECT_TIMEOUT <= now => {
                self.failed(attempt, Failure::Unreachable);
            }
            LinkState::Pending { since, .. } if since + REQUEST_TIMEOUT <= now => self.retire(now),
            LinkState::Closing {
                attempt,
                wait,
                request: Some((request, since)),
            } if since + REQUEST_TIMEOUT <= now => {
                self.actions.push_back(Action::Reject(request));
                self.state = LinkState::Closing {
                    attempt,
                    wait,
                    request: None,
                };
            }
            _ => {}
        }
        self.actions.pop_front()
    }

    fn wants(&self, demand: Demand) -> bool {
        match demand {
            Demand::Nothing => false,
            Demand::Sockets => self.was_lost,
            Demand::Messages => true,
        }
    }

    /// When to call [`poll`](Self::poll) again, unless another event comes first.
    pub fn deadline(&self, demand: Demand) -> Option<Duration> {
        if !self.actions.is_empty() {
            return Some(Duration::ZERO);
        }
        match self.state {
            LinkState::Down(at) => self.wants(demand).then_some(at),
            LinkState::Connecting { since, .. } => Some(since + CONNECT_TIMEOUT),
            LinkState::Pending { since, .. } => Some(since + REQUEST_TIMEOUT),
            LinkState::Closing { request, .. } => request.map(|(_, since)| since + REQUEST_TIMEOUT),
            LinkState::Up(_) => None,
        }
    }

    /// Handles a valid connection request of the peer. The request is held until
    /// [`admit`](Self::admit).
    pub fn request(&mut self, now: Duration, request: RequestId) {
        match self.state {
            LinkState::Down(_) => {
                let since = now;
                self.state = LinkState::Pending { request, since };
            }
            // The peer has abandoned its earlier request.
            LinkState::Pending {
                request: older,
                since,
            } => {
                self.actions.push_back(Action::Reject(older));
                self.state = LinkState::Pending { request, since };
            }
            LinkState::Connecting {
                attempt,
                since,
                dialled: true,
            } => {
                let yields = !self.is_lower || self.was_refused || since + YIELD_AFTER <= now;
                if yields {
                    self.close(attempt, Duration::ZERO, Some((request, now)));
                } else {
                    self.actions.push_back(Action::Reject(request));
                }
            }
            // The peer has abandoned its earlier request.
            LinkState::Connecting { attempt, .. } => {
                self.close(attempt, Duration::ZERO, Some((request, now)));
            }
            LinkState::Up(attempt) => {
                self.was_lost = true;
                self.close(attempt, Duration::ZERO, Some((request, now)));
            }
            LinkState::Closing {
                attempt,
                wait,
                request: before,
            } => {
                if let Some((before, _)) = before {
                    self.actions.push_back(Action::Reject(before));
                }
                self.state = LinkState::Closing {
                    attempt,
                    wait,
                    request: Some((request, now)),
                };
            }
        }
    }

    fn accept(&mut self, now: Duration, request: RequestId) {
        let attempt = self.attempt();
        self.state = LinkState::Connecting {
            attempt,
            since: now,
            dialled: false,
        };
        self.actions.push_back(Action::Accept(request, attempt));
    }

    fn close(&mut self, attempt: Attempt, wait: Duration, request: Option<(RequestId, Duration)>) {
        self.actions.push_back(Action::Close(attempt));
        self.state = LinkState::Closing {
            attempt,
            wait,
            request,
        };
    }

    /// Marks an attempt as established; `false` if the attempt is not the current one.
    pub fn established(&mut self, attempt: Attempt) -> bool {
        match self.state {
            LinkState::Connecting { attempt: this, .. } if this == attempt => {
                self.state = LinkState::Up(attempt);
                self.was_refused = false;
                self.was_lost = false;
                self.failures = 0;
                true
            }
            _ => false,
        }
    }

    /// Handles the failure of an attempt, or the loss of a connection. Requests [`Action::Close`].
    pub fn failed(&mut self, attempt: Attempt, failure: Failure) {
        match self.state {
            LinkState::Connecting { attempt: this, .. } if this == attempt => {
                let wait = self.wait(failure);
                self.close(attempt, wait, None);
            }
            LinkState::Up(this) if this == attempt => {
                self.was_lost = true;
                let wait = self.random(&LOSS_BACKOFF_MS);
                self.close(attempt, wait, None);
            }
            _ => {}
        }
    }

    /// Random backoff after a failed attempt, doubled with each failure.
    fn wait(&mut self, failure: Failure) -> Duration {
        let doubled = 1 << self.failures.min(10);
        self.failures = self.failures.saturating_add(1);
        if failure == Failure::Refused {
            self.was_refused = true;
            let [lower, higher] = &REFUSAL_BACKOFF_MS;
            let range = if self.is_lower { lower } else { higher };
            return (self.random(range) * doubled).min(MAX_BACKOFF);
        }
        let max = (INITIAL_BACKOFF * doubled).min(MAX_BACKOFF);
        max.mul_f64(self.rng.f64())
    }

    fn random(&mut self, millis: &Range<u64>) -> Duration {
        Duration::from_millis(self.rng.u64(millis.clone()))
    }

    /// Handles the end of closing: the device has released the resources of an attempt.
    pub fn closed(&mut self, now: Duration, attempt: Attempt) {
        match self.state {
            LinkState::Closing {
                attempt: this,
                wait,
                request,
            } if this == attempt => match request {
                Some((request, since)) => self.state = LinkState::Pending { request, since },
                None => self.state = LinkState::Down(now + wait),
            },
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 1));
    const HIGH: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 2));

    const fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn link(is_lower: bool, seed: u64) -> Link {
        let (local, peer) = if is_lower { (LOW, HIGH) } else { (HIGH, LOW) };
        Link::new(local, peer, seed)
    }

    fn dial(link: &mut Link, now: Duration) -> Attempt {
        match link.poll(now, Demand::Messages) {
            Some(Action::Dial(attempt)) => attempt,
            other => panic!("{other:?} at {now:?}"),
        }
    }

    fn accepted(link: &mut Link, now: Duration) -> (RequestId, Attempt) {
        link.admit(now);
        match link.poll(now, Demand::Nothing) {
            Some(Action::Accept(request, attempt)) => (request, attempt),
            other => panic!("{other:?} at {now:?}"),
        }
    }

    fn all(link: &mut Link, now: Duration) -> Vec<Action> {
        std::iter::from_fn(|| link.poll(now, Demand::Nothing)).collect()
    }

    fn up(is_lower: bool) -> (Link, Attempt) {
        let mut link = link(is_lower, 1);
        let attempt = dial(&mut link, at(0));
        assert!(link.established(attempt));
        (link, attempt)
    }

    const R: RequestId = RequestId(1);
    const S: RequestId = RequestId(2);

    /// No dialing without demand.
    #[test]
    fn link_down_dials_on_demand_or_accepts() {
        let mut link = link(true, 1);
        assert_eq!(link.poll(at(0), Demand::Nothing), None);
        assert_eq!(link.poll(at(0), Demand::Sockets), None);
        assert_eq!(link.deadline(Demand::Sockets), None);
        assert_eq!(link.deadline(Demand::Messages), Some(at(0)));
        link.request(at(0), R);
        let (request, attempt) = accepted(&mut link, at(0));
        assert_eq!(request, R);
        assert!(!link.is_up() && link.established(attempt) && link.is_up());
        assert!(!link.established(attempt), "once");
    }

    /// Crossed requests.
    #[test]
    fn crossed_requests_higher_address_yields() {
        let mut lower = link(true, 1);
        dial(&mut lower, at(0));
        lower.request(at(5), R);
        assert_eq!(all(&mut lower, at(5)), [Action::Reject(R)]);
        let mut higher = link(false, 1);
        let attempt = dial(&mut higher, at(0));
        higher.request(at(5), R);
        assert_eq!(all(&mut higher, at(5)), [Action::Close(attempt)]);
        assert!(!higher.established(attempt), "it is too late for that");
        higher.closed(at(6), attempt);
        assert_eq!(accepted(&mut higher, at(6)).0, R);
    }

    #[test]
    fn crossed_requests_lower_address_yields_late_or_after_reject() {
        let mut old = link(true, 1);
        let attempt = dial(&mut old, at(0));
        old.request(at(2000), R);
        assert_eq!(all(&mut old, at(2000)), [Action::Close(attempt)]);
        let mut refused = link(true, 1);
        let attempt = dial(&mut refused, at(0));
        refused.failed(attempt, Failure::Refused);
        assert_eq!(all(&mut refused, at(1)), [Action::Close(attempt)]);
        refused.closed(at(1), attempt);
        let attempt = dial(&mut refused, at(100));
        refused.request(at(101), R);
        assert_eq!(all(&mut refused, at(101)), [Action::Close(attempt)]);
        refused.closed(at(101), attempt);
        let (_, attempt) = accepted(&mut refused, at(101));
        // The next connection clears the rejection.
        assert!(refused.established(attempt));
        refused.failed(attempt, Failure::Lost);
        refused.closed(at(102), attempt);
        assert_eq!(all(&mut refused, at(102)), [Action::Close(attempt)]);
        dial(&mut refused, at(400));
        refused.request(at(401), R);
        assert_eq!(all(&mut refused, at(401)), [Action::Reject(R)]);
    }

    /// The old connection closes first, and only the newest request counts.
    #[test]
    fn request_while_up_replaces_the_connection() {
        let (mut link, attempt) = up(true);
        link.request(at(1), R);
        assert!(!link.is_up());
        assert_eq!(all(&mut link, at(1)), [Action::Close(attempt)]);
        link.request(at(2), S);
        assert_eq!(all(&mut link, at(2)), [Action::Reject(R)]);
        link.closed(at(3), Attempt(99));
        assert_eq!(all(&mut link, at(3)), [], "that was another");
        link.closed(at(3), attempt);
        let (request, second) = accepted(&mut link, at(3));
        assert_eq!(request, S);
        assert_ne!(second, attempt);
        // A newer request also replaces an accepted one.
        link.request(at(4), R);
        assert_eq!(all(&mut link, at(4)), [Action::Close(second)]);
    }

    #[test]
    fn connect_attempt_times_out() {
        let (mut link, attempt) = up(true);
        link.request(at(1), R);
        assert_eq!(all(&mut link, at(1000)), [Action::Close(attempt)]);
        assert_eq!(link.deadline(Demand::Nothing), Some(at(1001)));
        assert_eq!(all(&mut link, at(1001)), [Action::Reject(R)]);
        link.closed(at(1002), attempt);
        assert_eq!(all(&mut link, at(1002)), []);
        let attempt = dial(&mut link, at(1002));
        assert_eq!(link.deadline(Demand::Nothing), Some(at(11_002)));
        assert_eq!(all(&mut link, at(11_001)), []);
        assert_eq!(all(&mut link, at(11_002)), [Action::Close(attempt)]);
    }

    #[test]
    fn reconnect_after_loss_is_tried_once() {
        let (mut link, attempt) = up(true);
        link.failed(attempt, Failure::Lost);
        assert_eq!(all(&mut link, at(1)), [Action::Close(attempt)]);
        link.closed(at(1), attempt);
        let when = link.deadline(Demand::Sockets).unwrap();
        assert!(link.poll(when, Demand::Nothing).is_none());
        let dialled = link.poll(when, Demand::Sockets);
        let Some(Action::Dial(attempt)) = dialled else {
            panic!("{dialled:?}");
        };
        link.failed(attempt, Failure::Unreachable);
        link.closed(when, attempt);
        assert_eq!(all(&mut link, when), [Action::Close(attempt)]);
        assert_eq!(link.deadline(Demand::Sockets), None);
    }

    #[test]
    fn reconnect_backoff_doubles_to_one_second_and_resets() {
        for seed in 0..200 {
            for is_lower in [true, false] {
                for failure in [Failure::Refused, Failure::Unreachable] {
                    let mut link = link(is_lower, seed);
                    for round in 0..15 {
                        let wait = fail(&mut link, failure);
                        let doubled = 1 << round.min(10);
                        let (min, max) = match (failure, is_lower) {
                            (Failure::Refused, true) => (10, 50),
                            (Failure::Refused, false) => (50, 200),
                            _ => (0, 1),
                        };
                        let min = at(min * doubled).min(at(1000));
                        let max = at(max * doubled).min(at(1000));
                        assert!(min <= wait && wait <= max, "{wait:?} in round {round}");
                    }
                    let attempt = dial(&mut link, at(100_000));
                    assert!(link.established(attempt));
                    link.failed(attempt, Failure::Lost);
                    assert_eq!(all(&mut link, at(0)), [Action::Close(attempt)]);
                    link.closed(at(0), attempt);
                    let wait = link.deadline(Demand::Messages).unwrap();
                    assert!((at(20)..at(200)).contains(&wait));
                    let wait = fail(&mut link, Failure::Unreachable);
                    assert!(wait <= at(1), "the first wait is short again");
                }
            }
        }
    }

    /// Dials at the deadline and fails; returns the backoff.
    fn fail(link: &mut Link, failure: Failure) -> Duration {
        let now = link.deadline(Demand::Messages).unwrap();
        let attempt = dial(link, now);
        link.failed(attempt, failure);
        assert_eq!(all(link, now), [Action::Close(attempt)]);
        link.closed(now, attempt);
        link.deadline(Demand::Messages).unwrap() - now
    }
}
