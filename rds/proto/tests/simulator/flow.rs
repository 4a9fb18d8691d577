//! Messages in transit between sockets.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

/// A message sent and not yet received.
#[derive(Clone, Copy, Debug)]
struct Pending {
    number: u32,
    len: u32,
    /// The message must arrive.
    must: bool,
}

/// Messages in transit, by sender and receiver.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    flows: HashMap<(SocketAddr, SocketAddr), VecDeque<Pending>>,
    next: u32,
}

/// The content of a message of up to `len` bytes; the first four are its number.
pub(crate) fn pattern(number: u32, len: u32) -> Vec<u8> {
    let start = number.to_le_bytes();
    let rest = (4..len).map(|i| i.wrapping_mul(41).wrapping_add(number).to_be_bytes()[2]);
    let bytes = start.into_iter().chain(rest);
    bytes.take(len as usize).collect()
}

impl Flows {
    /// Numbers the next message.
    pub(crate) fn next(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub(crate) fn sent(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        number: u32,
        len: u32,
        must: bool,
    ) {
        let pending = Pending { number, len, must };
        self.flows.entry((from, to)).or_default().push_back(pending);
    }

    /// Checks a received message: the next in order, except for messages that may be lost.
    pub(crate) fn received(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        let flow = self.flows.entry((from, to)).or_default();
        loop {
            let pending = flow.pop_front();
            let pending = pending.expect("only sent messages arrive");
            if bytes == pattern(pending.number, pending.len) {
                return;
            }
            assert!(!pending.must, "{pending:?} from {from} to {to} is lost");
        }
    }

    /// Permits the loss of the messages selected by `which`.
    pub(crate) fn forgive(&mut self, which: impl Fn(SocketAddr, SocketAddr) -> bool) {
        for (&(from, to), flow) in &mut self.flows {
            if which(from, to) {
                flow.iter_mut().for_each(|pending| pending.must = false);
            }
        }
    }

    pub(crate) fn assert_empty(&self) {
        for ((from, to), flow) in &self.flows {
            let lost = flow.iter().find(|pending| pending.must);
            assert!(lost.is_none(), "{lost:?} from {from} to {to} never came");
        }
    }

    /// Whether a message must still arrive.
    pub(crate) fn is_waiting(&self) -> bool {
        let must = |flow: &VecDeque<Pending>| flow.iter().any(|pending| pending.must);
        self.flows.values().any(must)
    }
}
