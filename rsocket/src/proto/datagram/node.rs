//! One socket for datagrams as a state machine.

use std::{collections::VecDeque, net::SocketAddr, ops::Range, time::Duration};

use super::{
    canonical,
    header::{BadDatagram, Exchange, Operation, Origin},
    peers::{Peers, Route},
};
use crate::proto::stream::{Direction, Readiness};

/// A socket: its peers, what has arrived and not been received, and what is being sent.
///
/// `L` names a local end, `W` is a way to a peer, and `M` holds the bytes of a message. The time is
/// that since any beginning.
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
}

/// A datagram that has not been received yet.
#[derive(Debug)]
pub struct Arrived<M> {
    /// Who has sent it.
    pub source: SocketAddr,
    /// What holds it.
    pub message: M,
    /// Where in that its bytes are.
    pub range: Range<usize>,
}

/// What to do about a message that has come by UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told<'b> {
    /// Answer it.
    pub answer: bool,
    /// Look for the way to its sender, and tell with [`Node::found`].
    pub search: bool,
    /// The bytes of a datagram, to be handed to [`Node::arrived_by_udp`].
    pub payload: Option<&'b [u8]>,
}

impl<L: Copy, W, M: AsRef<[u8]>> Node<L, W, M> {
    /// A socket that holds at most so many messages each way.
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
        }
    }

    /// From where a peer is reached, if it is known.
    pub fn local(&self, peer: SocketAddr) -> Option<L> {
        self.peers.local(canonical(peer))
    }

    /// How many peers are known.
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    /// Remembers a peer that was not known.
    pub fn meet(&mut self, peer: SocketAddr, local: L, now: Duration) {
        self.peers.meet(canonical(peer), local, now);
    }

    /// How the next datagram goes to a peer, if that is known.
    pub fn route(&mut self, peer: SocketAddr, now: Duration) -> Option<Route<L, &W>> {
        self.peers.route(canonical(peer), now)
    }

    /// A queue pair has room for so many messages, so no more are sent at once from now on.
    pub fn limit_sending(&mut self, most: u32) {
        self.send_depth = self.send_depth.min(most as usize);
    }

    /// Whether there is a place for another message from a queue pair. If so, it is taken.
    pub fn take_place(&mut self) -> bool {
        let free = self.sending < self.send_depth;
        self.sending += usize::from(free);
        free
    }

    /// A message has been sent, or cannot be.
    pub fn leave_place(&mut self) {
        self.sending = self.sending.saturating_sub(1);
    }

    /// Whether no message is being sent.
    pub fn is_flushed(&self) -> bool {
        self.sending == 0
    }

    /// Only this peer's datagrams are wanted from now on; or everybody's.
    pub fn connect(&mut self, peer: Option<SocketAddr>) {
        self.connected = peer.map(canonical);
    }

    /// The only peer, if there is one.
    pub fn connected(&self) -> Option<SocketAddr> {
        self.connected
    }

    /// Ends a direction, or both.
    pub fn shut_down(&mut self, direction: Direction) {
        self.shut_read |= direction != Direction::Write;
        self.shut_write |= direction != Direction::Read;
    }

    /// Whether nothing may be sent any more.
    pub fn is_write_shut(&self) -> bool {
        self.shut_write
    }

    /// Whether nothing comes any more after what has arrived.
    pub fn is_read_shut(&self) -> bool {
        self.shut_read
    }

    /// Something has come by UDP, from a peer that may have to be [met](Self::meet) first.
    ///
    /// # Errors
    /// It is nothing of this protocol.
    pub fn told<'b>(
        &mut self,
        peer: SocketAddr,
        bytes: &'b [u8],
        now: Duration,
    ) -> Result<Told<'b>, BadDatagram> {
        let peer = canonical(peer);
        let (header, payload) = Exchange::decode(bytes, peer.ip())?;
        let is_data = header.operation == Operation::Data;
        Ok(Told {
            answer: is_data,
            search: self.peers.told(peer, header.qp_num, now),
            payload: is_data.then_some(payload),
        })
    }

    /// A search for the way to a peer has ended, with a way or without.
    pub fn found(&mut self, peer: SocketAddr, way: Option<W>, now: Duration) {
        self.peers.found(canonical(peer), way, now);
    }

    /// A local end is no more, and neither are the ways that begin there.
    pub fn forget(&mut self, is_gone: impl Fn(L) -> bool) {
        self.peers.forget(is_gone);
    }

    /// A datagram of a peer's has come by UDP, as [`told`](Self::told) has said.
    ///
    /// # Errors
    /// It is dropped, since there is no room, or nobody wants it.
    pub fn arrived_by_udp(&mut self, source: SocketAddr, message: M) -> Result<(), M> {
        let len = message.as_ref().len();
        self.push(canonical(source), message, 0..len)
    }

    /// A datagram has come to a queue pair: its header begins at `start` of `message`. Which
    /// interface a link-local address belongs to (`scope`) is not in there.
    ///
    /// # Errors
    /// It is dropped, since it is nothing of this protocol, there is no room, or nobody wants it.
    pub fn arrived(
        &mut self,
        message: M,
        start: usize,
        scope: u32,
        now: Duration,
    ) -> Result<(), M> {
        let bytes = message.as_ref();
        let Some(Ok((Origin(mut source), payload))) = bytes.get(start..).map(Origin::decode) else {
            return Err(message);
        };
        let range = bytes.len() - payload.len()..bytes.len();
        if let SocketAddr::V6(source) = &mut source {
            source.set_scope_id(scope);
        }
        let peer = canonical(source);
        self.peers.heard(peer, now);
        self.push(peer, message, range)
    }

    fn push(&mut self, source: SocketAddr, message: M, range: Range<usize>) -> Result<(), M> {
        let wanted = self.connected.is_none_or(|peer| is_same(peer, source));
        if !wanted || self.shut_read || self.arrived.len() >= self.recv_depth {
            return Err(message);
        }
        self.arrived.push_back(Arrived {
            source,
            message,
            range,
        });
        Ok(())
    }

    /// The datagram that is received next.
    pub fn first(&self) -> Option<&Arrived<M>> {
        self.arrived.front()
    }

    /// Receives a datagram.
    pub fn take(&mut self) -> Option<Arrived<M>> {
        self.arrived.pop_front()
    }

    /// What can be done without waiting.
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

/// Whether a datagram that says it is from `source` is from this peer. Which interface a link-local
/// address belongs to is not in the header.
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
    fn datagrams_are_received_in_order_with_their_sources() {
        let mut node = Plain::new(4, 2);
        let (first, second) = ("10.9.0.1:1", "[fd00::1]:2");
        node.arrived(message(first, b"one"), 40, 0, NOW).unwrap();
        node.arrived_by_udp(second.parse().unwrap(), b"two".to_vec())
            .unwrap();
        // There is no room, and the place can be used again.
        let third = node
            .arrived(message(first, b"three"), 40, 0, NOW)
            .unwrap_err();
        assert_eq!(third.len(), 40 + 8 + 5);
        for (from, payload) in [(first, b"one"), (second, b"two")] {
            let got = node.take().unwrap();
            assert_eq!(got.source, from.parse().unwrap());
            assert_eq!(&got.message[got.range], payload);
        }
        assert!(node.take().is_none());
    }

    #[test]
    fn a_link_local_source_can_be_answered() {
        let mut node = Plain::new(4, 2);
        node.arrived(message("[fe80::1]:7", b""), 40, 3, NOW)
            .unwrap();
        let source = node.take().unwrap().source;
        assert_eq!(source, "[fe80::1%3]:7".parse().unwrap());
    }

    #[test]
    fn who_is_connected_receives_from_his_peer_only() {
        let mut node = Plain::new(4, 4);
        node.connect(Some("10.9.0.1:1".parse().unwrap()));
        for (from, wanted) in [
            ("10.9.0.1:1", true),
            ("[::ffff:10.9.0.1]:1", true),
            ("10.9.0.1:2", false),
            ("10.9.0.2:1", false),
        ] {
            let came = node.arrived(message(from, b""), 40, 0, NOW);
            assert_eq!(came.is_ok(), wanted, "{from}");
        }
        node.connect(None);
        node.arrived(message("10.9.0.2:1", b""), 40, 0, NOW)
            .unwrap();
    }

    /// T-DG8: P29.
    #[test]
    fn what_is_no_datagram_is_dropped() {
        let mut node = Plain::new(4, 4);
        let peer: SocketAddr = "[fd00::1]:2".parse().unwrap();
        // A length of 16 to 27 with version 6 was the end of the original.
        for len in 0..28 {
            let mut bytes = vec![0x55, 0x55, 0x55, 0x55, 6, 0, 28, 0, 0, 0, 0, 9];
            bytes.resize(len, 0);
            assert!(node.told(peer, &bytes, NOW).is_err(), "{len}");
        }
        let whole = message("[fd00::1]:2", b"");
        for len in 0..whole.len() {
            assert!(node.arrived(whole[..len].to_vec(), 40, 0, NOW).is_err());
        }
        assert_eq!(node.peers(), 0);
        assert!(node.first().is_none());
    }

    /// Whoever is told that there is room finds it, whichever queue pair it is.
    #[test]
    fn the_shortest_queue_says_how_many_are_sent() {
        let mut node = Plain::new(3, 1);
        assert!(node.take_place() && node.take_place());
        node.limit_sending(5);
        assert!(node.readiness().writable);
        node.limit_sending(1);
        for _ in 0..2 {
            assert!(!node.readiness().writable && !node.take_place());
            node.leave_place();
        }
        assert!(node.readiness().writable && node.take_place());
        assert!(!node.readiness().writable);
    }

    #[test]
    fn an_end_of_a_direction_shows() {
        let mut node = Plain::new(1, 1);
        assert!(node.take_place());
        assert!(!node.take_place());
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
        node.leave_place();
        node.leave_place();
        assert!(node.is_flushed());
    }
}
