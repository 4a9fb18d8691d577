//! Admission of connection requests: serve at once, displace a half-open connection, hold back, or reject.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    hash::Hash,
    net::IpAddr,
    time::{Duration, Instant},
};

/// Minimum age of a half-open connection that any request may displace. A handshake takes milliseconds; after
/// a lost RTU, seconds. Without competing requests, an older handshake continues.
const DISPLACE_AFTER: Duration = Duration::from_secs(1);

/// Number of addresses with younger half-open connections after which any request may displace the oldest, at any
/// age. Serving a request takes about as long as a handshake, so an honest peer has completed by then. Without
/// this bound, a flood from many addresses reoccupies each entry as soon as its age limit expires. Addresses are
/// counted, not connections: many requests of one honest peer at once arrive faster than its handshakes. In a
/// backlog of at most this length, only the age counts.
const DISPLACE_BEHIND: usize = 16;

/// Divisor of the backlog: the part that one address leaves to the others, by default.
const OTHERS_PART: usize = 4;

/// Minimum per-address limit of [`Limits::new`], for backlogs of at least this length.
const MIN_PER_ADDRESS: usize = 16;

/// Maximum backlog if `net.core.somaxconn` cannot be read: the kernel's default.
const SOMAXCONN: u32 = 4096;

/// Maximum backlog of a listener: `net.core.somaxconn`, as for TCP.
pub(crate) fn max_backlog() -> u32 {
    let sysctl = fs::read_to_string("/proc/sys/net/core/somaxconn");
    let connections = sysctl.ok().and_then(|text| text.trim().parse().ok());
    connections.unwrap_or(SOMAXCONN)
}

/// The limits of a listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum number of connections that are half-open or wait to be accepted.
    pub(crate) backlog: usize,
    /// Maximum number of half-open connections from one address.
    pub(crate) per_address: usize,
}

impl Limits {
    /// Returns the limits for a backlog. The default per-address limit is three quarters of the backlog,
    /// which keeps one address from filling a long backlog.
    pub(crate) fn new(backlog: u32, per_address: Option<u32>) -> Self {
        let backlog = usize::try_from(backlog.max(1)).unwrap_or(usize::MAX);
        let default = (backlog - backlog / OTHERS_PART).max(MIN_PER_ADDRESS);
        let per_address = per_address.map_or(default, |limit| {
            usize::try_from(limit.max(1)).unwrap_or(usize::MAX)
        });
        Self {
            backlog,
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
///
/// Each decision costs a logarithm of the backlog.
#[derive(Debug)]
pub(crate) struct Admission<K> {
    /// By the serial numbers of their requests.
    half_open: BTreeMap<u64, HalfOpenEntry<K>>,
    serials: HashMap<K, u64>,
    next_serial: u64,
    /// Serial numbers by address.
    addrs: HashMap<IpAddr, BTreeSet<u64>>,
    /// The addresses by number of half-open connections, and by the serial number of the oldest.
    by_count: BTreeSet<(usize, Reverse<u64>)>,
    /// The youngest serial number of each address.
    youngest: BTreeSet<u64>,
}

#[derive(Debug)]
struct HalfOpenEntry<K> {
    key: K,
    addr: IpAddr,
    since: Instant,
}

impl<K> Default for Admission<K> {
    fn default() -> Self {
        Self {
            half_open: BTreeMap::new(),
            serials: HashMap::new(),
            next_serial: 0,
            addrs: HashMap::new(),
            by_count: BTreeSet::new(),
            youngest: BTreeSet::new(),
        }
    }
}

impl<K: Copy + Eq + Hash> Admission<K> {
    /// Decides about a request from `addr` while `waiting` established connections are not accepted yet.
    pub(crate) fn decide(
        &self,
        addr: IpAddr,
        now: Instant,
        waiting: usize,
        limits: Limits,
    ) -> Decision<K> {
        if self.count(addr) >= limits.per_address {
            let serials = self.addrs.get(&addr);
            let oldest = serials.and_then(BTreeSet::first).copied();
            return self.displace(oldest.filter(|&oldest| self.is_displaceable(oldest, now)));
        }
        if self.half_open.len().saturating_add(waiting) < limits.backlog {
            return Decision::Serve;
        }
        self.decide_exhausted(addr, now)
    }

    /// Decides about a request from `addr` without a free entry of the backlog, memory or device object: only
    /// the end of a half-open connection frees one.
    pub(crate) fn decide_exhausted(&self, addr: IpAddr, now: Instant) -> Decision<K> {
        let oldest = self.half_open.first_key_value().map(|(&serial, _)| serial);
        let displaced = self
            .oldest_of_largest(self.count(addr))
            .or_else(|| oldest.filter(|&oldest| self.is_displaceable(oldest, now)));
        self.displace(displaced)
    }

    fn displace(&self, serial: Option<u64>) -> Decision<K> {
        let displaced = serial.and_then(|serial| self.half_open.get(&serial));
        displaced.map_or(Decision::Reject, |displaced| {
            Decision::ServeInsteadOf(displaced.key)
        })
    }

    /// Returns the number of half-open connections of an address.
    pub(crate) fn count(&self, addr: IpAddr) -> usize {
        self.addrs.get(&addr).map_or(0, BTreeSet::len)
    }

    /// Returns the oldest half-open connection of the address with the most; of several such addresses, of the one
    /// with the oldest connection. `None` if that address has at most one more than `count`: displacement would only
    /// reverse the imbalance.
    fn oldest_of_largest(&self, count: usize) -> Option<u64> {
        let (largest, Reverse(oldest)) = self.by_count.last()?;
        (*largest > count + 1).then_some(*oldest)
    }

    /// Whether any request may displace this half-open connection.
    fn is_displaceable(&self, serial: u64, now: Instant) -> bool {
        let since = self.half_open.get(&serial).map(|found| found.since);
        let age = since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let younger = self.youngest.range(serial + 1..).take(DISPLACE_BEHIND);
        age >= DISPLACE_AFTER || younger.count() >= DISPLACE_BEHIND
    }

    /// Adds a half-open connection.
    pub(crate) fn begin(&mut self, key: K, addr: IpAddr, now: Instant) {
        let serial = self.next_serial;
        self.next_serial += 1;
        let half_open = HalfOpenEntry {
            key,
            addr,
            since: now,
        };
        self.half_open.insert(serial, half_open);
        self.serials.insert(key, serial);
        self.change(addr, |serials| serials.insert(serial));
    }

    /// Removes a half-open connection, established or failed. Returns whether there was one.
    pub(crate) fn end(&mut self, key: K) -> bool {
        let serial = self.serials.remove(&key);
        let ended = serial.and_then(|serial| Some((serial, self.half_open.remove(&serial)?)));
        let Some((serial, half_open)) = ended else {
            return false;
        };
        self.change(half_open.addr, |serials| serials.remove(&serial));
        true
    }

    /// Changes the half-open connections of an address, and its positions in the orders.
    fn change(&mut self, addr: IpAddr, change: impl FnOnce(&mut BTreeSet<u64>) -> bool) {
        let serials = self.addrs.entry(addr).or_default();
        if let (Some(&oldest), Some(youngest)) = (serials.first(), serials.last()) {
            self.by_count.remove(&(serials.len(), Reverse(oldest)));
            self.youngest.remove(youngest);
        }
        change(serials);
        if let (Some(&oldest), Some(&youngest)) = (serials.first(), serials.last()) {
            self.by_count.insert((serials.len(), Reverse(oldest)));
            self.youngest.insert(youngest);
        } else {
            self.addrs.remove(&addr);
        }
    }

    /// Returns the keys of all half-open connections.
    pub(crate) fn keys(&self) -> Vec<K> {
        self.half_open
            .values()
            .map(|half_open| half_open.key)
            .collect()
    }
}

/// Maximum number of requests that a listener holds back. Each uses a kernel identifier and no device memory.
const MAX_DEFERRED: usize = 128;

/// Maximum age of a deferred request. The peer's connection manager gives up after about a minute.
const DEFER_TIMEOUT: Duration = Duration::from_secs(90);

/// A request without an entry of the backlog.
#[derive(Debug)]
pub(crate) struct DeferredRequest<R> {
    pub(crate) addr: IpAddr,
    since: Instant,
    pub(crate) request: R,
}

impl<R> DeferredRequest<R> {
    pub(crate) fn new(addr: IpAddr, now: Instant, request: R) -> Self {
        Self {
            addr,
            since: now,
            request,
        }
    }
}

/// Requests waiting for an entry of the backlog, like those beyond the backlog of a TCP listener.
#[derive(Debug)]
pub(crate) struct DeferredRequests<R> {
    /// In order of arrival.
    requests: Vec<DeferredRequest<R>>,
    counts: HashMap<IpAddr, usize>,
}

impl<R> Default for DeferredRequests<R> {
    fn default() -> Self {
        Self {
            requests: Vec::new(),
            counts: HashMap::new(),
        }
    }
}

impl<R> DeferredRequests<R> {
    /// Holds a request back. When full, returns the request to refuse: the youngest of the address with the
    /// most, or the new one.
    pub(crate) fn defer(&mut self, addr: IpAddr, now: Instant, request: R) -> Option<R> {
        let mut refused = None;
        if self.requests.len() >= MAX_DEFERRED {
            let largest = self.counts.values().copied().max().unwrap_or(0);
            if largest <= self.count(addr) + 1 {
                return Some(request);
            }
            let is_of_largest = |entry: &DeferredRequest<R>| self.count(entry.addr) == largest;
            let youngest = self.requests.iter().rposition(is_of_largest);
            refused = youngest.map(|index| self.remove_at(index).request);
        }
        let request = DeferredRequest::new(addr, now, request);
        self.insert(self.requests.len(), request);
        refused
    }

    /// Holds a request back again that could not be served, before all others.
    pub(crate) fn put_back(&mut self, request: DeferredRequest<R>) {
        self.insert(0, request);
    }

    fn insert(&mut self, index: usize, request: DeferredRequest<R>) {
        *self.counts.entry(request.addr).or_default() += 1;
        self.requests.insert(index, request);
    }

    fn remove_at(&mut self, index: usize) -> DeferredRequest<R> {
        let removed = self.requests.remove(index);
        if let Some(count) = self.counts.get_mut(&removed.addr) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&removed.addr);
            }
        }
        removed
    }

    fn count(&self, addr: IpAddr) -> usize {
        self.counts.get(&addr).copied().unwrap_or(0)
    }

    /// Takes the next servable request: the smallest `load` of its address first, then the oldest.
    pub(crate) fn take(
        &mut self,
        load: impl Fn(IpAddr) -> usize,
        can_be_served: impl Fn(IpAddr) -> bool,
    ) -> Option<DeferredRequest<R>> {
        let servable = self.requests.iter().enumerate();
        let servable = servable.filter(|(_, request)| can_be_served(request.addr));
        let (index, _) = servable.min_by_key(|(index, request)| (load(request.addr), *index))?;
        Some(self.remove_at(index))
    }

    /// Takes the requests held for at least `DEFER_TIMEOUT`.
    pub(crate) fn expired(&mut self, now: Instant) -> Vec<R> {
        let mut expired = Vec::new();
        while let Some(request) =
            self.remove(|request| now.saturating_duration_since(request.since) >= DEFER_TIMEOUT)
        {
            expired.push(request);
        }
        expired
    }

    /// Takes the first request for which `is_meant` holds.
    pub(crate) fn remove(&mut self, is_meant: impl Fn(&DeferredRequest<R>) -> bool) -> Option<R> {
        let found = self.requests.iter().position(is_meant)?;
        Some(self.remove_at(found).request)
    }

    /// Iterates over all deferred requests in order of arrival.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &R> {
        self.requests.iter().map(|entry| &entry.request)
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
        backlog: 4,
        per_address: 3,
    };

    #[test]
    fn default_limits_leave_a_quarter_of_the_backlog_to_other_addresses() {
        let limits = |backlog, per_address| {
            let limits = Limits::new(backlog, per_address);
            (limits.backlog, limits.per_address)
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
        let limits = |backlog| Limits {
            backlog,
            per_address: 3,
        };
        assert_eq!(decide(16, limits(16)), Decision::Reject);
        assert_eq!(decide(17, limits(17)), Decision::ServeInsteadOf(0));
        // An address at its limit, with younger connections of 15 or 16 addresses after its first.
        let decide_at_limit = |count: u8| {
            let hosts = [200, 200, 200].into_iter().chain(1..=count);
            with(hosts, now).decide(addr(200), now, 0, limits(100))
        };
        assert_eq!(decide_at_limit(14), Decision::Reject);
        assert_eq!(decide_at_limit(15), Decision::ServeInsteadOf(0));
    }

    /// With any number of connections not accepted.
    #[test]
    fn many_requests_of_one_address_at_once_displace_none() {
        let now = Instant::now();
        let limits = Limits::new(30, None);
        for waiting in 0..=limits.backlog {
            let half_open = limits.per_address.min(limits.backlog - waiting);
            let admission = with(std::iter::repeat_n(1, half_open), now);
            let decide = |now| admission.decide(addr(1), now, waiting, limits);
            assert_eq!(decide(now), Decision::Reject, "{waiting}");
        }
    }

    #[test]
    fn deferred_requests_are_served_by_load_and_age() {
        let now = Instant::now();
        let mut deferred = DeferredRequests::default();
        for (request, host) in [1, 1, 2, 3].into_iter().enumerate() {
            assert_eq!(deferred.defer(addr(host), now, request), None);
        }
        let load = |ip: IpAddr| usize::from(ip == addr(1));
        // The request of host 2 came before that of host 3; host 1 already has a connection.
        let take = |requests: &mut DeferredRequests<_>, can_be_served: fn(IpAddr) -> bool| {
            requests
                .take(load, can_be_served)
                .map(|request| request.request)
        };
        assert_eq!(take(&mut deferred, |_| true), Some(2));
        assert_eq!(take(&mut deferred, |ip| ip == addr(1)), Some(0));
        assert_eq!(take(&mut deferred, |_| false), None);
        let third = |request: &DeferredRequest<_>| request.request == 3;
        assert_eq!(deferred.remove(third), Some(3));
        assert_eq!(deferred.remove(third), None);
        assert_eq!(deferred.iter().collect::<Vec<_>>(), [&1]);
        assert!(!deferred.is_empty());
        let late = now + DEFER_TIMEOUT;
        assert_eq!(deferred.expired(late - Duration::from_nanos(1)), [0; 0]);
        assert_eq!(deferred.expired(late), [1]);
        assert!(deferred.is_empty());
    }

    /// The number of deferred requests is bounded, and a flood from one address leaves room for others.
    #[test]
    fn deferred_requests_are_bounded_and_shared_by_address() {
        let now = Instant::now();
        let mut deferred = DeferredRequests::default();
        for request in 0..MAX_DEFERRED {
            assert_eq!(deferred.defer(addr(1), now, request), None);
        }
        assert_eq!(deferred.defer(addr(1), now, 1000), Some(1000));
        // An honest host displaces the youngest request of the flood.
        assert_eq!(deferred.defer(addr(2), now, 2000), Some(MAX_DEFERRED - 1));
        assert_eq!(deferred.iter().count(), MAX_DEFERRED);
        assert_eq!(deferred.count(addr(2)), 1);
        // Displacement continues until both hosts hold equally many.
        let refused = (0..MAX_DEFERRED).map(|request| deferred.defer(addr(2), now, 3000 + request));
        let refused_new = refused.flatten().filter(|&refused| refused >= 3000).count();
        assert!(refused_new >= MAX_DEFERRED / 2, "{refused_new}");
        assert!(deferred.count(addr(1)).abs_diff(deferred.count(addr(2))) <= 1);
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

    #[test]
    fn request_without_memory_displaces_as_in_a_full_backlog() {
        let now = Instant::now();
        let decide = |hosts: &[u8], host, after| {
            with(hosts.iter().copied(), now).decide_exhausted(addr(host), now + after)
        };
        let at_once = Duration::ZERO;
        assert_eq!(decide(&[1, 1], 9, at_once), Decision::ServeInsteadOf(0));
        assert_eq!(decide(&[1, 1, 1], 1, at_once), Decision::Reject);
        assert_eq!(decide(&[1], 9, at_once), Decision::Reject);
        assert_eq!(decide(&[1], 9, DISPLACE_AFTER), Decision::ServeInsteadOf(0));
        assert_eq!(decide(&[], 9, DISPLACE_AFTER), Decision::Reject);
    }

    #[test]
    fn request_deferred_again_keeps_its_age_and_precedence() {
        let now = Instant::now();
        let mut deferred = DeferredRequests::default();
        for request in [0, 1] {
            assert_eq!(deferred.defer(addr(1), now, request), None);
        }
        let later = now + DEFER_TIMEOUT;
        assert_eq!(deferred.defer(addr(1), later, 2), None);
        let first = deferred.take(|_| 0, |_| true).unwrap();
        assert_eq!((first.addr, first.request), (addr(1), 0));
        deferred.put_back(first);
        assert_eq!(deferred.iter().collect::<Vec<_>>(), [&0, &1, &2]);
        assert_eq!(
            (deferred.expired(later), deferred.count(addr(1))),
            (vec![0, 1], 1)
        );
    }

    /// Decisions of the orders kept against a search through all half-open connections.
    #[test]
    fn decision_equals_that_of_a_search_through_the_backlog() {
        let start = Instant::now();
        let limits = Limits::new(40, Some(9));
        let mut rng = fastrand::Rng::with_seed(48);
        let mut admission = Admission::default();
        let mut listed: Vec<(usize, u8, Instant)> = Vec::new();
        for key in 0..20_000 {
            let now = start + Duration::from_millis(5) * u32::try_from(key).unwrap();
            let hosts = rng.u8(1..60);
            let host = rng.u8(0..hosts);
            let decision = admission.decide(addr(host), now, 0, limits);
            assert_eq!(decision, search(&listed, host, now, limits), "{key}");
            if let Decision::ServeInsteadOf(displaced) = decision {
                assert!(admission.end(displaced));
                listed.retain(|(other, ..)| *other != displaced);
            }
            if decision != Decision::Reject {
                admission.begin(key, addr(host), now);
                listed.push((key, host, now));
            }
            if rng.u8(..) < 40 && !listed.is_empty() {
                let (ended, ..) = listed.remove(rng.usize(0..listed.len()));
                assert!(admission.end(ended));
            }
            assert_eq!(admission.keys().len(), listed.len());
        }
        for (key, ..) in listed {
            assert!(admission.end(key));
        }
        assert!(admission.addrs.is_empty() && admission.by_count.is_empty());
        assert!(admission.youngest.is_empty() && admission.serials.is_empty());
    }

    fn search(
        listed: &[(usize, u8, Instant)],
        host: u8,
        now: Instant,
        limits: Limits,
    ) -> Decision<usize> {
        let count = |host| listed.iter().filter(|entry| entry.1 == host).count();
        let is_displaceable = |index: &usize| {
            let younger: std::collections::HashSet<u8> =
                listed[index + 1..].iter().map(|entry| entry.1).collect();
            now - listed[*index].2 >= DISPLACE_AFTER || younger.len() >= DISPLACE_BEHIND
        };
        let displaced = if count(host) >= limits.per_address {
            let oldest = listed.iter().position(|entry| entry.1 == host);
            oldest.filter(is_displaceable)
        } else if listed.len() < limits.backlog {
            return Decision::Serve;
        } else {
            let largest = listed.iter().map(|entry| count(entry.1)).max().unwrap();
            let oldest_of_largest = listed.iter().position(|entry| count(entry.1) == largest);
            oldest_of_largest
                .filter(|_| largest > count(host) + 1)
                .or(Some(0).filter(is_displaceable))
        };
        displaced.map_or(Decision::Reject, |index| {
            Decision::ServeInsteadOf(listed[index].0)
        })
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
                assert!(admission.half_open.len() <= limits.backlog);
            }
            assert_eq!(completed, 19, "of a flood from {hosts} addresses");
        }
    }
}
