//! What is to be looked at.

/// Things that are to be looked at, each once, the highest first. They are few as a rule: it keeps its
/// memory, other than a set made of nodes.
#[derive(Debug)]
pub(super) struct Agenda<T>(Vec<T>);

impl<T: Ord> Agenda<T> {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Puts a thing on it, if it is not there.
    pub(super) fn insert(&mut self, thing: T) {
        if let Err(at) = self.0.binary_search(&thing) {
            self.0.insert(at, thing);
        }
    }

    /// Takes the highest off it.
    pub(super) fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_comes_once() {
        let mut agenda = Agenda::new();
        assert!(agenda.is_empty());
        for thing in [3, 1, 3, 2, 1] {
            agenda.insert(thing);
        }
        assert_eq!([agenda.pop(), agenda.pop()], [Some(3), Some(2)]);
        agenda.insert(3);
        assert!(!agenda.is_empty());
        assert_eq!(
            [agenda.pop(), agenda.pop(), agenda.pop()],
            [Some(3), Some(1), None]
        );
    }
}
