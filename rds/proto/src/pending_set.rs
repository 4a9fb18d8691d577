//! A small set of pending ids.

/// A small sorted set of pending ids, backed by a `Vec`. [`pop`](Self::pop) returns the largest.
/// Keeps its memory when emptied, unlike `BTreeSet`. A driver keeps the
/// [busy](crate::node::Node::busy) connections in one.
#[derive(Debug)]
pub struct PendingSet<T>(Vec<T>);

impl<T: Ord> PendingSet<T> {
    /// Creates an empty set.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Inserts an id, unless present.
    pub fn insert(&mut self, thing: T) {
        if let Err(at) = self.0.binary_search(&thing) {
            self.0.insert(at, thing);
        }
    }

    /// Removes and returns the largest id.
    pub fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }

    /// Removes an id, if present.
    pub fn remove(&mut self, thing: &T) {
        if self.0.is_empty() {
            return;
        }
        if let Ok(at) = self.0.binary_search(thing) {
            self.0.remove(at);
        }
    }

    /// Whether no id is pending.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T: Ord> Default for PendingSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_set_pops_each_id_once_in_descending_order() {
        let mut pending = PendingSet::new();
        assert!(pending.is_empty());
        for thing in [3, 1, 3, 2, 1] {
            pending.insert(thing);
        }
        assert_eq!([pending.pop(), pending.pop()], [Some(3), Some(2)]);
        pending.insert(3);
        pending.insert(4);
        pending.remove(&4);
        pending.remove(&5);
        assert!(!pending.is_empty());
        assert_eq!(
            [pending.pop(), pending.pop(), pending.pop()],
            [Some(3), Some(1), None]
        );
    }
}
