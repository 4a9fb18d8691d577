//! Values by queue pair.

use std::fmt;

use crate::wr_id::QpId;

/// Values of a program, one for each queue pair, found by the [identity](QpId) in a completion: by its
/// [index](QpId::index), without a hash or a search.
///
/// A removed or [reset](crate::QueuePair::to_reset) queue pair's late completions find nothing, also when another queue pair
/// has the same index.
///
/// # Examples
/// ```
/// # let (_peer, mut qp, mut cq) = doctest::connected();
/// # qp.post(verbs::op::Send::new(qp.pd().alloc_buf(5)?))?;
/// # cq.wait(None)?;
/// use verbs::qp::QpMap;
/// let mut connections = QpMap::new();
/// connections.insert(qp.id(), (qp, "state of the connection"));
/// for wc in cq.poll()? {
///     if let Some((qp, state)) = connections.get_mut(wc.qp_id()) {
///         println!("{state}: {:?}", qp.complete(wc).expect("of this queue pair"));
///     }
/// }
/// # Ok::<(), verbs::Error>(())
/// ```
#[derive(Clone)]
pub struct QpMap<V> {
    entries: Vec<Option<(QpId, V)>>,
    len: usize,
}

impl<V> QpMap<V> {
    /// A map without values.
    pub const fn new() -> Self {
        Self {
            entries: Vec::new(),
            len: 0,
        }
    }

    /// Stores the value of a queue pair. Allocates if its index is the highest so far.
    ///
    /// Returns the replaced value: of the same identity, or of one that lives no more and had the same index.
    pub fn insert(&mut self, id: QpId, value: V) -> Option<V> {
        let index = id.index();
        if index >= self.entries.len() {
            self.entries.resize_with(index + 1, || None);
        }
        let replaced = self.entries.get_mut(index)?.replace((id, value));
        if replaced.is_none() {
            self.len += 1;
        }
        replaced.map(|(_, value)| value)
    }

    /// The value of a queue pair.
    #[inline]
    pub fn get(&self, id: QpId) -> Option<&V> {
        match self.entries.get(id.index()) {
            Some(Some((found, value))) if *found == id => Some(value),
            _ => None,
        }
    }

    /// The value of a queue pair, to change it.
    #[inline]
    pub fn get_mut(&mut self, id: QpId) -> Option<&mut V> {
        match self.entries.get_mut(id.index()) {
            Some(Some((found, value))) if *found == id => Some(value),
            _ => None,
        }
    }

    /// Whether there is a value of a queue pair.
    pub fn contains(&self, id: QpId) -> bool {
        self.get(id).is_some()
    }

    /// Takes the value of a queue pair.
    pub fn remove(&mut self, id: QpId) -> Option<V> {
        let entry = self.entries.get_mut(id.index())?;
        let (_, value) = entry.take_if(|(found, _)| *found == id)?;
        self.len -= 1;
        Some(value)
    }

    /// Drops the values for which `is_kept` is false.
    pub fn retain(&mut self, mut is_kept: impl FnMut(QpId, &mut V) -> bool) {
        for entry in &mut self.entries {
            if entry.take_if(|(id, value)| !is_kept(*id, value)).is_some() {
                self.len -= 1;
            }
        }
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The values with their identities, in the order of the indexes.
    pub fn iter(&self) -> impl Iterator<Item = (QpId, &V)> {
        let entries = self.entries.iter().flatten();
        entries.map(|(id, value)| (*id, value))
    }

    /// The values with their identities, to change them, in the order of the indexes.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (QpId, &mut V)> {
        let entries = self.entries.iter_mut().flatten();
        entries.map(|(id, value)| (*id, value))
    }
}

impl<V> Default for QpMap<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V: fmt::Debug> fmt::Debug for QpMap<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wr_id::OwnedQpId;

    #[test]
    fn values_are_found_by_their_identity_only() {
        let mut map = QpMap::new();
        let ids = [(); 3].map(|()| OwnedQpId::new());
        let [a, b, c] = [0, 1, 2].map(|index: usize| ids[index].id());
        assert_eq!((map.insert(b, 'b'), map.insert(a, 'a')), (None, None));
        assert_eq!(
            (map.get(a), map.get(b), map.get(c)),
            (Some(&'a'), Some(&'b'), None)
        );
        assert_eq!(map.insert(a, 'x'), Some('a'));
        *map.get_mut(b).unwrap() = 'y';
        let mut all: Vec<_> = map.iter().map(|(id, value)| (id, *value)).collect();
        all.sort_unstable();
        let mut expected = [(a, 'x'), (b, 'y')];
        expected.sort_unstable();
        assert_eq!((all, map.len()), (expected.to_vec(), 2));
        assert_eq!(
            (map.remove(b), map.remove(b), map.remove(c)),
            (Some('y'), None, None)
        );
        assert_eq!(
            (map.len(), map.contains(a), map.contains(b)),
            (1, true, false)
        );
        map.insert(c, 'c');
        map.retain(|id, value| id == a && *value == 'x');
        assert_eq!((map.len(), map.get(a), map.get(c)), (1, Some(&'x'), None));
    }

    /// Two identities of one index: a queue pair destroyed before the removal of its value, and the next one.
    #[test]
    fn late_completions_find_no_value_of_the_next_queue_pair() {
        let mut map = QpMap::new();
        let (old, new) = loop {
            let old = OwnedQpId::new().id();
            let new = OwnedQpId::new();
            // Other tests take identities at the same time.
            if new.id().index() == old.index() {
                break (old, new);
            }
        };
        assert_eq!(map.insert(old, "old"), None);
        assert_eq!(map.get(new.id()), None);
        assert_eq!(map.remove(new.id()), None);
        assert_eq!(map.insert(new.id(), "new"), Some("old"));
        assert_eq!(map.get(old), None);
        assert_eq!(map.get_mut(old), None);
        assert_eq!((map.remove(old), map.remove(new.id())), (None, Some("new")));
        assert!(map.is_empty());
    }
}
