//! Measurement of processor load by threads of the lowest priority.
#![expect(clippy::print_stdout, reason = "the user wants to see the threads")]

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Instant,
};

/// One thread per processor.
#[derive(Debug)]
pub struct Soak {
    threads: Vec<(Arc<Counter>, u64)>,
}

#[derive(Debug, Default)]
struct Counter {
    done: AtomicU64,
    /// Maximum progress in a second.
    capacity: AtomicU64,
}

impl Soak {
    /// Starts the threads, running until the end of the process.
    ///
    /// # Errors
    /// As for starting threads.
    pub fn start() -> io::Result<Self> {
        let count = thread::available_parallelism()?.get();
        println!("started {count} cycle soaking threads");
        let start = |_| {
            let counter = Arc::new(Counter::default());
            let local = Arc::clone(&counter);
            thread::Builder::new()
                .name("soak".to_owned())
                .spawn(move || local.run())?;
            Ok((counter, 0))
        };
        let threads = (0..count).map(start).collect::<io::Result<_>>()?;
        Ok(Self { threads })
    }

    /// Processor load in percent since the last call, if that was a second ago.
    #[expect(clippy::cast_precision_loss, reason = "it is printed")]
    pub fn busy(&mut self) -> f64 {
        let (mut capacity, mut soaked) = (0, 0);
        for (counter, last) in &mut self.threads {
            let limit = counter.capacity.load(Relaxed);
            let done = counter.done.load(Relaxed);
            soaked += limit.min(done - *last);
            capacity += limit;
            *last = done;
        }
        (capacity - soaked) as f64 * 100.0 / capacity.max(1) as f64
    }
}

impl Counter {
    fn run(&self) {
        // Without a lower priority, the threads take more than the idle time, and the load reads
        // too high.
        let _niceness = rustix::process::nice(19);
        let mut round = 1000;
        loop {
            let start = Instant::now();
            for _ in 0..round {
                thread::yield_now();
                self.done.fetch_add(1, Relaxed);
            }
            let millis = start.elapsed().as_millis().max(1);
            let rate = u128::from(round) * 1000 / millis;
            let rate = u64::try_from(rate).unwrap_or(u64::MAX);
            round = (rate / 10).max(1000);
            self.capacity.fetch_max(rate, Relaxed);
        }
    }
}
