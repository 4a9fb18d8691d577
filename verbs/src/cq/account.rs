//! Accounting of a completion queue's entries, against overflow.

#[cfg(not(test))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::{fmt, io};

#[cfg(test)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::error::{Error, Result};

/// The reserved entries of a completion queue.
///
/// On some devices, a destroyed queue pair can leave completions behind, and they occupy entries
/// until polled. Those entries stay reserved, as stale, until a poll has found the queue empty.
pub(super) struct CqAccount {
    /// The capacity, in the high half, and the number of reserved entries, in the low half: in one
    /// word, so that no reservation relies on an outdated, larger capacity.
    books: AtomicU64,
    /// The reserved entries whose queue pair is gone.
    stale: AtomicU32,
}

/// Reason of an error with the kind `InvalidInput`: a completion queue has too few entries for the requests of another queue.
///
/// ```
/// # let (_fabric, ctx) = doctest::device();
/// # let pd = ctx.alloc_pd()?;
/// use verbs::cq::NoEntries;
/// let cq = ctx.create_cq(3)?;
/// let builder = pd.qp_builder::<verbs::Rc>(&cq, &cq).max_send_wr(4).max_recv_wr(4);
/// assert!(NoEntries::of(&builder.create().unwrap_err()).is_some());
/// # Ok::<(), verbs::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NoEntries {
    capacity: u32,
    available: u32,
    requested: u32,
}

impl NoEntries {
    /// The reason of an error, if the error has this one.
    pub fn of(error: &Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl fmt::Display for NoEntries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            capacity,
            available,
            requested,
        } = self;
        write!(
            f,
            "the completion queue has {available} of {capacity} entries left, and {requested} are needed; make the completion \
             queue larger"
        )
    }
}

/// Formats as [`Display`](fmt::Display), as the other errors of this crate.
impl fmt::Debug for NoEntries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for NoEntries {}

const HALF: u32 = 32;

/// The two halves: capacity and reserved.
fn split(books: u64) -> (u32, u32) {
    let [capacity, reserved] = [books >> HALF, books & u64::from(u32::MAX)]
        .map(|half| u32::try_from(half).unwrap_or(u32::MAX));
    (capacity, reserved)
}

fn join(capacity: u32, reserved: u32) -> u64 {
    u64::from(capacity) << HALF | u64::from(reserved)
}

impl CqAccount {
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            books: AtomicU64::new(join(capacity, 0)),
            stale: AtomicU32::new(0),
        }
    }

    pub(super) fn capacity(&self) -> u32 {
        split(self.books.load(Ordering::Relaxed)).0
    }

    pub(super) fn available(&self) -> u32 {
        let (capacity, reserved) = split(self.books.load(Ordering::Relaxed));
        capacity - reserved
    }

    /// Changes the counts, unless `change` refuses; then the result has the present counts.
    fn update(
        &self,
        change: impl Fn(u32, u32) -> Option<(u32, u32)>,
    ) -> std::result::Result<(), (u32, u32)> {
        // Acquire: the new owner of entries sees that the queue has been emptied of their old
        // content.
        let (set, fetch) = (Ordering::Acquire, Ordering::Relaxed);
        let changed = self.books.fetch_update(set, fetch, |books| {
            let (capacity, reserved) = split(books);
            change(capacity, reserved).map(|(capacity, reserved)| join(capacity, reserved))
        });
        changed.map(drop).map_err(split)
    }

    /// Reserves entries, on behalf of `call`.
    pub(super) fn reserve(&self, call: &'static str, entries: u32) -> Result<()> {
        let changed = self.update(|capacity, reserved| {
            let reserved = reserved.checked_add(entries)?;
            (reserved <= capacity).then_some((capacity, reserved))
        });
        changed.map_err(|(capacity, reserved)| {
            let reason = NoEntries {
                capacity,
                available: capacity - reserved,
                requested: entries,
            };
            Error::refused(call, io::ErrorKind::InvalidInput, reason)
        })
    }

    pub(super) fn release(&self, entries: u32, stale: u32) {
        let stale = stale.min(entries);
        // Release: a poller that sees the stale entries polls after the queue pair was destroyed.
        self.stale.fetch_add(stale, Ordering::Release);
        let released = u64::from(entries - stale);
        self.books.fetch_sub(released, Ordering::Release);
    }

    #[inline]
    pub(super) fn stale(&self) -> u32 {
        self.stale.load(Ordering::Acquire)
    }

    /// Called when a poll begun after reading `stale` has found the queue empty.
    #[cold]
    pub(super) fn forget_stale(&self, stale: u32) {
        self.stale.fetch_sub(stale, Ordering::Relaxed);
        self.books.fetch_sub(stale.into(), Ordering::Release);
    }

    /// Makes the queue no larger than `capacity`, before the device does.
    pub(super) fn shrink(&self, capacity: u32) -> Result<()> {
        let changed = self.update(|old, reserved| {
            (reserved <= capacity).then_some((old.min(capacity), reserved))
        });
        changed.map_err(|(_, reserved)| {
            let reason =
                format!("{reserved} entries are reserved by queue pairs; destroy some first");
            Error::refused("ibv_resize_cq", io::ErrorKind::InvalidInput, reason)
        })
    }

    /// Records the size granted by the device: at least the number of reserved entries.
    pub(super) fn set_capacity(&self, capacity: u32) {
        let changed = self.update(|_, reserved| Some((capacity.max(reserved), reserved)));
        debug_assert!(changed.is_ok());
    }
}

impl fmt::Debug for CqAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (capacity, reserved) = split(self.books.load(Ordering::Relaxed));
        f.debug_struct("Room")
            .field("capacity", &capacity)
            .field("reserved", &reserved)
            .field("stale", &self.stale())
            .finish()
    }
}

#[cfg(test)]
mod interleavings {
    use loom::{sync::Arc, thread};

    use super::*;

    const CALL: &str = "ibv_create_qp";

    #[test]
    fn cq_room_reserve_beyond_capacity_is_refused() {
        loom::model(|| {
            let account = CqAccount::new(10);
            account.reserve(CALL, 6).unwrap();
            assert_eq!(account.available(), 4);
            let err = account.reserve(CALL, 5).unwrap_err();
            assert_eq!(
                err.to_string(),
                "`ibv_create_qp` failed: the completion queue has 4 of 10 entries left, \
             and 5 are needed; make the completion queue larger"
            );
            assert!(account.reserve(CALL, u32::MAX).is_err());
            account.release(6, 0);
            account.reserve(CALL, 10).unwrap();
            assert_eq!(account.available(), 0);
        });
    }

    #[test]
    fn cq_room_stale_entries_are_released_by_an_empty_poll() {
        loom::model(|| {
            let account = CqAccount::new(10);
            account.reserve(CALL, 10).unwrap();
            account.release(10, 3);
            assert_eq!((account.available(), account.stale()), (7, 3));
            assert!(account.reserve(CALL, 8).is_err());
            let stale = account.stale();
            // The poll does not cover a queue pair destroyed during the poll.
            account.reserve(CALL, 2).unwrap();
            account.release(2, 2);
            account.forget_stale(stale);
            assert_eq!((account.available(), account.stale()), (8, 2));
        });
    }

    #[test]
    fn cq_room_shrinks_to_the_reserved_entries() {
        loom::model(|| {
            let account = CqAccount::new(10);
            account.reserve(CALL, 6).unwrap();
            assert_eq!(
                account.shrink(5).unwrap_err().to_string(),
                "`ibv_resize_cq` failed: 6 entries are reserved by queue pairs; destroy some first"
            );
            assert_eq!(account.capacity(), 10);
            account.shrink(6).unwrap();
            assert!(account.reserve(CALL, 1).is_err());
            // The device grants a little more than requested.
            account.set_capacity(7);
            account.reserve(CALL, 1).unwrap();
            account.shrink(u32::MAX).unwrap();
            assert_eq!((account.capacity(), account.available()), (7, 0));
            account.release(7, 0);
            assert_eq!(account.available(), 7);
        });
    }

    /// A queue of two entries, with a completion left behind by its first queue pair. The content
    /// of the queue is recorded without ordering between threads beyond that of the counts.
    #[test]
    fn cq_room_entries_are_reused_only_when_empty() {
        loom::model(|| {
            let account = Arc::new(CqAccount::new(2));
            let entries = Arc::new(AtomicU32::new(0));
            account.reserve(CALL, 1).unwrap();
            let destroyer = thread::spawn({
                let (account, entries) = (Arc::clone(&account), Arc::clone(&entries));
                move || {
                    entries.store(1, Ordering::Relaxed);
                    account.release(1, 1);
                }
            });
            let maker = thread::spawn({
                let (account, entries) = (Arc::clone(&account), Arc::clone(&entries));
                move || {
                    if account.reserve(CALL, 2).is_ok() {
                        assert_eq!(entries.load(Ordering::Relaxed), 0, "the queue overflows");
                    }
                }
            });
            // The poller.
            let stale = account.stale();
            let polled = entries.load(Ordering::Relaxed);
            entries.store(0, Ordering::Relaxed);
            if stale > 0 {
                assert_eq!(polled, 1, "what was left behind is still to come");
                account.forget_stale(stale);
            }
            destroyer.join().unwrap();
            maker.join().unwrap();
        });
    }

    /// A queue pair whose completions have all been polled leaves nothing behind.
    #[test]
    fn cq_room_entries_released_at_once_are_empty() {
        loom::model(|| {
            let account = Arc::new(CqAccount::new(2));
            let entries = Arc::new(AtomicU32::new(1));
            account.reserve(CALL, 2).unwrap();
            let maker = thread::spawn({
                let (account, entries) = (Arc::clone(&account), Arc::clone(&entries));
                move || {
                    if account.reserve(CALL, 2).is_ok() {
                        assert_eq!(entries.load(Ordering::Relaxed), 0, "the queue overflows");
                    }
                }
            });
            entries.store(0, Ordering::Relaxed);
            account.release(2, 0);
            maker.join().unwrap();
        });
    }

    #[test]
    fn cq_room_last_entries_are_reserved_or_cut_by_a_shrink() {
        loom::model(|| {
            let account = Arc::new(CqAccount::new(3));
            let reserve = || {
                let account = Arc::clone(&account);
                thread::spawn(move || u32::from(account.reserve(CALL, 2).is_ok()))
            };
            let (a, b) = (reserve(), reserve());
            let shrunk = account.shrink(1).is_ok();
            let reserved = a.join().unwrap() + b.join().unwrap();
            assert_eq!(reserved, u32::from(!shrunk));
            let expected = if shrunk { (1, 1) } else { (3, 1) };
            assert_eq!((account.capacity(), account.available()), expected);
        });
    }

    #[test]
    fn cq_room_entries_released_during_a_poll_stay_stale() {
        loom::model(|| {
            let account = Arc::new(CqAccount::new(4));
            account.reserve(CALL, 4).unwrap();
            let release = |entries, stale| {
                let account = Arc::clone(&account);
                thread::spawn(move || account.release(entries, stale))
            };
            let (a, b) = (release(1, 1), release(3, 2));
            account.forget_stale(account.stale());
            a.join().unwrap();
            b.join().unwrap();
            assert_eq!(account.available() + account.stale(), 4);
            account.forget_stale(account.stale());
            assert_eq!((account.available(), account.stale()), (4, 0));
        });
    }
}
