//! The queue pairs on a shared receive queue, by number.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use crate::{bounded::QpNum, wr_id::QpId};

/// Half of the 24 bits of a queue pair's number.
const HALF: u32 = 12;
const LEN: usize = 1 << HALF;

/// The identities of numbers with the same upper half; 0 for none.
type Leaf = [AtomicU64; LEN];

/// The identities of queue pairs by number: a table of tables, as the numbers of a device lie together. A few reads find an
/// identity among any number. 64 KiB with the first queue pair, and 32 KiB for each used table of 4096
/// numbers.
#[derive(Debug, Default)]
pub(crate) struct Receivers(OnceLock<Box<[OnceLock<Box<Leaf>>]>>);

/// Upper and lower half of a number.
#[inline]
fn split(number: QpNum) -> (usize, usize) {
    let number = number.get() as usize;
    (number >> HALF, number % LEN)
}

impl Receivers {
    /// The living queue pair with this number.
    #[inline]
    pub(super) fn find(&self, number: QpNum) -> Option<QpId> {
        let (upper, lower) = split(number);
        let leaf = self.0.get()?.get(upper)?.get()?;
        // Acquire: a key set before the identity was recorded is visible.
        QpId::from_number(leaf[lower].load(Ordering::Acquire))
    }

    /// Records a new queue pair, or the new identity of one.
    pub(crate) fn add(&self, number: QpNum, id: QpId) {
        let (upper, lower) = split(number);
        let leaves = self
            .0
            .get_or_init(|| (0..LEN).map(|_| OnceLock::new()).collect());
        let leaf = leaves[upper].get_or_init(|| Box::new([const { AtomicU64::new(0) }; LEN]));
        leaf[lower].store(id.number(), Ordering::Release);
    }

    /// Forgets a queue pair, before its number is free for another one.
    pub(crate) fn remove(&self, number: QpNum) {
        let (upper, lower) = split(number);
        if let Some(leaf) = self.0.get().and_then(|leaves| leaves[upper].get()) {
            leaf[lower].store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_are_found_by_all_bits_of_their_number() {
        let receivers = Receivers::default();
        let number = |number| QpNum::new(number).unwrap();
        assert_eq!(receivers.find(number(17)), None);
        let numbers = [0, 1, 17, 0xfff, 0x1000, 0x1011, 0xff_f000, 0xff_ffff].map(number);
        let ids = numbers.map(|_| QpId::next());
        for (number, id) in numbers.into_iter().zip(ids) {
            receivers.add(number, id);
        }
        for (number, id) in numbers.into_iter().zip(ids) {
            assert_eq!(receivers.find(number), Some(id), "{number}");
        }
        assert_eq!(receivers.find(number(18)), None);
        receivers.remove(number(0x1011));
        assert_eq!(receivers.find(number(0x1011)), None);
        assert_eq!(receivers.find(number(17)), Some(ids[2]));
        receivers.remove(number(0x20_0000));
        receivers.add(number(17), ids[0]);
        assert_eq!(receivers.find(number(17)), Some(ids[0]));
    }
}
