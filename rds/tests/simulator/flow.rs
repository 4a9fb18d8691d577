//! What is on its way from one socket to another.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

/// A message that was sent and has not arrived.
#[derive(Clone, Copy, Debug)]
struct Pending {
    number: u32,
    len: u32,
    /// It must arrive.
    must: bool,
}

/// Everything that was sent and has not arrived, by sender and receiver.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    flows: HashMap<(SocketAddr, SocketAddr), VecDeque<Pending>>,
    next: u32,
}

/// The bytes of a message, as far as there is room for them; the first four are its number.
pub(crate) fn pattern(number: u32, len: u32) -> Vec<u8> {
    let start = number.to_le_bytes();
    let rest = (4..len).map(|i| i.wrapping_mul(41).wrapping_add(number).to_be_bytes()[2]);
    let bytes = start.into_iter().chain(rest);
    bytes.take(len as usize).collect()
}

impl Flows {
    /// A message is about to be sent; returns its number.
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

    /// A message has arrived: it is the next, but for those that need not arrive.
    pub(crate) fn received(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        let flow = self.flows.entry((from, to)).or_default();
        loop {
            let pending = flow.pop_front();
            let pending = pending.expect("what arrives has been sent");
            if bytes == pattern(pending.number, pending.len) {
                return;
            }
            assert!(!pending.must, "{pending:?} from {from} to {to} is lost");
        }
    }

    /// What `which` names need not arrive any more.
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

    /// Whether something still must arrive.
    pub(crate) fn is_waiting(&self) -> bool {
        let must = |flow: &VecDeque<Pending>| flow.iter().any(|pending| pending.must);
        self.flows.values().any(must)
    }
}
