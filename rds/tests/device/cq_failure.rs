//! Failures of `ibv_poll_cq`.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use ibverbs_sys as ffi;
use rds::{Atomic, Event, ExportOptions, SendOptions, Status};
use verbs::Context;

use crate::{
    addr, another_of, any,
    bidirectional::{await_that, everything_arrives},
    counter, other, resources, socket,
};

/// Completions per poll of a connection's queue: `POLL_BATCH` in `ib_connection.rs`.
const CONNECTION: i32 = 64;

/// Completions per poll of a loopback queue: `CQ_ENTRIES` in `loopback.rs`.
const LOOPBACK: i32 = 2;

type Poll = unsafe extern "C" fn(*mut ffi::ibv_cq, i32, *mut ffi::ibv_wc) -> i32;

/// The provider's function.
static POLL: OnceLock<Poll> = OnceLock::new();

static QUEUES: Mutex<Option<Queues>> = Mutex::new(None);

/// Injected failures of completion queues.
#[derive(Default)]
struct Queues {
    /// Queues polled for this number of completions fail. The number distinguishes connections,
    /// loopbacks and the wake-up queue of the engine, polled again after a failure.
    breaking: Option<i32>,
    /// Number of polls of each failed queue, by address.
    broken: HashMap<usize, u64>,
    /// Number of polls of destroyed failed queues.
    destroyed: Vec<u64>,
}

fn with<T>(f: impl FnOnce(&mut Queues) -> T) -> T {
    let mut queues: MutexGuard<'_, _> = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    f(queues.get_or_insert_default())
}

impl Queues {
    /// Number of polls of each failed queue.
    fn poll_counts(&self) -> Vec<u64> {
        self.destroyed
            .iter()
            .chain(self.broken.values())
            .copied()
            .collect()
    }

    /// Counts a poll. Returns whether the poll should fail.
    fn count_poll(&mut self, cq: usize, count: i32) -> bool {
        if count == 1 {
            // Only a new queue is polled for one completion.
            self.destroyed.extend(self.broken.remove(&cq));
            return false;
        }
        if self.breaking == Some(count) {
            self.broken.entry(cq).or_default();
        }
        let broken = self.broken.get_mut(&cq);
        let fails = broken.is_some();
        broken.into_iter().for_each(|polls| *polls += 1);
        fails
    }
}

/// Replacement of the provider's function.
///
/// # Safety
/// As for `ibv_poll_cq`.
unsafe extern "C" fn poll_or_fail(cq: *mut ffi::ibv_cq, count: i32, wc: *mut ffi::ibv_wc) -> i32 {
    let poll = POLL.get().copied();
    match poll {
        Some(poll) if !with(|queues| queues.count_poll(cq.addr(), count)) => {
            // SAFETY: guaranteed by the caller.
            unsafe { poll(cq, count, wc) }
        }
        _ => -1,
    }
}

/// Devices with injected failures of completion queues.
struct Broken {
    devices: Vec<Context>,
}

impl Broken {
    /// # Safety
    /// - No other thread creates queues, now or on drop.
    unsafe fn new() -> Self {
        let devices = cm::devices().unwrap();
        with(|queues| *queues = Queues::default());
        for device in &devices {
            // SAFETY: the device is open, and the caller guarantees exclusive access to its table.
            let poll_cq = unsafe { &mut (*device.as_raw()).ops.poll_cq };
            let original = poll_cq.replace(poll_or_fail).unwrap();
            assert_eq!(
                *POLL.get_or_init(|| original) as usize,
                original as usize,
                "devices of one kind"
            );
        }
        Self { devices }
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        for device in &self.devices {
            // SAFETY: as in `new`.
            unsafe { (*device.as_raw()).ops.poll_cq = POLL.get().copied() };
        }
    }
}

/// A connection with a failed queue is closed at once and reestablished without loss.
#[test]
fn cq_failure_reconnects_and_is_polled_once() {
    /// Number of failed queues, most of connections created meanwhile.
    const FAILURES: usize = 6;
    // SAFETY: no engine exists before and after.
    let broken = unsafe { Broken::new() };
    // librdmacm creates a protection domain with the first identifier, and keeps the domain.
    drop(socket(any()));
    let before = resources::counts();
    let (a, b) = (socket(any()), socket(other()));
    everything_arrives(&a, &b, |progress| {
        progress();
        with(|queues| queues.breaking = Some(CONNECTION));
        await_that("no queues fail", || {
            with(|queues| queues.poll_counts().len() >= FAILURES)
        });
        with(|queues| queues.breaking = None);
    });
    let poll_counts = with(|queues| queues.poll_counts());
    assert!(
        poll_counts.iter().all(|&polls| polls == 1),
        "{poll_counts:?}"
    );
    assert!(counter(a.engine(), "conn_reset") > 0);
    drop((a, b));
    await_that("something is left", || resources::are_released(&before));
    drop(broken);
}

/// The loopback queue pair of a device is recreated after a failed operation.
#[test]
fn cq_failure_of_loopback_recreates_it() {
    // SAFETY: no engine exists before and after.
    let broken = unsafe { Broken::new() };
    drop(socket(any()));
    let before = resources::counts();
    let a = socket(any());
    let b = another_of(&a);
    let (memory, local) = (a.alloc(8).unwrap(), b.alloc(8).unwrap());
    let cookie = a.export(&memory, ExportOptions::new()).unwrap();
    let add = || {
        let add = Atomic::fetch_add(local.slice(0..8), cookie, 1).notify();
        let options = SendOptions::new().to(addr(&a)).atomic(add).silent();
        b.send_msg(&[], &options).unwrap();
        match b.recv_event().unwrap() {
            Event::Operation(operation) => operation.status,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(add(), Status::Success);
    with(|queues| queues.breaking = Some(LOOPBACK));
    assert_eq!([add(), add()], [Status::Dropped; 2]);
    with(|queues| queues.breaking = None);
    assert_eq!(with(|queues| queues.poll_counts()), [1, 1]);
    // The failed operations may have been performed.
    let done = memory.load(0);
    assert!((1..=3).contains(&done), "{done}");
    assert_eq!(add(), Status::Success);
    assert_eq!((local.load(0), memory.load(0)), (done, done + 1));
    drop((memory, local, a, b));
    await_that("something is left", || resources::are_released(&before));
    drop(broken);
}
