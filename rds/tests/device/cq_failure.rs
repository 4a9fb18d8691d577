//! Completion queues that fail: what they would have told is never heard of.

use std::{
    collections::HashMap,
    process::Command,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use ibverbs_sys as ffi;
use rds::{Atomic, ExportOptions, Received, SendOptions, Status};
use verbs::Context;

use crate::{
    addr, another_of, any,
    bidirectional::{await_that, everything_arrives},
    counter, other, socket,
};

/// Completions that are polled for at once on the queue of a connection: `BATCH` in `ib_connection.rs`.
const CONNECTION: i32 = 64;

/// Completions that are polled for at once on the queue of a device's connection to itself: `ENTRIES` in `loopback.rs`.
const LOOPBACK: i32 = 2;

type Poll = unsafe extern "C" fn(*mut ffi::ibv_cq, i32, *mut ffi::ibv_wc) -> i32;

/// The provider's own.
static POLL: OnceLock<Poll> = OnceLock::new();

static QUEUES: Mutex<Option<Queues>> = Mutex::new(None);

/// What becomes of completion queues.
#[derive(Default)]
struct Queues {
    /// Each that is polled for this number of completions breaks. It tells connections and loopbacks apart, and from
    /// the queue that wakes the engine, which is polled again after it has failed.
    breaking: Option<i32>,
    /// Those that have, by their addresses, and how often they have been looked at.
    broken: HashMap<usize, u64>,
    /// The same of those in whose place there is another.
    gone: Vec<u64>,
}

fn with<T>(f: impl FnOnce(&mut Queues) -> T) -> T {
    let mut queues: MutexGuard<'_, _> = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    f(queues.get_or_insert_default())
}

impl Queues {
    /// How often each that has broken was looked at.
    fn looks(&self) -> Vec<u64> {
        self.gone
            .iter()
            .chain(self.broken.values())
            .copied()
            .collect()
    }

    /// Somebody looks at a queue for so many completions. Returns whether that fails.
    fn look(&mut self, cq: usize, count: i32) -> bool {
        if count == 1 {
            // It has just been made: nobody else asks for so few.
            self.gone.extend(self.broken.remove(&cq));
            return false;
        }
        if self.breaking == Some(count) {
            self.broken.entry(cq).or_default();
        }
        let broken = self.broken.get_mut(&cq);
        let fails = broken.is_some();
        broken.into_iter().for_each(|looks| *looks += 1);
        fails
    }
}

/// In the place of the provider's.
///
/// # Safety
/// As for `ibv_poll_cq`.
unsafe extern "C" fn poll_or_fail(cq: *mut ffi::ibv_cq, count: i32, wc: *mut ffi::ibv_wc) -> i32 {
    let poll = POLL.get().copied();
    match poll {
        Some(poll) if !with(|queues| queues.look(cq.addr(), count)) => {
            // SAFETY: the caller promises what this asks for.
            unsafe { poll(cq, count, wc) }
        }
        _ => -1,
    }
}

/// Devices whose completion queues break when they are told to.
struct Broken {
    devices: Vec<Context>,
}

impl Broken {
    /// # Safety
    /// - No other thread makes queues, now or when this is dropped.
    unsafe fn new() -> Self {
        let devices = cm::devices().unwrap();
        with(|queues| *queues = Queues::default());
        for device in &devices {
            // SAFETY: the device is open, and nobody else uses its table (the caller's promise).
            let place = unsafe { &mut (*device.as_raw()).ops.poll_cq };
            let own = place.replace(poll_or_fail).unwrap();
            assert_eq!(
                *POLL.get_or_init(|| own) as usize,
                own as usize,
                "devices of one kind"
            );
        }
        Self { devices }
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        for device in &self.devices {
            // SAFETY: as above.
            unsafe { (*device.as_raw()).ops.poll_cq = POLL.get().copied() };
        }
    }
}

/// How many objects of each kind the kernel has.
fn objects() -> String {
    let output = Command::new("rdma").args(["resource", "show"]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A connection whose queue cannot be looked at is closed at once, and made anew; nothing is lost.
#[test]
fn queues_that_fail_are_looked_at_once() {
    /// So many fail, most of them of connections that are made in the meantime.
    const FAILURES: usize = 6;
    // SAFETY: there is no engine before and after.
    let broken = unsafe { Broken::new() };
    // librdmacm makes a protection domain with the first identifier, and keeps it.
    drop(socket(any()));
    let before = objects();
    let (a, b) = (socket(any()), socket(other()));
    everything_arrives(&a, &b, |progress| {
        progress();
        with(|queues| queues.breaking = Some(CONNECTION));
        await_that("no queues fail", || {
            with(|queues| queues.looks().len() >= FAILURES)
        });
        with(|queues| queues.breaking = None);
    });
    let looks = with(|queues| queues.looks());
    assert!(looks.iter().all(|&looks| looks == 1), "{looks:?}");
    assert!(counter(a.engine(), "conn_reset") > 0);
    drop((a, b));
    await_that("something is left", || objects() == before);
    drop(broken);
}

/// The same with that of a device to itself: the operation fails, and the next does not.
#[test]
fn a_device_is_connected_to_itself_anew() {
    // SAFETY: there is no engine before and after.
    let broken = unsafe { Broken::new() };
    drop(socket(any()));
    let before = objects();
    let a = socket(any());
    let b = another_of(&a);
    let (memory, place) = (a.alloc(8).unwrap(), b.alloc(8).unwrap());
    let cookie = a.export(&memory, ExportOptions::new()).unwrap();
    let add = || {
        let add = Atomic::fetch_add(place.slice(0..8), cookie, 1).notify();
        let options = SendOptions::new().to(addr(&a)).atomic(add).silent();
        b.send_msg(&[], &options).unwrap();
        match b.recv().unwrap() {
            Received::Operation(operation) => operation.status,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(add(), Status::Success);
    with(|queues| queues.breaking = Some(LOOPBACK));
    assert_eq!([add(), add()], [Status::Dropped; 2]);
    with(|queues| queues.breaking = None);
    assert_eq!(with(|queues| queues.looks()), [1, 1]);
    // They may have been done.
    let done = memory.load(0);
    assert!((1..=3).contains(&done), "{done}");
    assert_eq!(add(), Status::Success);
    assert_eq!((place.load(0), memory.load(0)), (done, done + 1));
    drop((memory, place, a, b));
    await_that("something is left", || objects() == before);
    drop(broken);
}
