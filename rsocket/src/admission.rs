//! Admission of connection requests: serve at once, displace a half-open connection, hold back, or reject.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    time::{Duration, Instant},
};

/// Minimum age of a half-open connection that any request may displace. A handshake takes milliseconds; after
/// a lost RTU, seconds. Without competing requests, an older handshake continues.
const DISPLACE_AFTER: Duration = Duration::from_secs(1);

/// Number of addresses with younger half-open connections after which any request may displace the oldest, at any
/// age. Serving a request takes about as long as a handshake, so an honest peer has completed by then. Without
/// this bound, a flood from many addresses reoccupies each place as soon as its age limit expires. Addresses are
/// counted, not connections: many requests of one honest peer at once come faster than its handshakes. In a
/// backlog of at most this length, only the age counts.
const DISPLACE_BEHIND: usize = 16;

/// Minimum per-address limit of [`Limits::new`], for backlogs with at least as many places.
const MIN_PER_ADDRESS: usize = 16;

/// The limits of a listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum number of connections that are half-open or wait to be accepted.
    pub(crate) places: usize,
    /// Maximum number of half-open connections from one address.
    pub(crate) per_address: usize,
}

impl Limits {
    /// Returns the limits for a backlog. The default per-address limit is three quarters of the backlog,
    /// which keeps one address from filling a long backlog.
    pub(crate) fn new(backlog: u32, per_address: Option<u32>) -> Self {
        let places = usize::try_from(backlog.max(1)).unwrap_or(usize::MAX);
        let default = (places - places / 4).max(MIN_PER_ADDRESS);
        let per_address = per_address.map_or(default, |limit| {
            usize::try_from(limit.max(1)).unwrap_or(usize::MAX)
        });
        Self {
            places,
            per_address,
        }
    }
}

/// Decision about one connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision<K> {
    Serve,
    /// Serve the request after ending this half-open connection.
    ServeInsteadOf(K),
    Reject,
}

/// Half-open connections of a listener: accepted, RTU outstanding.
#[derive(Debug)]
pub(crate) struct Admission<K> {
    /// Ordered by the arrival of their requests.
    half_open: Vec<HalfOpen<K>>,
}

#[derive(Debug)]
struct HalfOpen<K> {
    key: K,
    addr: IpAddr,
    since: Instant,
}

impl<K> Default for Admission<K> {
    fn default() -> Self {
        Self {
            half_open: Vec::new(),
        }
    }
}

impl<K: Copy + Eq> Admission<K> {
    /// Decides about a request from `addr` while `waiting` established connections are not accepted yet.
    pub(crate) fn decide(
        &self,
        addr: IpAddr,
        now: Instant,
        waiting: usize,
        limits: Limits,
    ) -> Decision<K> {
        let own = self.of(addr).count();
        let displaced = if own >= limits.per_address {
            self.of(addr)
                .next()
                .filter(|oldest| self.yields(oldest, now))
        } else if self.half_open.len().saturating_add(waiting) < limits.places {
            return Decision::Serve;
        } else {
            let oldest = self.half_open.first();
            self.of_greediest(own)
                .or_else(|| oldest.filter(|oldest| self.yields(oldest, now)))
        };
        displaced.map_or(Decision::Reject, |displaced| {
            Decision::ServeInsteadOf(displaced.key)
        })
    }

    /// Returns the number of half-open connections of an address.
    pub(crate) fn count(&self, addr: IpAddr) -> usize {
        self.of(addr).count()
    }

    /// Returns the half-open connections of an address, the oldest first.
    fn of(&self, addr: IpAddr) -> impl Iterator<Item = &HalfOpen<K>> {
        self.half_open
            .iter()
            .filter(move |half_open| half_open.addr == addr)
    }

    /// Returns the oldest half-open connection of the address with the most. `None` if that address has at
    /// most one more than `own`: displacement would only reverse the imbalance.
    fn of_greediest(&self, own: usize) -> Option<&HalfOpen<K>> {
        let mut counts = HashMap::new();
        for half_open in &self.half_open {
            *counts.entry(half_open.addr).or_insert(0) += 1;
        }
        let most = counts.into_values().max().filter(|&most| most > own + 1)?;
        // Several addresses may have equal counts; the one with the oldest connection loses it.
        let of_such = |half_open: &&HalfOpen<K>| self.of(half_open.addr).count() == most;
        self.half_open.iter().find(of_such)
    }

    /// Whether a request may displace this half-open connection.
    fn yields(&self, half_open: &HalfOpen<K>, now: Instant) -> bool {
        let age = now.saturating_duration_since(half_open.since);
        let later = self.half_open.iter().rev();
        let later = later.take_while(|other| other.key != half_open.key);
        let addrs = later.map(|other| other.addr).collect::<HashSet<_>>();
        age >= DISPLACE_AFTER || addrs.len() >= DISPLACE_BEHIND
    }

    /// Adds a half-open connection.
    pub(crate) fn begin(&mut self, key: K, addr: IpAddr, now: Instant) {
        self.half_open.push(HalfOpen {
            key,
            addr,
            since: now,
        });
    }

    /// Removes a half-open connection, established or failed. Returns whether the key was known.
    pub(crate) fn end(&mut self, key: K) -> bool {
        let before = self.half_open.len();
        self.half_open.retain(|half_open| half_open.key != key);
        self.half_open.len() < before
    }

    /// Returns the keys of all half-open connections.
    pub(crate) fn keys(&self) -> Vec<K> {
        self.half_open
            .iter()
            .map(|half_open| half_open.key)
            .collect()
    }
}

/// Maximum number of requests that a listener holds back. Each uses a kernel identifier and no device memory.
const MAX_HELD: usize = 128;

/// Maximum age of a held request. The peer's connection manager gives up after about a minute.
const HELD_FOR: Duration = Duration::from_secs(90);

/// Requests waiting for a place, like those beyond the backlog of a TCP listener.
#[derive(Debug)]
pub(crate) struct Held<R> {
    /// In order of arrival.
    requests: Vec<(IpAddr, Instant, R)>,
}

impl<R> Default for Held<R> {
    fn default() -> Self {
        Self {
            requests: Vec::new(),
        }
    }
}

impl<R> Held<R> {
    /// Holds a request back. When full, returns the request to refuse: the youngest of the address with the
    /// most, or the new one.
    pub(crate) fn hold(&mut self, addr: IpAddr, now: Instant, request: R) -> Option<R> {
        let mut refused = None;
        if self.requests.len() >= MAX_HELD {
            let own = self.of(addr);
            let greediest = |entry: &(IpAddr, Instant, R)| self.of(entry.0);
            let most = self.requests.iter().map(greediest).max().unwrap_or(0);
            if most <= own + 1 {
                return Some(request);
            }
            let youngest = self
                .requests
                .iter()
                .rposition(|entry| greediest(entry) == most);
            refused = youngest.map(|index| self.requests.remove(index).2);
        }
        self.requests.push((addr, now, request));
        refused
    }

    fn of(&self, addr: IpAddr) -> usize {
        self.requests.iter().filter(|entry| entry.0 == addr).count()
    }

    /// Takes the next servable request: the smallest `load` of its address first, then the oldest.
    pub(crate) fn take(
        &mut self,
        load: impl Fn(IpAddr) -> usize,
        can_be_served: impl Fn(IpAddr) -> bool,
    ) -> Option<R> {
        let servable = self.requests.iter().enumerate();
        let servable = servable.filter(|(_, (addr, ..))| can_be_served(*addr));
        let (index, _) = servable.min_by_key(|(index, (addr, ..))| (load(*addr), *index))?;
        Some(self.requests.remove(index).2)
    }

    /// Takes the requests held for at least `HELD_FOR`.
    pub(crate) fn expired(&mut self, now: Instant) -> Vec<R> {
        let is_old = |entry: &mut (IpAddr, Instant, R)| now - entry.1 >= HELD_FOR;
        self.requests
            .extract_if(.., is_old)
            .map(|(.., request)| request)
            .collect()
    }

    /// Takes the first request for which `is_meant` holds.
    pub(crate) fn remove(&mut self, is_meant: impl Fn(&R) -> bool) -> Option<R> {
        let found = self.requests.iter().position(|entry| is_meant(&entry.2))?;
        Some(self.requests.remove(found).2)
    }

    /// Iterates over all held requests in order of arrival.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &R> {
        self.requests.iter().map(|(.., request)| request)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(host: u8) -> IpAddr {
        IpAddr::from([10, 9, 0, host])
    }

    /// Creates an admission with half-open connections of these hosts; the keys are their indices.
    fn with(hosts: impl IntoIterator<Item = u8>, now: Instant) -> Admission<usize> {
        let mut admission = Admission::default();
        for (key, host) in hosts.into_iter().enumerate() {
            admission.begin(key, addr(host), now);
        }
        admission
    }

    const LIMITS: Limits = Limits {
        places: 4,
        per_address: 3,
    };

    #[test]
    fn default_limits_leave_a_quarter_of_the_backlog_to_other_addresses() {
        let limits = |backlog, per_address| {
            let limits = Limits::new(backlog, per_address);
            (limits.places, limits.per_address)
        };
        assert_eq!(limits(128, None), (128, 96));
        assert_eq!(limits(0, None), (1, 16));
        assert_eq!(limits(20, None), (20, 16));
        assert_eq!(limits(21, None), (21, 16));
        assert_eq!(limits(24, None), (24, 18));
        assert_eq!(limits(128, Some(5)), (128, 5));
        assert_eq!(limits(128, Some(0)), (128, 1));
    }

    #[test]
    fn request_beyond_the_backlog_is_rejected() {
        let now = Instant::now();
        let decide = |waiting, hosts: &[u8]| {
            with(hosts.iter().copied(), now).decide(addr(9), now, waiting, LIMITS)
        };
        assert_eq!(decide(0, &[]), Decision::Serve);
        assert_eq!(decide(0, &[1, 2, 3]), Decision::Serve);
        assert_eq!(decide(2, &[1]), Decision::Serve);
        assert_eq!(decide(3, &[1]), Decision::Reject);
        assert_eq!(
            decide(4, &[]),
            Decision::Reject,
            "only accept(2) makes room"
        );
        assert_eq!(decide(usize::MAX, &[1]), Decision::Reject);
    }

    #[test]
    fn address_at_its_limit_displaces_its_own_oldest() {
        let now = Instant::now();
        let admission = with([1, 2, 2, 2], now);
        let decide = |after| admission.decide(addr(2), now + after, 0, LIMITS);
        assert_eq!(decide(Duration::ZERO), Decision::Reject);
        let just_before = DISPLACE_AFTER - Duration::from_nanos(1);
        assert_eq!(decide(just_before), Decision::Reject);
        assert_eq!(decide(DISPLACE_AFTER), Decision::ServeInsteadOf(1));
        // The per-address limit applies even with free places.
        let admission = with([2, 2, 2], now);
        assert_eq!(admission.decide(addr(2), now, 0, LIMITS), Decision::Reject);
    }

    #[test]
    fn address_with_most_half_open_connections_is_displaced_at_once() {
        let now = Instant::now();
        let decide = |hosts: &[u8], host| {
            with(hosts.iter().copied(), now).decide(addr(host), now, 0, LIMITS)
        };
        assert_eq!(decide(&[1, 2, 2, 2], 9), Decision::ServeInsteadOf(1));
        assert_eq!(decide(&[1, 1, 2, 2], 9), Decision::ServeInsteadOf(0));
        assert_eq!(decide(&[2, 1, 2, 2], 1), Decision::ServeInsteadOf(0));
        // Displacement would only reverse the difference.
        assert_eq!(decide(&[1, 1, 2, 2], 1), Decision::Reject);
        assert_eq!(decide(&[1, 2, 3, 4], 9), Decision::Reject);
    }

    #[test]
    fn oldest_half_open_connection_after_a_second_is_displaced() {
        let start = Instant::now();
        let later = start + Duration::from_millis(500);
        let mut admission = with([1, 2], start);
        admission.begin(2, addr(3), later);
        admission.begin(3, addr(4), later);
        let decide = |now| admission.decide(addr(9), now, 0, LIMITS);
        assert_eq!(decide(later), Decision::Reject);
        assert_eq!(decide(start + DISPLACE_AFTER), Decision::ServeInsteadOf(0));
    }

    #[test]
    fn oldest_half_open_connection_before_many_later_ones_is_displaced() {
        let now = Instant::now();
        let decide = |hosts: u8, limits| with(1..=hosts, now).decide(addr(200), now, 0, limits);
        let places = |places| Limits {
            places,
            per_address: 3,
        };
        assert_eq!(decide(16, places(16)), Decision::Reject);
        assert_eq!(decide(17, places(17)), Decision::ServeInsteadOf(0));
        // An address at its limit, with younger connections of 15 or 16 addresses after its first.
        let own = |others: u8| {
            let hosts = [200, 200, 200].into_iter().chain(1..=others);
            with(hosts, now).decide(addr(200), now, 0, places(100))
        };
        assert_eq!(own(14), Decision::Reject);
        assert_eq!(own(15), Decision::ServeInsteadOf(0));
    }

    /// With any number of connections not accepted.
    #[test]
    fn many_requests_of_one_address_at_once_displace_none() {
        let now = Instant::now();
        let limits = Limits::new(30, None);
        for waiting in 0..=limits.places {
            let half_open = limits.per_address.min(limits.places - waiting);
            let admission = with(std::iter::repeat_n(1, half_open), now);
            let decide = |now| admission.decide(addr(1), now, waiting, limits);
            assert_eq!(decide(now), Decision::Reject, "{waiting}");
        }
    }

    #[test]
    fn held_requests_are_served_by_load_and_age() {
        let now = Instant::now();
        let mut held = Held::default();
        for (request, host) in [1, 1, 2, 3].into_iter().enumerate() {
            assert_eq!(held.hold(addr(host), now, request), None);
        }
        let load = |ip: IpAddr| usize::from(ip == addr(1));
        // The request of host 2 came before that of host 3; host 1 already has a connection.
        assert_eq!(held.take(load, |_| true), Some(2));
        assert_eq!(held.take(load, |ip| ip == addr(1)), Some(0));
        assert_eq!(held.take(load, |_| false), None);
        assert_eq!(held.remove(|&request| request == 3), Some(3));
        assert_eq!(held.remove(|&request| request == 3), None);
        assert_eq!(held.iter().collect::<Vec<_>>(), [&1]);
        assert!(!held.is_empty());
        let late = now + HELD_FOR;
        assert_eq!(held.expired(late - Duration::from_nanos(1)), [0; 0]);
        assert_eq!(held.expired(late), [1]);
        assert!(held.is_empty());
    }

    /// The number of held requests is bounded, and a flood from one address leaves room for others.
    #[test]
    fn held_requests_are_bounded_and_shared_by_address() {
        let now = Instant::now();
        let mut held = Held::default();
        for request in 0..MAX_HELD {
            assert_eq!(held.hold(addr(1), now, request), None);
        }
        assert_eq!(held.hold(addr(1), now, 1000), Some(1000));
        // An honest host displaces the youngest request of the flood.
        assert_eq!(held.hold(addr(2), now, 2000), Some(MAX_HELD - 1));
        assert_eq!(held.iter().count(), MAX_HELD);
        assert_eq!(held.of(addr(2)), 1);
        // Displacement continues until both hosts hold equally many.
        let refused = (0..MAX_HELD).map(|request| held.hold(addr(2), now, 3000 + request));
        let own = refused.flatten().filter(|&refused| refused >= 3000).count();
        assert!(own >= MAX_HELD / 2, "{own}");
        assert!(held.of(addr(1)).abs_diff(held.of(addr(2))) <= 1);
    }

    #[test]
    fn ended_connection_makes_room_for_a_request() {
        let now = Instant::now();
        let mut admission = with([1, 2, 3, 4], now);
        assert_eq!(admission.keys(), [0, 1, 2, 3]);
        assert!(admission.end(2));
        assert!(!admission.end(2));
        assert_eq!(admission.keys(), [0, 1, 3]);
        assert_eq!(admission.decide(addr(9), now, 0, LIMITS), Decision::Serve);
    }

    /// 5,000 requests per second from one, seven and 250 addresses: an honest client with five attempts per
    /// second is always served, and has 10 ms to complete each handshake.
    #[test]
    fn flood_of_half_open_connections_admits_other_clients() {
        const HONEST: u8 = 254;
        let limits = Limits::new(128, None);
        for hosts in [1, 7, 250] {
            let start = Instant::now();
            let mut admission = Admission::default();
            let mut completed = 0;
            for number in 0..20_000_usize {
                let now = start + Duration::from_micros(200) * u32::try_from(number).unwrap();
                let host = u8::try_from(number % hosts).unwrap();
                let from = if number % 1000 == 999 { HONEST } else { host };
                if number % 1000 == 50 && number > 1000 {
                    // The honest client's RTU.
                    completed += usize::from(admission.end(number - 51));
                }
                match admission.decide(addr(from), now, 0, limits) {
                    Decision::Serve => {}
                    Decision::ServeInsteadOf(key) => assert!(admission.end(key)),
                    Decision::Reject => continue,
                }
                admission.begin(number, addr(from), now);
                assert!(admission.half_open.len() <= limits.places);
            }
            assert_eq!(completed, 19, "of a flood from {hosts} addresses");
        }
    }
}
