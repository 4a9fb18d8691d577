//! Mapped memory, written by the other side without a message.

use std::{collections::VecDeque, error, fmt};

use super::{Stream, Table, failure::Violation, outgoing::Outgoing, sending::Burst};
use crate::{ByteOrder, ConnectData, Mapping, Target};

/// Mappings of this side, written by the peer.
#[derive(Debug)]
pub(super) struct LocalMappings {
    /// At most as many as the peer's table holds.
    entries: Vec<Option<Mapping>>,
    size: u16,
    /// Mappings not yet advertised to the peer.
    unadvertised: VecDeque<u16>,
    /// Start of the peer's table of mappings.
    table: Target,
    order: ByteOrder,
}

impl LocalMappings {
    pub(super) fn new(peer: &ConnectData) -> Self {
        let size = peer.iomap_size.unwrap_or(0);
        let targets = u64::from(peer.targets.len) * Target::SIZE as u64;
        Self {
            entries: Vec::new(),
            size,
            unadvertised: VecDeque::new(),
            table: Target {
                addr: peer.targets.addr.wrapping_add(targets),
                ..peer.targets
            },
            order: peer.order,
        }
    }
}

/// Mappings of the peer, written by this side.
#[derive(Debug)]
pub(super) struct PeerMappings {
    entries: Vec<Mapping>,
}

impl PeerMappings {
    pub(super) fn new(size: u16) -> Self {
        Self {
            entries: vec![Mapping::default(); size.into()],
        }
    }

    /// Reads an entry advertised by the peer.
    pub(super) fn advertised(
        &mut self,
        index: u16,
        table: &mut impl Table,
        order: ByteOrder,
    ) -> Result<(), Violation> {
        let entry = self.entries.get_mut(usize::from(index));
        let entry = entry.ok_or(Violation::Mapping(index))?;
        *entry = Mapping::decode(&table.mapping(index), order);
        Ok(())
    }

    fn find(&self, offset: u64) -> Option<Target> {
        self.entries.iter().find_map(|entry| entry.find(offset))
    }
}

/// Reason for a failed mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MapError {
    /// The peer's table is full; holds the number of its entries.
    Full(u16),
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(entries) => write!(f, "all {entries} mappings of the peer's table are used"),
        }
    }
}

/// Prints the [`Display`](fmt::Display) text, since `unwrap` and `fn main() -> Result` print errors with
/// `Debug`.
impl fmt::Debug for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl error::Error for MapError {}

/// Outcome of a write to mapped memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Request to post.
    Post(Outgoing),
    /// No room; retry later.
    Wait,
    /// Not inside a mapping of the peer.
    Unmapped,
}

impl Stream {
    /// Maps memory for the peer, advertised before the next data. Returns the index of the entry.
    ///
    /// # Errors
    /// The peer's table is full.
    pub fn map(&mut self, mapping: Mapping) -> Result<u16, MapError> {
        let local = &mut self.local_mappings;
        let entries = &mut local.entries;
        let free = entries.iter().position(Option::is_none);
        let free = free.unwrap_or(entries.len());
        let index = u16::try_from(free).ok().filter(|&index| index < local.size);
        let index = index.ok_or(MapError::Full(local.size))?;
        if free == entries.len() {
            entries.push(None);
        }
        entries[free] = Some(mapping);
        local.unadvertised.push_back(index);
        Ok(index)
    }

    /// Ends a mapping without notifying the peer; the caller revokes the key.
    pub fn unmap(&mut self, index: u16) {
        if let Some(entry) = self.local_mappings.entries.get_mut(usize::from(index)) {
            *entry = None;
            self.local_mappings.unadvertised.retain(|&new| new != index);
        }
    }

    /// Whether a mapping must be advertised before further data.
    pub fn has_unadvertised_mapping(&self) -> bool {
        !self.local_mappings.unadvertised.is_empty()
    }

    /// Returns the request advertising the next mapping; `None` without a new mapping or without room.
    pub fn advertise_mapping(&mut self) -> Option<Outgoing> {
        if !self.can_send() {
            return None;
        }
        let local = &mut self.local_mappings;
        let index = local.unadvertised.pop_front()?;
        let mapping = local.entries.get(usize::from(index)).copied().flatten()?;
        let entry = u64::from(index) * Mapping::SIZE as u64;
        let to = Target {
            addr: local.table.addr.wrapping_add(entry),
            ..local.table
        };
        let entry = mapping.encode(local.order);
        Some(self.send_mapping(index, entry, to))
    }

    /// Returns the request writing the next of `remaining` bytes into the peer's mapping at `offset`.
    pub fn send_to(&mut self, burst: &mut Burst, remaining: usize, offset: u64) -> Placement {
        let Some(target) = self.peer_mappings.find(offset) else {
            return Placement::Unmapped;
        };
        if remaining == 0 {
            return Placement::Wait;
        }
        if !self.can_send() {
            self.sending.count_wait_for_buffer();
            return Placement::Wait;
        }
        Placement::Post(self.send_direct(burst, remaining, target))
    }
}
