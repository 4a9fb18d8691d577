//! Table of connections by generational index.

use super::{ConnectionId, peers::Peer};

/// A slot with the generation of its current or next connection.
#[derive(Debug)]
struct Slot<P, B> {
    generation: u32,
    peer: Option<Peer<P, B>>,
}

/// Connections by id. The id of a removed connection stays invalid when its slot is reused.
#[derive(Debug)]
pub(super) struct PeerTable<P, B> {
    slots: Vec<Slot<P, B>>,
    free: Vec<u32>,
}

impl<P, B> PeerTable<P, B> {
    pub(super) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Number of connections.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Inserts a connection; `None` at 2^32 slots.
    pub(super) fn insert(&mut self, peer: Peer<P, B>) -> Option<ConnectionId> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot {
                    generation: 0,
                    peer: None,
                });
                slot
            }
        };
        let entry = self.slots.get_mut(slot as usize)?;
        entry.peer = Some(peer);
        let generation = entry.generation;
        Some(ConnectionId { slot, generation })
    }

    /// Removes a connection.
    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Peer<P, B>> {
        let entry = self.slots.get_mut(id.slot as usize)?;
        if entry.generation != id.generation {
            return None;
        }
        let peer = entry.peer.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(id.slot);
        Some(peer)
    }

    pub(super) fn get(&self, id: ConnectionId) -> Option<&Peer<P, B>> {
        let entry = self.slots.get(id.slot as usize)?;
        let peer = entry.peer.as_ref()?;
        (entry.generation == id.generation).then_some(peer)
    }

    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Peer<P, B>> {
        let entry = self.slots.get_mut(id.slot as usize)?;
        let peer = entry.peer.as_mut()?;
        (entry.generation == id.generation).then_some(peer)
    }

    /// All connections with their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnectionId, &Peer<P, B>)> {
        let slots = self.slots.iter().zip(0..);
        slots.filter_map(|(entry, slot)| {
            let generation = entry.generation;
            Some((ConnectionId { slot, generation }, entry.peer.as_ref()?))
        })
    }

    /// All connections with their ids, mutable.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (ConnectionId, &mut Peer<P, B>)> {
        let slots = self.slots.iter_mut().zip(0..);
        slots.filter_map(|(entry, slot)| {
            let generation = entry.generation;
            Some((ConnectionId { slot, generation }, entry.peer.as_mut()?))
        })
    }
}
