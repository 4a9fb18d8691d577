//! State machine of a datagram socket.

use std::{collections::VecDeque, net::SocketAddr, ops::Range, time::Duration};

use super::{
    canonical,
    header::{BadDatagram, Exchange, Operation, Origin},
    peers::{Peers, Route},
    stats::DatagramStats,
};
use crate::stream::{Direction, Readiness};

/// A datagram socket: its peers, received datagrams, and the number of messages in flight.
///
/// `L` names a local endpoint, `W` is a route to a peer, and `M` stores a message. Times are durations since
/// an arbitrary start.
#[derive(Debug)]
pub struct Node<L, W, M> {
    peers: Peers<L, W>,
    arrived: VecDeque<Arrived<M>>,
    recv_depth: usize,
    sending: usize,
    send_depth: usize,
    connected: Option<SocketAddr>,
    shut_read: bool,
    shut_write: bool,
    stats: DatagramStats,
}

/// A received datagram, not yet read by the program.
#[derive(Debug)]
pub struct Arrived<M> {
    /// Address of the sender.
    pub source: SocketAddr,
    /// Storage of the message.
    pub message: M,
    /// Range of the payload in the message.
    pub range: Range<usize>,
}

/// Actions after a message over UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpOutcome<'b> {
    /// Answer the message.
    pub answer: bool,
    /// Resolve the route to the sender, and report the result to [`Node::path_resolved`].
    pub resolve: bool,
    /// Payload of a datagram, to be passed to [`Node::arrived_by_udp`].
    pub payload: Option<&'b [u8]>,
}

impl<L: Copy, W, M: AsRef<[u8]>> Node<L, W, M> {
    /// Creates a socket with limits on messages in flight and on received datagrams.
    pub fn new(send_depth: u16, recv_depth: u16) -> Self {
        Self {
            peers: Peers::new(),
            arrived: VecDeque::new(),
            recv_depth: recv_depth.into(),
            sending: 0,
            send_depth: send_depth.into(),
            connected: None,
            shut_read: false,
            shut_write: false,
            stats: DatagramStats::default(),
        }
    }

    /// Returns the local endpoint for a known peer.
    pub fn local(&self, peer: SocketAddr) -> Option<L> {
        self.peers.local(canonical(peer))
    }

    /// Number of known peers.
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    /// Adds an unknown peer.
    pub fn add_peer(&mut self, peer: SocketAddr, local: L, now: Duration) {
        self.peers.add(canonical(peer), local, now);
    }

    /// Returns the route of the next datagram to a known peer.
    pub fn route(&mut self, peer: SocketAddr, now: Duration) -> Option<Route<L, &W>> {
        self.peers.route(canonical(peer), now)
    }

    /// Lowers the limit of messages in flight to the depth of a queue pair.
    pub fn limit_sending(&mut self, max: u32) {
        self.send_depth = self.send_depth.min(max as usize);
    }

    /// Returns the counters.
    pub fn stats(&self) -> DatagramStats {
        self.stats
    }

    /// Counts a datagram sent with `len` bytes of payload.
    pub fn sent(&mut self, len: usize) {
        self.stats.datagrams_sent += 1;
        self.stats.bytes_sent += len as u64;
    }

    /// Counts a datagram sent over UDP with `len` bytes of payload.
    pub fn sent_by_udp(&mut self, len: usize) {
        self.stats.datagrams_sent_by_udp += 1;
        self.sent(len);
    }

    /// Counts a message in flight. Returns false at the limit.
    pub fn begin_send(&mut self) -> bool {
        let free = self.sending < self.send_depth;
        self.sending += usize::from(free);
        free
    }

    /// Ends a message in flight, sent or failed.
    pub fn end_send(&mut self) {
        self.sending = self.sending.saturating_sub(1);
    }

    /// Whether no message is in flight.
    pub fn is_flushed(&self) -> bool {
        self.sending == 0
    }

    /// Restricts receiving to one peer, or removes the restriction.
    pub fn connect(&mut self, peer: Option<SocketAddr>) {
        self.connected = peer.map(canonical);
    }

    /// Returns the connected peer, if any.
    pub fn connected(&self) -> Option<SocketAddr> {
        self.connected
    }

    /// Shuts down one or both directions.
    pub fn shut_down(&mut self, direction: Direction) {
        self.shut_read |= direction != Direction::Write;
        self.shut_write |= direction != Direction::Read;
    }

    /// Whether sending has been shut down.
    pub fn is_write_shut(&self) -> bool {
        self.shut_write
    }

    /// Whether receiving has been shut down. Received datagrams can still be read.
    pub fn is_read_shut(&self) -> bool {
        self.shut_read
    }

    /// Handles a message over UDP. The caller [adds](Self::add_peer) an unknown peer first.
    ///
    /// # Errors
    /// The message is malformed.
    pub fn udp_received<'b>(
        &mut self,
        peer: SocketAddr,
        bytes: &'b [u8],
        now: Duration,
    ) -> Result<UdpOutcome<'b>, BadDatagram> {
        let peer = canonical(peer);
        let (header, payload) = Exchange::decode(bytes, peer.ip())?;
        let is_data = header.operation == Operation::Data;
        Ok(UdpOutcome {
            answer: is_data,
            resolve: self
                .peers
                .qp_num_received(peer, header.qp_num, !is_data, now),
            payload: is_data.then_some(payload),
        })
    }

    /// Records the end of a route resolution, successful or not.
    pub fn path_resolved(&mut self, peer: SocketAddr, path: Option<W>, now: Duration) {
        self.peers.path_resolved(canonical(peer), path, now);
    }

    /// Removes the peers of a removed local endpoint.
    pub fn remove_local(&mut self, is_removed: impl Fn(L) -> bool) {
        self.peers.remove_local(is_removed);
    }

    /// Queues a datagram received over UDP, after [`udp_received`](Self::udp_received) has returned its payload.
    ///
    /// # Errors
    /// The datagram is dropped: the queue is full, or the source is not the connected peer.
    pub fn arrived_by_udp(&mut self, source: SocketAddr, message: M) -> Result<(), M> {
        let len = message.as_ref().len();
        self.push(canonical(source), message, 0..len)?;
        self.stats.datagrams_received_by_udp += 1;
        Ok(())
    }

    /// Queues a datagram received by a queue pair. Its header starts at `start` of `message`. `scope` is the
    /// interface of a link-local source, missing in the header.
    ///
    /// # Errors
    /// The datagram is dropped: malformed, the queue is full, or the source is not the connected peer.
    pub fn arrived(
        &mut self,
        message: M,
        start: usize,
        scope: u32,
        now: Duration,
    ) -> Result<(), M> {
        let bytes = message.as_ref();
        let Some(Ok((Origin(mut source), payload))) = bytes.get(start..).map(Origin::decode) else {
            self.stats.datagrams_dropped += 1;
            return Err(message);
        };
        let range = bytes.len() - payload.len()..bytes.len();
        if let SocketAddr::V6(source) = &mut source {
            source.set_scope_id(scope);
        }
        let peer = canonical(source);
        self.peers.message_received(peer, now);
        self.push(peer, message, range)
    }

    fn push(&mut self, source: SocketAddr, message: M, range: Range<usize>) -> Result<(), M> {
        let is_from_peer = self.connected.is_none_or(|peer| is_same(peer, source));
        if !is_from_peer || self.shut_read || self.arrived.len() >= self.recv_depth {
            self.stats.datagrams_dropped += 1;
            return Err(message);
        }
        self.stats.datagrams_received += 1;
        self.stats.bytes_received += range.len() as u64;
        self.arrived.push_back(Arrived {
            source,
            message,
            range,
        });
        Ok(())
    }

    /// Returns the next datagram to read.
    pub fn first(&self) -> Option<&Arrived<M>> {
        self.arrived.front()
    }

    /// Takes the next datagram.
    pub fn take(&mut self) -> Option<Arrived<M>> {
        self.arrived.pop_front()
    }

    /// Returns the operations possible without blocking.
    pub fn readiness(&self) -> Readiness {
        Readiness {
            readable: !self.arrived.is_empty() || self.shut_read,
            writable: self.sending < self.send_depth || self.shut_write,
            ended: self.shut_read,
            hung_up: self.shut_read && self.shut_write,
            failed: false,
        }
    }
}

/// Whether a source address is the peer's. The header lacks the interface of a link-local address, so the
/// scope is ignored.
fn is_same(peer: SocketAddr, source: SocketAddr) -> bool {
    peer.ip() == source.ip() && peer.port() == source.port()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Plain = Node<(), (), Vec<u8>>;

    const NOW: Duration = Duration::ZERO;

    fn message(from: &str, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0xee; 40];
        bytes.extend(&*Origin(from.parse().unwrap()).encode());
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn datagrams_in_queue_keep_order_and_source() {
        let mut node = Plain::new(4, 2);
        let (first, second) = ("10.9.0.1:1", "[fd00::1]:2");
        node.arrived(message(first, b"one"), 40, 0, NOW).unwrap();
        node.arrived_by_udp(second.parse().unwrap(), b"two".to_vec())
            .unwrap();
        // The queue is full; the message is returned for reuse.
        let third = node
            .arrived(message(first, b"three"), 40, 0, NOW)
            .unwrap_err();
        assert_eq!(third.len(), 40 + 8 + 5);
        for (from, payload) in [(first, b"one"), (second, b"two")] {
            let got = node.take().unwrap();
            assert_eq!(got.source, from.parse().unwrap());
            assert_eq!(&got.message[got.range], payload);
        }
        node.arrived(vec![0; 41], 40, 0, NOW).unwrap_err();
        node.sent(7);
        node.sent_by_udp(9);
        let expected = DatagramStats {
            datagrams_sent: 2,
            datagrams_sent_by_udp: 1,
            bytes_sent: 16,
            datagrams_received: 2,
            datagrams_received_by_udp: 1,
            bytes_received: 6,
            datagrams_dropped: 2,
        };
        assert_eq!(node.stats(), expected);
        assert!(node.take().is_none());
    }

    #[test]
    fn datagram_from_link_local_source_has_scope() {
        let mut node = Plain::new(4, 2);
        node.arrived(message("[fe80::1]:7", b""), 40, 3, NOW)
            .unwrap();
        let source = node.take().unwrap().source;
        assert_eq!(source, "[fe80::1%3]:7".parse().unwrap());
    }

    #[test]
    fn connected_datagram_socket_drops_other_sources() {
        let mut node = Plain::new(4, 4);
        node.connect(Some("10.9.0.1:1".parse().unwrap()));
        for (from, accepted) in [
            ("10.9.0.1:1", true),
            ("[::ffff:10.9.0.1]:1", true),
            ("10.9.0.1:2", false),
            ("10.9.0.2:1", false),
        ] {
            let arrival = node.arrived(message(from, b""), 40, 0, NOW);
            assert_eq!(arrival.is_ok(), accepted, "{from}");
        }
        node.connect(None);
        node.arrived(message("10.9.0.2:1", b""), 40, 0, NOW)
            .unwrap();
    }

    #[test]
    fn malformed_datagram_is_dropped() {
        let mut node = Plain::new(4, 4);
        let peer: SocketAddr = "[fd00::1]:2".parse().unwrap();
        // A length of 16 to 27 with version 6 crashed librdmacm.
        for len in 0..28 {
            let mut bytes = vec![0x55, 0x55, 0x55, 0x55, 6, 0, 28, 0, 0, 0, 0, 9];
            bytes.resize(len, 0);
            assert!(node.udp_received(peer, &bytes, NOW).is_err(), "{len}");
        }
        let datagram = message("[fd00::1]:2", b"");
        for len in 0..datagram.len() {
            assert!(node.arrived(datagram[..len].to_vec(), 40, 0, NOW).is_err());
        }
        assert_eq!(node.peers(), 0);
        assert!(node.first().is_none());
    }

    /// Reported room exists on every queue pair.
    #[test]
    fn smallest_send_queue_limits_datagrams_in_flight() {
        let mut node = Plain::new(3, 1);
        assert!(node.begin_send() && node.begin_send());
        node.limit_sending(5);
        assert!(node.readiness().writable);
        node.limit_sending(1);
        for _ in 0..2 {
            assert!(!node.readiness().writable && !node.begin_send());
            node.end_send();
        }
        assert!(node.readiness().writable && node.begin_send());
        assert!(!node.readiness().writable);
    }

    #[test]
    fn datagram_shutdown_of_each_direction_changes_readiness() {
        let mut node = Plain::new(1, 1);
        assert!(node.begin_send());
        assert!(!node.begin_send());
        let mut expected = Readiness::default();
        assert_eq!(node.readiness(), expected);
        node.shut_down(Direction::Read);
        expected.readable = true;
        expected.ended = true;
        assert_eq!(node.readiness(), expected);
        node.shut_down(Direction::Write);
        expected.writable = true;
        expected.hung_up = true;
        assert_eq!(node.readiness(), expected);
        assert!(!node.is_flushed());
        node.end_send();
        node.end_send();
        assert!(node.is_flushed());
    }
}
