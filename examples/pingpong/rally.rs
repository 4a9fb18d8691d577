//! The message exchange: a side sends once the last send has completed and a message has been received.

#![expect(clippy::print_stdout, reason = "of programs for the terminal")]

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use verbs::{Completed, QueuePair, Rts, WorkCompletion, qp::Transport, work::Scatter};

use super::{options::Options, queue::Source};

/// The queue pairs of one side, and the memory for receives.
pub trait Side {
    /// Number of queue pairs.
    fn queue_pairs(&self) -> usize;

    /// Sends a message.
    ///
    /// # Errors
    /// Posting failed.
    fn send(&mut self, qp: usize) -> anyhow::Result<()>;

    /// Posts a receive.
    ///
    /// # Errors
    /// Posting failed.
    fn receive(&mut self) -> anyhow::Result<()>;

    /// Number of receives posted and not completed.
    fn receives_in_flight(&self) -> usize;

    /// Processes a completion.
    ///
    /// # Errors
    /// The completion belongs to no queue pair of this side.
    fn complete(&mut self, wc: WorkCompletion<'_>) -> anyhow::Result<Stroke>;
}

/// A completed operation, with the index of the queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    /// A send has completed.
    Sent(usize),
    /// A message has been received.
    Received(usize),
}

/// Operations outstanding before a queue pair may send again.
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    send: bool,
    receive: bool,
}

/// Exchanges messages until both sides have sent the configured number, over all queue pairs, and returns the
/// elapsed time. The client sends first.
///
/// # Errors
/// A request has failed.
pub fn play(
    options: &Options,
    cq: &mut impl Source,
    side: &mut impl Side,
) -> anyhow::Result<Duration> {
    let serves = options.host.is_none();
    let start = Pending {
        send: !serves,
        receive: true,
    };
    let mut pending = vec![start; side.queue_pairs()];
    if !serves {
        for qp in 0..pending.len() {
            side.send(qp)?;
        }
    }
    let begin = Instant::now();
    let (mut sent, mut received) = (0, 0);
    while sent < options.iters || received < options.iters {
        cq.fetch(options.events, |wc| {
            let what = if wc.is_receive() { "receive" } else { "send" };
            wc.ok().with_context(|| format!("a {what} has failed"))?;
            let (Stroke::Sent(qp) | Stroke::Received(qp)) = match side.complete(wc)? {
                stroke @ Stroke::Sent(qp) => {
                    sent += 1;
                    pending[qp].send = false;
                    stroke
                }
                stroke @ Stroke::Received(qp) => {
                    received += 1;
                    pending[qp].receive = false;
                    replenish(options, side)?;
                    stroke
                }
            };
            let Pending { send, receive } = pending[qp];
            if sent < options.iters && !send && !receive {
                side.send(qp)?;
                pending[qp] = Pending {
                    send: true,
                    receive: true,
                };
            }
            Ok(())
        })?;
    }
    Ok(begin.elapsed())
}

/// Reposts receives before a message can find none.
fn replenish(options: &Options, side: &mut impl Side) -> anyhow::Result<()> {
    let depth = usize::try_from(options.rx_depth)?;
    if side.receives_in_flight() <= side.queue_pairs() {
        while side.receives_in_flight() < depth {
            side.receive().context("couldn't post receive")?;
        }
    }
    Ok(())
}

/// Prints throughput and time per exchange.
pub fn print_rates(options: &Options, size: u32, elapsed: Duration) {
    println!("{}", rates(options.iters, size, elapsed));
}

fn rates(iters: u32, size: u32, elapsed: Duration) -> String {
    let bytes = u64::from(size) * u64::from(iters) * 2;
    let seconds = elapsed.as_secs_f64();
    let micros = seconds * 1e6;
    #[expect(clippy::cast_precision_loss, reason = "it is rounded anyway")]
    let mbits = bytes as f64 * 8. / micros;
    let each = micros / f64::from(iters);
    format!(
        "{bytes} bytes in {seconds:.2} seconds = {mbits:.2} Mbit/sec\n\
         {iters} iters in {seconds:.2} seconds = {each:.2} usec/iter"
    )
}

/// A side with one queue pair and receives of its own.
pub struct Single<T, SW, RW, F> {
    qp: QueuePair<T, Rts, SW, RW>,
    room: RW,
    send: F,
}

impl<T, SW, RW, F> Single<T, SW, RW, F>
where
    T: Transport,
    F: FnMut(&mut QueuePair<T, Rts, SW, RW>) -> anyhow::Result<()>,
{
    /// Creates a side with the function for sending and the memory for receives.
    pub fn new(qp: QueuePair<T, Rts, SW, RW>, room: RW, send: F) -> Self {
        Self { qp, room, send }
    }
}

impl<T, SW, RW, F> Side for Single<T, SW, RW, F>
where
    T: Transport,
    RW: Scatter + Clone,
    F: FnMut(&mut QueuePair<T, Rts, SW, RW>) -> anyhow::Result<()>,
{
    fn queue_pairs(&self) -> usize {
        1
    }

    fn send(&mut self, _: usize) -> anyhow::Result<()> {
        (self.send)(&mut self.qp).context("couldn't post send")
    }

    fn receive(&mut self) -> anyhow::Result<()> {
        let posted = self.qp.post_recv(self.room.clone());
        Ok(posted.map_err(|refused| refused.error)?)
    }

    fn receives_in_flight(&self) -> usize {
        self.qp.receive_queue().in_flight()
    }

    fn complete(&mut self, wc: WorkCompletion<'_>) -> anyhow::Result<Stroke> {
        match self.qp.complete(wc) {
            Ok(Completed::Send(_)) => Ok(Stroke::Sent(0)),
            Ok(Completed::Receive(_)) => Ok(Stroke::Received(0)),
            Err(wc) => bail!("{wc:?} belongs to no request"),
        }
    }
}

impl<T: Transport, SW, RW, F> std::fmt::Debug for Single<T, SW, RW, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Single")
            .field("qp", &self.qp)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_format_matches_c() {
        assert_eq!(
            rates(1000, 4096, Duration::from_millis(80)),
            "8192000 bytes in 0.08 seconds = 819.20 Mbit/sec\n\
             1000 iters in 0.08 seconds = 80.00 usec/iter"
        );
    }
}
