//! The identifiers of one event channel: what each is doing, and those that wait for an event.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{addr::Addr, id::RawId, phase::Phase};

/// The name of an identifier in this process, never used twice. Events carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(u64);

/// Every identifier of a channel.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    entries: HashMap<Key, Entry>,
    /// Whether nobody reads events any more.
    closed: bool,
}

#[derive(Debug)]
struct Entry {
    phase: Phase,
    /// The identifier, while it waits for an event and so belongs to the channel.
    // INVARIANT: there is one exactly if the phase is pending.
    parked: Option<RawId>,
    /// The multicast groups it is joining, or has joined.
    groups: Vec<(GroupKey, Addr)>,
}

/// The name of a membership in this process, which its events carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupKey(u64);

impl Registry {
    /// Makes an entry for a new identifier.
    pub(crate) fn add(&mut self, phase: Phase) -> Key {
        let key = Key(unused());
        self.adopt(key, phase, Vec::new());
        key
    }

    /// Makes an entry for an identifier that the program has, with the groups it had elsewhere.
    pub(crate) fn adopt(&mut self, key: Key, phase: Phase, groups: Vec<(GroupKey, Addr)>) {
        debug_assert!(!phase.is_pending());
        let entry = Entry {
            phase,
            parked: None,
            groups,
        };
        self.entries.insert(key, entry);
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

    /// Whether nobody reads events any more, so that nothing may be [parked](Self::park).
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Takes an identifier over, until an event returns it.
    pub(crate) fn park(&mut self, id: RawId, phase: Phase) {
        debug_assert!(phase.is_pending() && !self.closed);
        let entry = self.entries.entry(id.key()).or_insert_with(|| Entry {
            phase,
            parked: None,
            groups: Vec::new(),
        });
        entry.phase = phase;
        entry.parked = Some(id);
    }

    /// Gives a waiting identifier back to its owner.
    pub(crate) fn unpark(&mut self, key: Key, phase: Phase) -> Option<RawId> {
        debug_assert!(!phase.is_pending());
        let entry = self.entries.get_mut(&key)?;
        let id = entry.parked.take()?;
        entry.phase = phase;
        Some(id)
    }

    /// Makes an entry for a membership.
    pub(crate) fn add_group(&mut self, key: Key, addr: Addr) -> GroupKey {
        let group = GroupKey(unused());
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.groups.push((group, addr));
        }
        group
    }

    /// Removes the newest membership in the group of this address, which is the one that librdmacm
    /// finds.
    pub(crate) fn remove_group(&mut self, key: Key, addr: Addr) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        if let Some(found) = entry.groups.iter().rposition(|(_, of)| *of == addr) {
            entry.groups.remove(found);
        }
    }

    /// The address of a group.
    pub(crate) fn group(&self, key: Key, group: GroupKey) -> Option<Addr> {
        let entry = self.entries.get(&key)?;
        let found = entry.groups.iter().find(|(of, _)| *of == group)?;
        Some(found.1)
    }

    /// Every group of an identifier.
    pub(crate) fn groups(&self, key: Key) -> Vec<(GroupKey, Addr)> {
        self.entries
            .get(&key)
            .map_or_else(Vec::new, |entry| entry.groups.clone())
    }

    /// Takes out every identifier that waits for an event, as nobody reads any more.
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

/// A number that nothing of this process has.
fn unused() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Names travel through librdmacm as pointers that nobody follows.
macro_rules! names {
    ($($name:ident)*) => {$(
        impl $name {
            pub(crate) fn to_context(self) -> *mut libc::c_void {
                // A name counts, so it never comes near the size of an address.
                std::ptr::without_provenance_mut(usize::try_from(self.0).unwrap_or(0))
            }

            pub(crate) fn from_context(context: *const libc::c_void) -> Self {
                Self(context.addr() as u64)
            }
        }
    )*};
}

names! { Key GroupKey }
