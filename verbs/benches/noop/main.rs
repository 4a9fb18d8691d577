//! The measured loops, against those in `reference.c`.
//!
//! ```text
//! noop DEVICE CASE COUNT CHUNKS
//! ```
//!
//! runs `CASE` `COUNT` times, `CHUNKS` times over, and prints the median time of a chunk, in
//! nanoseconds for one operation (a request posted, and its completion), and the number of
//! allocations in all chunks. `cargo xtask bench verbs` runs the program, mostly on the device
//! without effects of `provider.c`.

#![expect(clippy::print_stdout, reason = "of a program for the terminal")]

mod allocations;
mod floor;
mod kinds;

use std::{error::Error, hint::black_box, mem, time::Instant};

use arrayvec::ArrayVec;
use verbs::{
    Buf, Completed, CompletionQueue, Context, ProtectionDomain, QueuePair, Reset, Rts,
    WorkCompletion, op, qp::Attributes,
};

use allocations::Allocations;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const DEPTH: u32 = 64;
const BATCH: u32 = 16;
const LENGTH: u32 = 64;
/// The buffers in the program's hands, up to C's room for them.
type Stock = ArrayVec<Buf, { BATCH as usize }>;

/// How many queue pairs are made to see how much memory one takes.
const QUEUE_PAIRS: u32 = 10_000;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, case, count, chunks] = &arguments[..] else {
        return Err("usage: noop DEVICE CASE COUNT CHUNKS".into());
    };
    let (count, chunks) = (count.parse()?, chunks.parse()?);
    let devices = verbs::devices()?;
    let device = devices.find(device).ok_or("no such device")?;
    let ctx = device.open()?;
    match case.as_str() {
        "registration" => registrations(&ctx.alloc_pd()?, chunks),
        "memory" => memory(&ctx, count),
        _ => measure(of_case(&ctx, case)?, count, chunks),
    }
}

/// A loop that posts and completes this number of requests.
type Loop = Box<dyn FnMut(u32) -> Result<()>>;

/// The loop of a case.
fn of_case(ctx: &Context, case: &str) -> Result<Loop> {
    use kinds::Kind;
    let body = match case {
        "send" => Ends::send,
        "send-batch" => Ends::send_batch,
        "send-list" => Ends::send_list,
        "recv" => Ends::recv,
        "floor-send" => floor::send,
        "floor-recv" => floor::recv,
        "region-write" => return kinds::RegionWrite::boxed(ctx),
        "pool-send" => return kinds::PoolSend::boxed(ctx),
        "local-pool-send" => return kinds::LocalPoolSend::boxed(ctx),
        "srq-recv" => return kinds::SharedReceive::boxed(ctx),
        "extended-send" => return kinds::ExtendedSend::boxed(ctx),
        "1000-pairs" => return kinds::ManyPairs::boxed(ctx, 1_000),
        "10000-pairs" => return kinds::ManyPairs::boxed(ctx, 10_000),
        "extended-poll" => return kinds::ExtendedPoll::boxed(ctx),
        _ => return Err("no such case".into()),
    };
    let mut ends = Ends::new(ctx, case)?;
    Ok(Box::new(move |count| body(&mut ends, count)))
}

/// Times chunks of a loop.
fn measure(mut body: Loop, count: u32, chunks: usize) -> Result<()> {
    let mut times = Vec::with_capacity(chunks);
    // One-time allocations of the first run are not counted.
    body(count.min(BATCH))?;
    let before = Allocations::so_far();
    for _ in 0..chunks {
        let begin = Instant::now();
        body(count)?;
        times.push(begin.elapsed().as_secs_f64() * 1e9 / f64::from(count));
    }
    let after = Allocations::so_far();
    print(times, after.count - before.count);
    Ok(())
}

fn print(mut times: Vec<f64>, allocations: usize) {
    times.sort_by(f64::total_cmp);
    println!("{:.3} {allocations}", times[times.len() / 2]);
}

/// The objects used by the loops.
struct Ends {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair<verbs::Rc, Rts>,
    bufs: Stock,
}

impl Ends {
    fn new(ctx: &Context, case: &str) -> Result<Self> {
        let pd = ctx.alloc_pd()?;
        // As many as C's loops ask for.
        let batch = if case.contains("send-") { BATCH } else { 1 };
        let cq = ctx.cq_builder(2 * DEPTH).batch(batch as usize).create()?;
        let qp = pd.qp_builder::<verbs::Rc>(&cq, &cq);
        let qp = qp.max_send_wr(DEPTH).max_recv_wr(DEPTH).create()?;
        let qp = bring_up(qp)?;
        let bufs = (0..BATCH).map(|_| pd.alloc_buf(LENGTH as usize));
        let bufs = bufs.collect::<verbs::Result<_>>()?;
        Ok(Self { pd, cq, qp, bufs })
    }

    /// One request at a time.
    fn send(&mut self, count: u32) -> Result<()> {
        let mut buf = self.bufs.pop().ok_or("a loop has lost its buffer")?;
        for _ in 0..count {
            self.qp.post(op::Send::new(buf)).map_err(|it| it.error)?;
            buf = loop {
                let first = self.cq.poll()?.next();
                if let Some(wc) = first {
                    break sent(&mut self.qp, wc)?;
                }
            };
        }
        self.bufs.push(buf);
        Ok(())
    }

    /// As many requests as one poll fetches.
    fn send_batch(&mut self, count: u32) -> Result<()> {
        let mut free = mem::take(&mut self.bufs);
        for _ in 0..count / BATCH {
            while let Some(buf) = free.pop() {
                self.qp.post(op::Send::new(buf)).map_err(|it| it.error)?;
            }
            self.take_back(&mut free)?;
        }
        self.bufs = free;
        Ok(())
    }

    /// As many requests as one poll fetches, with one doorbell.
    fn send_list(&mut self, count: u32) -> Result<()> {
        let mut free = mem::take(&mut self.bufs);
        for _ in 0..count / BATCH {
            let mut batch = self.qp.batch();
            while let Some(buf) = free.pop() {
                batch.push(op::Send::new(buf)).map_err(|it| it.error)?;
            }
            batch.post().map_err(|it| it.error)?;
            self.take_back(&mut free)?;
        }
        self.bufs = free;
        Ok(())
    }

    // Inlined, as C's loops are.
    #[inline(always)]
    fn take_back(&mut self, free: &mut Stock) -> Result<()> {
        while free.len() < BATCH as usize {
            for wc in self.cq.poll()? {
                free.push(sent(&mut self.qp, wc)?);
            }
        }
        Ok(())
    }

    /// One receive at a time.
    fn recv(&mut self, count: u32) -> Result<()> {
        let mut buf = self.bufs.pop().ok_or("a loop has lost its buffer")?;
        for _ in 0..count {
            self.qp.post_recv(buf).map_err(|it| it.error)?;
            buf = loop {
                let first = self.cq.poll()?.next();
                if let Some(wc) = first {
                    break received(&mut self.qp, wc)?;
                }
            };
        }
        self.bufs.push(buf);
        Ok(())
    }
}

// Inlined, as C's loops are.
#[inline(always)]
fn sent<SW, RW>(qp: &mut QueuePair<verbs::Rc, Rts, SW, RW>, wc: WorkCompletion<'_>) -> Result<SW> {
    match qp.complete(wc) {
        Ok(Completed::Send(done)) => Ok(done.into_work().map_err(|failed| failed.error)?),
        _ => Err("the completion is of nothing that was sent".into()),
    }
}

#[inline(always)]
fn received(qp: &mut QueuePair<verbs::Rc, Rts>, wc: WorkCompletion<'_>) -> Result<Buf> {
    match qp.complete(wc) {
        Ok(Completed::Receive(done)) => Ok(done.into_work()?),
        _ => Err("the completion is of nothing that was received".into()),
    }
}

/// The device without effects needs no attributes but the state.
fn bring_up<SW, RW>(
    qp: QueuePair<verbs::Rc, Reset, SW, RW>,
) -> Result<QueuePair<verbs::Rc, Rts, SW, RW>> {
    let none = ibverbs_sys::ibv_qp_attr::zeroed();
    let state = ibverbs_sys::ibv_qp_attr_mask::IBV_QP_STATE.0;
    let qp = qp
        .to_init(&Attributes::from_raw(none, state))
        .map_err(|it| it.error)?;
    let qp = qp
        .to_rtr(&Attributes::from_raw(none, state))
        .map_err(|it| it.error)?;
    Ok(qp
        .to_rts(&Attributes::from_raw(none, state))
        .map_err(|it| it.error)?)
}

/// Times the registration of 1 GiB, touched before.
fn registrations(pd: &ProtectionDomain, times: usize) -> Result<()> {
    let once = |_| {
        let memory = vec![1_u8; 1 << 30].into_boxed_slice();
        let begin = Instant::now();
        let buf = pd.register_buf(memory)?;
        let time = begin.elapsed().as_secs_f64() * 1e9;
        drop(black_box(buf));
        Ok(time)
    };
    let times = (0..times).map(once).collect::<Result<_>>()?;
    print(times, 0);
    Ok(())
}

/// Prints the size in bytes of a queue pair of this depth, beside the size of the device's part.
fn memory(ctx: &Context, depth: u32) -> Result<()> {
    let pd = ctx.alloc_pd()?;
    let cq = ctx.create_cq(2 * depth * QUEUE_PAIRS)?;
    let mut queue_pairs = Vec::with_capacity(QUEUE_PAIRS as usize);
    let before = Allocations::so_far();
    for _ in 0..QUEUE_PAIRS {
        let qp = pd.qp_builder::<verbs::Rc>(&cq, &cq);
        queue_pairs.push(qp.max_send_wr(depth).max_recv_wr(depth).create()?);
    }
    let after = Allocations::so_far();
    let handle = size_of::<QueuePair<verbs::Rc, Rts>>();
    let heap = (after.bytes - before.bytes) / queue_pairs.len();
    println!("{}", heap + handle);
    Ok(())
}
