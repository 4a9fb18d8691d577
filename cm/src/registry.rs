//! The identifiers of one event channel: what each is doing, and those that wait for an event.

use std::collections::HashMap;

use crate::{id::RawId, phase::Phase};

/// The name of an identifier in this process, never used twice. Events carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(u64);

/// Every identifier of a channel.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    last: u64,
    entries: HashMap<Key, Entry>,
}

#[derive(Debug)]
struct Entry {
    phase: Phase,
    /// The identifier, while it waits for an event and so belongs to the channel.
    // INVARIANT: there is one exactly if the phase is pending.
    parked: Option<RawId>,
}

impl Registry {
    /// Makes an entry for a new identifier.
    pub(crate) fn add(&mut self, phase: Phase) -> Key {
        debug_assert!(!phase.is_pending());
        self.last += 1;
        let key = Key(self.last);
        self.entries.insert(
            key,
            Entry {
                phase,
                parked: None,
            },
        );
        key
    }

    /// Removes an entry. An identifier that was waiting is given back.
    pub(crate) fn remove(&mut self, key: Key) -> Option<RawId> {
        self.entries.remove(&key)?.parked
    }

    pub(crate) fn phase(&self, key: Key) -> Option<Phase> {
        self.entries.get(&key).map(|entry| entry.phase)
    }

    /// The identifier of this key while it waits for an event.
    pub(crate) fn parked(&self, key: Key) -> Option<&RawId> {
        self.entries.get(&key)?.parked.as_ref()
    }

    /// Notes a phase in which the owner has the identifier.
    pub(crate) fn set_phase(&mut self, key: Key, phase: Phase) {
        debug_assert!(!phase.is_pending());
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.phase = phase;
        }
    }

    /// Takes an identifier over, until an event returns it.
    pub(crate) fn park(&mut self, id: RawId, phase: Phase) {
        debug_assert!(phase.is_pending());
        self.entries.insert(
            id.key(),
            Entry {
                phase,
                parked: Some(id),
            },
        );
    }

    /// Gives a waiting identifier back to its owner.
    pub(crate) fn unpark(&mut self, key: Key, phase: Phase) -> Option<RawId> {
        debug_assert!(!phase.is_pending());
        let entry = self.entries.get_mut(&key)?;
        let id = entry.parked.take()?;
        entry.phase = phase;
        Some(id)
    }

    /// Takes out every identifier that waits for an event.
    pub(crate) fn take_all_parked(&mut self) -> Vec<RawId> {
        let waiting: Vec<Key> = self
            .entries
            .iter()
            .filter(|(_, e)| e.parked.is_some())
            .map(|(k, _)| *k)
            .collect();
        waiting
            .into_iter()
            .filter_map(|key| self.remove(key))
            .collect()
    }
}

impl Key {
    /// The key as the pointer that librdmacm carries along with an identifier.
    pub(crate) fn to_context(self) -> *mut libc::c_void {
        // A key counts identifiers, so it never comes near the size of an address.
        std::ptr::without_provenance_mut(usize::try_from(self.0).unwrap_or(0))
    }

    pub(crate) fn from_context(context: *mut libc::c_void) -> Self {
        Self(context.addr() as u64)
    }
}
