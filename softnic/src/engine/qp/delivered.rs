//! The packets of reliable datagrams that a queue pair has executed, by sender.
//!
//! The address and the number of a sender are fields of its packets, and any peer can make them up. So a sender counts from
//! its first executed packet on, and the senders of one address are limited.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use crate::{
    engine::psn::Psn,
    wire::{Aeth, Nak, Syndrome},
};

/// Maximum number of packets from the oldest unanswered one to the newest.
pub(super) const WINDOW: u32 = 8192;

/// Time without a packet of a sender after which its numbers are forgotten: no attempt of a packet is as old.
const QUIET: Duration = Duration::from_secs(1);

/// Maximum number of senders in that time. Packets of others are dropped.
const MAX_SENDERS: usize = 4096;

/// Maximum number of these with one address.
const MAX_SENDERS_OF_ADDRESS: usize = 512;

/// The address and the number of a sending queue pair.
pub(super) type Sender = (IpAddr, u32);

/// The state of a packet before its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Earlier {
    Unexecuted,
    /// Executed, with this answer.
    Executed(Syndrome),
    /// Without a record: too old, or of a sender too many. The packet is dropped.
    Unrecorded,
}

/// The executed packets of all senders.
#[derive(Debug, Default)]
pub(super) struct Delivered(BTreeMap<Sender, Numbers>);

/// The executed packets of a sender.
#[derive(Debug)]
struct Numbers {
    newest: Psn,
    /// Executed packets up to the newest.
    executed: Bits,
    /// Packets of `executed` that have failed a receive.
    failed: Bits,
    latest: Duration,
}

/// A bit for each number of a window.
#[derive(Debug)]
struct Bits(Box<[u64; WINDOW as usize / 64]>);

impl Bits {
    fn new() -> Self {
        Self(Box::new([0; WINDOW as usize / 64]))
    }

    fn position(psn: Psn) -> (usize, u64) {
        let bit = psn.get() % WINDOW;
        ((bit / 64) as usize, 1 << (bit % 64))
    }

    fn get(&self, psn: Psn) -> bool {
        let (word, bit) = Self::position(psn);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    fn set(&mut self, psn: Psn, value: bool) {
        let (word, bit) = Self::position(psn);
        if let Some(word) = self.0.get_mut(word) {
            *word = if value { *word | bit } else { *word & !bit };
        }
    }
}

impl Numbers {
    fn is_quiet(&self, now: Duration) -> bool {
        now.saturating_sub(self.latest) > QUIET
    }

    fn record(&mut self, psn: Psn, failed: bool) {
        if self.newest.is_before(psn) {
            let count = psn.since(self.newest).min(WINDOW);
            for back in 0..count {
                let later = psn.plus(back.wrapping_neg());
                self.executed.set(later, false);
            }
            self.newest = psn;
        }
        self.executed.set(psn, true);
        self.failed.set(psn, failed);
    }
}

impl Delivered {
    /// The state of a packet that arrives now.
    pub(super) fn earlier(&mut self, from: Sender, psn: Psn, now: Duration) -> Earlier {
        let numbers = self.0.get_mut(&from);
        let Some(numbers) = numbers.filter(|numbers| !numbers.is_quiet(now)) else {
            self.0.retain(|_, numbers| !numbers.is_quiet(now));
            let of_address = self.0.range((from.0, 0)..=(from.0, u32::MAX)).count();
            let is_full = self.0.len() >= MAX_SENDERS || of_address >= MAX_SENDERS_OF_ADDRESS;
            return if is_full {
                Earlier::Unrecorded
            } else {
                Earlier::Unexecuted
            };
        };
        numbers.latest = now;
        let is_newer = numbers.newest.is_before(psn);
        if !is_newer && numbers.newest.since(psn) >= WINDOW {
            Earlier::Unrecorded
        } else if is_newer || !numbers.executed.get(psn) {
            Earlier::Unexecuted
        } else if numbers.failed.get(psn) {
            Earlier::Executed(Syndrome::Nak(Nak::InvalidRequest))
        } else {
            Earlier::Executed(Aeth::ack(0).syndrome)
        }
    }

    /// Records a packet executed with this answer.
    pub(super) fn record(&mut self, from: Sender, psn: Psn, answer: Syndrome, now: Duration) {
        let numbers = self.0.entry(from).or_insert_with(|| Numbers {
            newest: psn,
            executed: Bits::new(),
            failed: Bits::new(),
            latest: now,
        });
        numbers.record(psn, matches!(answer, Syndrome::Nak(_)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACK: Syndrome = Syndrome::Ack(0);
    const NOW: Duration = Duration::from_secs(9);

    fn sender(host: u8, number: u32) -> Sender {
        ([10, 0, 0, host].into(), number)
    }

    #[test]
    fn numbers_of_a_window_are_recorded_across_the_wrap() {
        let (mut delivered, from) = (Delivered::default(), sender(1, 17));
        let first = Psn::new(0xff_fff0);
        for offset in (0..2 * WINDOW).step_by(2) {
            let psn = first.plus(offset);
            assert_eq!(delivered.earlier(from, psn, NOW), Earlier::Unexecuted);
            delivered.record(from, psn, ACK, NOW);
            assert_eq!(
                delivered.earlier(from, psn.previous(), NOW),
                Earlier::Unexecuted
            );
        }
        let newest = first.plus(2 * WINDOW - 2);
        for back in 0..WINDOW {
            let psn = newest.plus(back.wrapping_neg());
            let is_executed = matches!(delivered.earlier(from, psn, NOW), Earlier::Executed(_));
            assert_eq!(is_executed, back % 2 == 0, "{back} before the newest");
        }
        let late = newest.plus(WINDOW.wrapping_neg());
        assert_eq!(delivered.earlier(from, late, NOW), Earlier::Unrecorded);
    }

    #[test]
    fn a_jump_forgets_the_numbers_before() {
        let (mut delivered, from) = (Delivered::default(), sender(1, 17));
        for psn in [5, 5 + 3 * WINDOW].map(Psn::new) {
            delivered.record(from, psn, ACK, NOW);
        }
        let psn = Psn::new(6 + 2 * WINDOW);
        assert_eq!(delivered.earlier(from, psn, NOW), Earlier::Unexecuted);
    }

    #[test]
    fn idle_senders_give_way() {
        let mut delivered = Delivered::default();
        for (index, number) in (0..MAX_SENDERS).zip(0..) {
            let host = u8::try_from(index / MAX_SENDERS_OF_ADDRESS).unwrap();
            let from = sender(host, number);
            let earlier = delivered.earlier(from, Psn::new(1), NOW);
            assert_eq!(earlier, Earlier::Unexecuted, "{from:?}");
            delivered.record(from, Psn::new(1), ACK, NOW);
        }
        let other = sender(200, 1);
        let earlier = delivered.earlier(other, Psn::new(1), NOW);
        assert_eq!(earlier, Earlier::Unrecorded);
        let later = NOW + 2 * QUIET;
        let earlier = delivered.earlier(other, Psn::new(1), later);
        assert_eq!(earlier, Earlier::Unexecuted);
    }
}
