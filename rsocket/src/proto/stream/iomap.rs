//! Memory that the sides map for each other, to be written without a message.

use std::{collections::VecDeque, error, fmt};

use super::{Stream, Table, failure::Violation, outgoing::Outgoing, sending::Burst};
use crate::proto::{ByteOrder, ConnectData, Mapping, Target};

/// The mappings of this side, which the peer writes to.
#[derive(Debug)]
pub(super) struct Announced {
    /// As many as were needed at once, up to the size of the peer's table.
    entries: Vec<Option<Mapping>>,
    size: u16,
    /// Those that the peer has not been told of.
    new: VecDeque<u16>,
    /// Where the peer's table of mappings begins.
    table: Target,
    order: ByteOrder,
}

impl Announced {
    pub(super) fn new(peer: &ConnectData) -> Self {
        let size = peer.iomap_size.unwrap_or(0);
        let targets = u64::from(peer.targets.len) * Target::SIZE as u64;
        Self {
            entries: Vec::new(),
            size,
            new: VecDeque::new(),
            table: Target {
                addr: peer.targets.addr.wrapping_add(targets),
                ..peer.targets
            },
            order: peer.order,
        }
    }
}

/// The mappings of the peer, which this side writes to.
#[derive(Debug)]
pub(super) struct Mapped {
    entries: Vec<Mapping>,
}

impl Mapped {
    pub(super) fn new(size: u16) -> Self {
        Self {
            entries: vec![Mapping::default(); size.into()],
        }
    }

    /// The peer says that it has written an entry.
    pub(super) fn announced(
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

/// Why memory cannot be mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MapError {
    /// The peer's table is full; it has so many entries.
    Full(u16),
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(entries) => write!(f, "all {entries} mappings of the peer's table are used"),
        }
    }
}

/// Reads as [`Display`](fmt::Display): `unwrap` and `fn main() -> Result` print it.
impl fmt::Debug for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl error::Error for MapError {}

/// What comes of writing to mapped memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// This is to be posted.
    Post(Outgoing),
    /// It has to wait.
    Wait,
    /// The peer has not mapped that.
    Unmapped,
}

impl Stream {
    /// Maps memory for the peer, which is told before the next data. Returns the entry it has.
    ///
    /// # Errors
    /// There is no entry left in the peer's table.
    pub fn map(&mut self, mapping: Mapping) -> Result<u16, MapError> {
        let announced = &mut self.announced;
        let entries = &mut announced.entries;
        let free = entries.iter().position(Option::is_none);
        let free = free.unwrap_or(entries.len());
        let index = u16::try_from(free)
            .ok()
            .filter(|&index| index < announced.size);
        let index = index.ok_or(MapError::Full(announced.size))?;
        if free == entries.len() {
            entries.push(None);
        }
        entries[free] = Some(mapping);
        announced.new.push_back(index);
        Ok(index)
    }

    /// Ends a mapping. The peer is not told: the caller revokes the key.
    pub fn unmap(&mut self, index: u16) {
        if let Some(entry) = self.announced.entries.get_mut(usize::from(index)) {
            *entry = None;
            self.announced.new.retain(|&new| new != index);
        }
    }

    /// Whether there is a mapping that the peer has to be told of before data is sent.
    pub fn has_announcement(&self) -> bool {
        !self.announced.new.is_empty()
    }

    /// The request that tells the peer of the next new mapping; `None` if there is none, or it has
    /// to wait.
    pub fn announce(&mut self) -> Option<Outgoing> {
        if !self.can_send() {
            return None;
        }
        let announced = &mut self.announced;
        let index = announced.new.pop_front()?;
        let mapping = announced
            .entries
            .get(usize::from(index))
            .copied()
            .flatten()?;
        let entry = u64::from(index) * Mapping::SIZE as u64;
        let to = Target {
            addr: announced.table.addr.wrapping_add(entry),
            ..announced.table
        };
        let entry = mapping.encode(announced.order);
        Some(self.send_mapping(index, entry, to))
    }

    /// What writes the next of `left` bytes to the memory that the peer has mapped as `offset`.
    pub fn send_to(&mut self, burst: &mut Burst, left: usize, offset: u64) -> Placement {
        let Some(target) = self.mapped.find(offset) else {
            return Placement::Unmapped;
        };
        if left == 0 || !self.can_send() {
            return Placement::Wait;
        }
        Placement::Post(self.send_direct(burst, left, target))
    }
}
