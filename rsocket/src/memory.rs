//! The registered memory of one connection.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::{
    process::{Resource, getrlimit},
    thread::{CapabilitySet, capabilities},
};
use verbs::{Mapping as Pages, ProtectionDomain, RemoteAccess, RemoteRegion};

use crate::proto::{
    ByteOrder, Mapping, Target,
    stream::{Framing, Local, SPARE_RECEIVES, Settings, TARGETS, Table},
};

/// The size of a message that is sent on its own.
pub(crate) const MESSAGE: usize = 4;

/// The table and the buffers of one side of a connection.
///
/// None of it is ever borrowed: the peer writes to the first three at any time, and the device reads
/// the send buffer while the program fills other parts of it.
#[derive(Debug)]
pub(crate) struct Memory {
    table: RemoteRegion,
    receive: RemoteRegion,
    /// The receive buffer before, as long as it is used.
    old_receive: Option<RemoteRegion>,
    /// The send buffer, and then, where requests cannot carry targets, places for these.
    send: RemoteRegion,
    send_buffer: usize,
    slots: usize,
    /// Where messages are separate, a place for each receive.
    messages: Option<RemoteRegion>,
    /// The buffers that have grown.
    grown: Vec<Share>,
}

/// The bytes of all buffers of the process that have grown.
static GROWN: AtomicU64 = AtomicU64::new(0);

/// Buffers that have grown take no more than one part in so many of what the process may lock: new connections
/// need some, too.
const PART: u64 = 4;

/// A part of what buffers may grow by.
#[derive(Debug)]
struct Share {
    bytes: u64,
    taken: &'static AtomicU64,
}

impl Share {
    /// Takes so many bytes of the `most` that there are, if they are left.
    fn take(bytes: u64, taken: &'static AtomicU64, most: u64) -> Option<Self> {
        let sum = |taken: u64| taken.checked_add(bytes).filter(|&sum| sum <= most);
        let took = taken.fetch_update(Relaxed, Relaxed, sum);
        took.ok().map(|_| Self { bytes, taken })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, Relaxed);
    }
}

/// What buffers may grow to in sum: a part of what the process may lock, if that is limited.
fn allowance() -> u64 {
    let unlimited =
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    let limit = getrlimit(Resource::Memlock).current.filter(|_| !unlimited);
    limit.map_or(u64::MAX, |limit| limit / PART)
}

/// Memory of its own pages, which is one page less than the heap takes for a buffer.
fn pages(pd: &ProtectionDomain, len: usize, access: RemoteAccess) -> verbs::Result<RemoteRegion> {
    // Whole words, in which it is accessed.
    let memory = Pages::new(len.next_multiple_of(size_of::<u64>()))?;
    let region = pd.register(memory).remote(access).create()?;
    Ok(region.slice(0..len))
}

impl Memory {
    pub(crate) fn new(pd: &ProtectionDomain, settings: &Settings) -> verbs::Result<Self> {
        let (send_buffer, recv_buffer) =
            (settings.send_buffer as usize, settings.recv_buffer as usize);
        let slots = settings.slots_size();
        let messages = match settings.framing {
            Framing::Immediate => None,
            Framing::Separate => {
                let len = usize::from(settings.recv_depth + SPARE_RECEIVES) * MESSAGE;
                Some(pages(pd, len, RemoteAccess::empty())?)
            }
        };
        Ok(Self {
            table: pd.alloc_remote(settings.table_size(), RemoteAccess::WRITE)?,
            receive: pages(pd, recv_buffer, RemoteAccess::WRITE)?,
            old_receive: None,
            send: pages(pd, send_buffer + slots, RemoteAccess::empty())?,
            send_buffer,
            slots,
            messages,
            grown: Vec::new(),
        })
    }

    /// Memory for a buffer of so many bytes, and `beside`, in the place of a smaller one.
    fn larger(
        &mut self,
        pd: &ProtectionDomain,
        bytes: u32,
        beside: usize,
        access: RemoteAccess,
    ) -> Option<RemoteRegion> {
        let share = Share::take(bytes.into(), &GROWN, allowance())?;
        let memory = pages(pd, bytes as usize + beside, access).ok()?;
        self.grown.push(share);
        Some(memory)
    }

    /// Makes a receive buffer of so many bytes in the place of the one there is, which stays until
    /// [`end_old_receive`](Self::end_old_receive). Returns where it is, and its key; `None` if there is no memory
    /// for it.
    pub(crate) fn grow_receive(&mut self, pd: &ProtectionDomain, bytes: u32) -> Option<(u64, u32)> {
        let larger = self.larger(pd, bytes, 0, RemoteAccess::WRITE)?;
        let token = larger.token();
        self.old_receive = Some(std::mem::replace(&mut self.receive, larger));
        Some((token.addr, token.rkey))
    }

    /// Nothing comes into the receive buffer before any more, and all of it has been read.
    pub(crate) fn end_old_receive(&mut self) {
        self.old_receive = None;
    }

    /// Makes a send buffer of so many bytes in the place of the one there is, which lives on for what is being
    /// sent from it; `None` if there is no memory for it.
    pub(crate) fn grow_send(&mut self, pd: &ProtectionDomain, bytes: u32) -> Option<()> {
        self.send = self.larger(pd, bytes, self.slots, RemoteAccess::empty())?;
        self.send_buffer = bytes as usize;
        Some(())
    }

    /// What the peer is told of it.
    pub(crate) fn local(&self) -> Local {
        let (table, receive) = (self.table.token(), self.receive.token());
        Local {
            table_addr: table.addr,
            table_rkey: table.rkey,
            buffer_addr: receive.addr,
            buffer_rkey: receive.rkey,
            order: ByteOrder::HOST,
        }
    }

    /// What has arrived at `at` in the receive buffer, or in the one before.
    pub(crate) fn read(&self, is_old: bool, at: usize, bytes: &mut [u8]) {
        let old = self.old_receive.as_ref().filter(|_| is_old);
        old.unwrap_or(&self.receive).read(at, bytes);
    }

    /// Fills a part of the send buffer, and gives it as something to be sent.
    pub(crate) fn fill(&self, at: usize, bytes: &[u8]) -> RemoteRegion {
        self.send.write(at, bytes);
        self.send.slice(at..at + bytes.len())
    }

    /// The same for one of the places of control messages.
    pub(crate) fn fill_slot(&self, slot: u16, bytes: &[u8]) -> RemoteRegion {
        let at = self.send_buffer + usize::from(slot) * Target::SIZE;
        self.send.write(at, bytes);
        self.send.slice(at..at + bytes.len())
    }

    /// The place of a receive, where messages are separate.
    pub(crate) fn message_slot(&self, index: u16) -> Option<RemoteRegion> {
        let at = usize::from(index) * MESSAGE;
        let messages = self.messages.as_ref();
        messages.map(|messages| messages.slice(at..at + MESSAGE))
    }
}

impl Table for Memory {
    fn target(&mut self, index: u32) -> [u8; Target::SIZE] {
        let at = index as usize * Target::SIZE;
        // Key and length are one word, read before the address. When they are there, it is.
        let key_and_len = self.table.load(at + 8);
        let addr = self.table.load(at);
        let mut entry = [0; Target::SIZE];
        entry[..8].copy_from_slice(&addr.to_ne_bytes());
        entry[8..].copy_from_slice(&key_and_len.to_ne_bytes());
        entry
    }

    fn clear_target(&mut self, index: u32) {
        self.table.store(index as usize * Target::SIZE + 8, 0);
    }

    fn mapping(&mut self, index: u16) -> [u8; Mapping::SIZE] {
        let at = TARGETS as usize * Target::SIZE + usize::from(index) * Mapping::SIZE;
        let mut entry = [0; Mapping::SIZE];
        self.table.read(at, &mut entry);
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_grow_while_there_is_something_left() {
        static TAKEN: AtomicU64 = AtomicU64::new(0);
        let take = |bytes| Share::take(bytes, &TAKEN, 100);
        let first = take(60).unwrap();
        assert!(take(41).is_none());
        let second = take(40).unwrap();
        assert!(take(1).is_none());
        drop(first);
        assert!(take(61).is_none());
        let third = take(60).unwrap();
        drop((second, third));
        assert_eq!(TAKEN.load(Relaxed), 0);
        let all = Share::take(u64::MAX, &TAKEN, u64::MAX);
        assert!(Share::take(1, &TAKEN, u64::MAX).is_none());
        drop(all);
    }
}
