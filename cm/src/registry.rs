//! Registry of an event channel: the phase of each identifier, and the identifiers pending for an event.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

#[cfg(feature = "tracing")]
use crate::trace::IdSpan;
use crate::{addr::Addr, id::RawId, phase::Phase};

/// Name of an identifier, unique in this process and carried by events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(u64);

impl Key {
    #[cfg(feature = "tracing")]
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

/// All identifiers of a channel.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    entries: HashMap<Key, IdEntry>,
    /// Whether the channel has been dropped, so that no event is read any more.
    closed: bool,
}

#[derive(Debug)]
struct IdEntry {
    phase: Phase,
    /// The identifier while pending for an event, owned by the channel.
    // INVARIANT: `Some` exactly if the phase is pending.
    parked: Option<RawId>,
    /// Multicast groups being joined, or joined.
    groups: Vec<(GroupKey, Addr)>,
    /// Shared with the identifier, so that removing the entry does not close the span under the registry's lock.
    #[cfg(feature = "tracing")]
    span: Option<IdSpan>,
}

impl IdEntry {
    fn new(phase: Phase, groups: Vec<(GroupKey, Addr)>) -> Self {
        Self {
            phase,
            parked: None,
            groups,
            #[cfg(feature = "tracing")]
            span: None,
        }
    }
}

/// Name of a membership, unique in this process and carried by events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupKey(u64);

impl Registry {
    /// Adds an entry for a new identifier.
    pub(crate) fn add(&mut self, phase: Phase) -> Key {
        let key = Key(unused());
        self.adopt(key, phase, Vec::new());
        key
    }

    /// Adds an entry for an identifier owned by the program, with the groups from another channel.
    pub(crate) fn adopt(&mut self, key: Key, phase: Phase, groups: Vec<(GroupKey, Addr)>) {
        debug_assert!(!phase.is_pending());
        self.entries.insert(key, IdEntry::new(phase, groups));
    }

    /// Records the span of an identifier.
    #[cfg(feature = "tracing")]
    pub(crate) fn set_span(&mut self, key: Key, span: IdSpan) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.span = Some(span);
        }
    }

    /// The span of an identifier.
    #[cfg(feature = "tracing")]
    pub(crate) fn span(&self, key: Key) -> Option<IdSpan> {
        self.entries.get(&key)?.span.clone()
    }

    /// Removes an entry. Returns a pending identifier.
    pub(crate) fn remove(&mut self, key: Key) -> Option<RawId> {
        self.entries.remove(&key)?.parked
    }

    pub(crate) fn phase(&self, key: Key) -> Option<Phase> {
        self.entries.get(&key).map(|entry| entry.phase)
    }

    /// The identifier of this key while pending.
    pub(crate) fn parked(&self, key: Key) -> Option<&RawId> {
        self.entries.get(&key)?.parked.as_ref()
    }

    /// Records a phase with the identifier owned by the program.
    pub(crate) fn set_phase(&mut self, key: Key, phase: Phase) {
        debug_assert!(!phase.is_pending());
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.phase = phase;
        }
    }

    /// Whether the channel has been dropped, so that no identifier may be [parked](Self::park).
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Takes ownership of an identifier until an event returns it.
    pub(crate) fn park(&mut self, id: RawId, phase: Phase) {
        debug_assert!(phase.is_pending() && !self.closed);
        let entry = self
            .entries
            .entry(id.key())
            .or_insert_with(|| IdEntry::new(phase, Vec::new()));
        entry.phase = phase;
        entry.parked = Some(id);
    }

    /// Returns a pending identifier to the program.
    pub(crate) fn unpark(&mut self, key: Key, phase: Phase) -> Option<RawId> {
        debug_assert!(!phase.is_pending());
        let entry = self.entries.get_mut(&key)?;
        let id = entry.parked.take()?;
        entry.phase = phase;
        Some(id)
    }

    /// Adds an entry for a membership.
    pub(crate) fn add_group(&mut self, key: Key, addr: Addr) -> GroupKey {
        let group = GroupKey(unused());
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.groups.push((group, addr));
        }
        group
    }

    /// Removes the newest membership in the group of this address, matching librdmacm's choice.
    pub(crate) fn remove_group(&mut self, key: Key, addr: Addr) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        if let Some(found) = entry.groups.iter().rposition(|(_, of)| *of == addr) {
            entry.groups.remove(found);
        }
    }

    /// Address of a group.
    pub(crate) fn group(&self, key: Key, group: GroupKey) -> Option<Addr> {
        let entry = self.entries.get(&key)?;
        let found = entry.groups.iter().find(|(of, _)| *of == group)?;
        Some(found.1)
    }

    /// All groups of an identifier.
    pub(crate) fn groups(&self, key: Key) -> Vec<(GroupKey, Addr)> {
        self.entries
            .get(&key)
            .map_or_else(Vec::new, |entry| entry.groups.clone())
    }

    /// Marks the channel as dropped, and removes all pending identifiers.
    pub(crate) fn close(&mut self) -> Vec<RawId> {
        self.closed = true;
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

/// A number not used before in this process.
fn unused() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Names are passed through librdmacm as pointers, never dereferenced.
macro_rules! names {
    ($($name:ident)*) => {$(
        impl $name {
            pub(crate) fn to_context(self) -> *mut libc::c_void {
                // Names are counted up from 1, far below the size of an address.
                std::ptr::without_provenance_mut(usize::try_from(self.0).unwrap_or(0))
            }

            pub(crate) fn from_context(context: *const libc::c_void) -> Self {
                Self(context.addr() as u64)
            }
        }
    )*};
}

names! { Key GroupKey }
