//! Traffic in both directions during a disturbance.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use rds::Socket;

use crate::{TEST_TIMEOUT, addr, pattern};

/// Length of the content after the message number. The last message has none.
const REST: usize = 6000;

/// Stops the other threads on drop, including a panic.
pub(crate) struct StopOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

pub(crate) fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + TEST_TIMEOUT.unwrap();
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn send(from: &Socket, to: &Socket, stop: &AtomicBool) {
    let mut next = 0_u64;
    while !stop.load(Relaxed) {
        let bytes = [&next.to_le_bytes()[..], &pattern(REST, 3)].concat();
        from.send_to(&bytes, addr(to)).unwrap();
        next += 1;
    }
    from.send_to(&next.to_le_bytes(), addr(to)).unwrap();
}

fn take(at: &Socket, received: &AtomicU64) {
    let mut buf = vec![0; REST + 100];
    let mut next = 0_u64;
    loop {
        let (len, _) = at.recv_from(&mut buf).unwrap();
        let (number, rest) = buf[..len].split_first_chunk().unwrap();
        assert_eq!(u64::from_le_bytes(*number), next);
        if rest.is_empty() {
            return;
        }
        assert_eq!(rest, pattern(REST, 3));
        next += 1;
        received.store(next, Relaxed);
    }
}

/// Sends messages both ways during `trouble`, and checks their order and completeness. The argument
/// of `trouble` waits for progress in both directions.
pub(crate) fn everything_arrives(a: &Socket, b: &Socket, trouble: impl FnOnce(&dyn Fn())) {
    let stop = AtomicBool::new(false);
    let received = [AtomicU64::new(0), AtomicU64::new(0)];
    thread::scope(|scope| {
        scope.spawn(|| send(a, b, &stop));
        scope.spawn(|| send(b, a, &stop));
        scope.spawn(|| take(a, &received[0]));
        scope.spawn(|| take(b, &received[1]));
        let end = StopOnDrop(&stop);
        let progress = || {
            let before = received.each_ref().map(|received| received.load(Relaxed));
            let comes = |side: usize| received[side].load(Relaxed) > before[side];
            await_that("nothing comes any more", || comes(0) && comes(1));
        };
        trouble(&progress);
        progress();
        drop(end);
    });
}
