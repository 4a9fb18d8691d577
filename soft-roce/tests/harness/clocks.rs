//! Guests' clocks while the host is busy.

use std::env;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use super::{Finished, guests};

/// Threads that keep the host's processors busy.
const BUSY_THREADS: usize = 4;

/// Runs `work` while [`BUSY_THREADS`] threads spin.
fn on_a_busy_host(work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..BUSY_THREADS {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Relaxed);
        done.unwrap();
    });
}

/// Clock rates of both guests, printed by `-v`.
fn rates(finished: &Finished) -> Vec<f64> {
    let lines = finished.stderr.lines();
    let rates = lines.filter_map(|line| {
        let rate = line.strip_suffix(" times as fast")?;
        rate.rsplit(' ').next()?.parse().ok()
    });
    rates.collect()
}

/// Boots a pair of guests and checks that their clocks run within 3 % of the host's over 6 s. With `LONG`: 20 pairs in
/// sequence, within 1 % over 20 s.
fn clocks_agree(backend: &[&str]) {
    let (boots, seconds, limit) = match env::var_os("LONG") {
        Some(_) => (20, "20", 0.01),
        None => (1, "6", 0.03),
    };
    on_a_busy_host(|| {
        for _ in 0..boots {
            let sleep = format!("sleep {seconds}");
            let finished = guests(&[&["-v"], backend].concat(), &sleep, &sleep).expect_code(0);
            let rates = rates(&finished);
            assert_eq!(rates.len(), 2, "{finished:#?}");
            for rate in rates {
                assert!((rate - 1.0).abs() < limit, "{finished:#?}");
            }
        }
    });
}

/// Uses the backend of `SOFT_ROCE_BACKEND`, or the default; with `LONG`, each backend.
#[test]
fn guest_clocks_on_busy_host_keep_time() {
    let backends: &[&str] = match env::var_os("LONG") {
        Some(_) => &["uml", "qemu"],
        None => &[],
    };
    if backends.is_empty() {
        clocks_agree(&[]);
    }
    for backend in backends {
        clocks_agree(&["--backend", backend]);
    }
}
