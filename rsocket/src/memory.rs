//! The registered memory of one connection.

use verbs::{Mapping as Pages, ProtectionDomain, RemoteAccess, RemoteRegion};

use crate::proto::{
    ByteOrder, Mapping, Target,
    stream::{Framing, Local, SPARE_RECEIVES, Settings, TARGETS, Table},
};

/// The size of a message that is sent on its own.
pub(crate) const MESSAGE: usize = 4;

/// The table and the buffers of one side of a connection.
///
/// None of it is ever borrowed: the peer writes to the first two at any time, and the device reads
/// the third while the program fills other parts of it.
#[derive(Debug)]
pub(crate) struct Memory {
    table: RemoteRegion,
    /// The receive buffer, and then, where messages are separate, a place for each receive.
    receive: RemoteRegion,
    /// The send buffer, and then, where requests cannot carry targets, places for these.
    send: RemoteRegion,
    send_buffer: usize,
    recv_buffer: usize,
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
        let messages = match settings.framing {
            Framing::Immediate => 0,
            Framing::Separate => usize::from(settings.recv_depth + SPARE_RECEIVES) * MESSAGE,
        };
        let local = RemoteAccess::empty();
        Ok(Self {
            table: pd.alloc_remote(settings.table_size(), RemoteAccess::WRITE)?,
            receive: pages(pd, recv_buffer + messages, RemoteAccess::WRITE)?,
            send: pages(pd, send_buffer + settings.slots_size(), local)?,
            send_buffer,
            recv_buffer,
        })
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

    /// What has arrived at `at`.
    pub(crate) fn read(&self, at: usize, bytes: &mut [u8]) {
        self.receive.read(at, bytes);
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
    pub(crate) fn message_slot(&self, index: u16) -> RemoteRegion {
        let at = self.recv_buffer + usize::from(index) * MESSAGE;
        self.receive.slice(at..at + MESSAGE)
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
