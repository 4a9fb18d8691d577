//! What is to be looked at.

/// Things that are to be looked at, each once, the highest first. They are few as a rule: it keeps its
/// memory, other than a set made of nodes.
#[derive(Debug)]
pub(crate) struct PendingSet<T>(Vec<T>);

impl<T: Ord> PendingSet<T> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Puts a thing on it, if it is not there.
    pub(crate) fn insert(&mut self, thing: T) {
        if let Err(at) = self.0.binary_search(&thing) {
            self.0.insert(at, thing);
        }
    }

    /// Takes the highest off it.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }

    /// Takes a thing off it, if it is there.
    pub(crate) fn remove(&mut self, thing: &T) {
        if self.0.is_empty() {
            return;
        }
        if let Ok(at) = self.0.binary_search(thing) {
            self.0.remove(at);
        }
    }

    /// Takes all off it, the lowest first.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.0.drain(..)
    }

    /// What is on it, the lowest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_comes_once() {
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
        assert_eq!(pending.iter().collect::<Vec<_>>(), [&1, &3]);
        assert_eq!(
            [pending.pop(), pending.pop(), pending.pop()],
            [Some(3), Some(1), None]
        );
    }

    #[test]
    fn all_things_can_be_taken_off_at_once() {
        let mut pending = PendingSet::new();
        for thing in [2, 3, 1] {
            pending.insert(thing);
        }
        assert_eq!(pending.drain().collect::<Vec<_>>(), [1, 2, 3]);
        assert!(pending.is_empty());
    }
}
