//! The loops of kinds of work other than an owned buffer on the classic calls.

use verbs::{
    Buf, CompletionQueue, Context, QueuePair, RemoteAccess, RemoteRegion, RemoteToken, Reset, Rts,
    SharedReceiveQueue,
    cq::{ExtendedCq, WcFields},
    mr::{BufPool, LocalPool, PoolBuf},
    op::{self, SendOps},
    qp::{QpId, QpMap, QueuePairBuilder},
};

use crate::{BATCH, DEPTH, LENGTH, Loop, Result, bring_up, sent};

/// Length of the pool, in buffers.
const POOL: usize = 64;

/// Depth of each of many queue pairs.
const MANY_DEPTH: u32 = 16;

/// One kind of work, with the objects of its loop.
pub(crate) trait Kind: Sized + 'static {
    /// Makes the objects.
    fn new(ctx: &Context) -> Result<Self>;
    /// Posts and completes `count` requests.
    fn run(&mut self, count: u32) -> Result<()>;

    /// The loop, for [`crate::measure`].
    fn boxed(ctx: &Context) -> Result<Loop> {
        let mut kind = Self::new(ctx)?;
        Ok(Box::new(move |count| kind.run(count)))
    }
}

/// The token of a peer's memory. The device without effects reads no token.
const TOKEN: RemoteToken = RemoteToken {
    addr: 4096,
    len: LENGTH as u64,
    rkey: 7,
};

/// Queue pair whose sends and receives own work of these types, and its completion queue.
struct Pair<SW, RW> {
    cq: CompletionQueue,
    qp: QueuePair<verbs::Rc, Rts, SW, RW>,
}

impl<SW: 'static, RW: 'static> Pair<SW, RW> {
    fn new(
        ctx: &Context,
        pd: &verbs::ProtectionDomain,
        adapt: impl for<'a> Fn(QueuePairBuilder<'a, verbs::Rc>) -> QueuePairBuilder<'a, verbs::Rc>,
    ) -> Result<Self> {
        let cq = ctx.cq_builder(2 * DEPTH).batch(1).create()?;
        let builder = pd.qp_builder::<verbs::Rc>(&cq, &cq);
        let builder = adapt(builder.max_send_wr(DEPTH).max_recv_wr(DEPTH));
        let qp: QueuePair<verbs::Rc, Reset, SW, RW> = builder.create_for()?;
        let qp = bring_up(qp)?;
        Ok(Self { cq, qp })
    }

    /// The work of the next completed send.
    #[inline(always)]
    fn sent(&mut self) -> Result<SW> {
        loop {
            if let Some(wc) = self.cq.poll()?.next() {
                return sent(&mut self.qp, wc);
            }
        }
    }
}

/// Writes with immediate data from a region that peers may access.
pub(crate) struct RegionWrite {
    pair: Pair<RemoteRegion, Buf>,
    region: Option<RemoteRegion>,
}

impl Kind for RegionWrite {
    fn new(ctx: &Context) -> Result<Self> {
        let pd = ctx.alloc_pd()?;
        let region = pd.alloc_remote(LENGTH as usize, RemoteAccess::WRITE)?;
        let pair = Pair::new(ctx, &pd, |builder| builder)?;
        Ok(Self {
            pair,
            region: Some(region),
        })
    }

    fn run(&mut self, count: u32) -> Result<()> {
        let mut region = self.region.take().ok_or("a loop has lost its region")?;
        for i in 0..count {
            let request = op::Write::new(region, TOKEN).imm_data(i);
            self.pair.qp.post(request).map_err(|it| it.error)?;
            region = self.pair.sent()?;
        }
        self.region = Some(region);
        Ok(())
    }
}

/// Sends a buffer of a pool, taken for each message and returned by the drop.
pub(crate) struct PoolSend {
    pair: Pair<PoolBuf, PoolBuf>,
    pool: BufPool,
}

impl Kind for PoolSend {
    fn new(ctx: &Context) -> Result<Self> {
        let pd = ctx.alloc_pd()?;
        let pool = pd.alloc_pool(POOL, LENGTH as usize)?;
        let pair = Pair::new(ctx, &pd, |builder| builder)?;
        Ok(Self { pair, pool })
    }

    fn run(&mut self, count: u32) -> Result<()> {
        for _ in 0..count {
            let buf = self.pool.try_take().ok_or("the pool is empty")?;
            self.pair
                .qp
                .post(op::Send::new(buf))
                .map_err(|it| it.error)?;
            drop(self.pair.sent()?);
        }
        Ok(())
    }
}

/// Sends a buffer of a pool's local store, which it goes back to.
pub(crate) struct LocalPoolSend {
    pair: Pair<PoolBuf, PoolBuf>,
    pool: LocalPool,
}

impl Kind for LocalPoolSend {
    fn new(ctx: &Context) -> Result<Self> {
        let PoolSend { pair, pool } = PoolSend::new(ctx)?;
        Ok(Self {
            pair,
            pool: pool.local(POOL),
        })
    }

    fn run(&mut self, count: u32) -> Result<()> {
        for _ in 0..count {
            let buf = self.pool.try_take().ok_or("the pool is empty")?;
            self.pair
                .qp
                .post(op::Send::new(buf))
                .map_err(|it| it.error)?;
            self.pool.put(self.pair.sent()?);
        }
        Ok(())
    }
}

/// Receives on a shared receive queue.
pub(crate) struct SharedReceive {
    pair: Pair<Buf, Buf>,
    srq: SharedReceiveQueue,
    buf: Option<Buf>,
}

impl Kind for SharedReceive {
    fn new(ctx: &Context) -> Result<Self> {
        let pd = ctx.alloc_pd()?;
        let srq = pd.create_srq(DEPTH, 1)?;
        let cq = ctx.cq_builder(2 * DEPTH).batch(1).create()?;
        let builder = pd.qp_builder::<verbs::Rc>(&cq, &cq).srq(&srq);
        let qp = bring_up(builder.max_send_wr(DEPTH).create()?)?;
        let buf = Some(pd.alloc_buf(LENGTH as usize)?);
        let pair = Pair { cq, qp };
        Ok(Self { pair, srq, buf })
    }

    fn run(&mut self, count: u32) -> Result<()> {
        let mut buf = self.buf.take().ok_or("a loop has lost its buffer")?;
        for _ in 0..count {
            self.srq.post(buf).map_err(|it| it.error)?;
            buf = loop {
                if let Some(wc) = self.pair.cq.poll()?.next() {
                    let done = self.srq.complete(wc);
                    let done = done.map_err(|_| "the completion is of nothing that was posted")?;
                    break done.into_work().map_err(|it| it.error)?;
                }
            };
        }
        self.buf = Some(buf);
        Ok(())
    }
}

/// Sends in batches of the extended calls.
pub(crate) struct ExtendedSend {
    pair: Pair<Buf, Buf>,
    bufs: Vec<Buf>,
}

impl Kind for ExtendedSend {
    fn new(ctx: &Context) -> Result<Self> {
        let pd = ctx.alloc_pd()?;
        let pair = Pair::new(ctx, &pd, |builder| builder.send_ops(SendOps::SEND))?;
        let bufs = (0..BATCH).map(|_| pd.alloc_buf(LENGTH as usize));
        let bufs = bufs.collect::<verbs::Result<_>>()?;
        Ok(Self { pair, bufs })
    }

    fn run(&mut self, count: u32) -> Result<()> {
        for _ in 0..count / BATCH {
            let mut batch = self.pair.qp.extended_batch()?;
            while let Some(buf) = self.bufs.pop() {
                batch.push(op::Send::new(buf)).map_err(|it| it.error)?;
            }
            batch.post().map_err(|it| it.error)?;
            while self.bufs.len() < BATCH as usize {
                let buf = self.pair.sent()?;
                self.bufs.push(buf);
            }
        }
        Ok(())
    }
}

/// Sends with completions on an extended completion queue.
pub(crate) struct ExtendedPoll {
    qp: QueuePair<verbs::Rc, Rts>,
    cq: ExtendedCq,
    bufs: Vec<Buf>,
}

impl Kind for ExtendedPoll {
    fn new(ctx: &Context) -> Result<Self> {
        let pd = ctx.alloc_pd()?;
        let builder = ctx.cq_ex_builder(2 * DEPTH).batch(BATCH);
        let cq = builder.only(WcFields::BYTE_LEN).create()?;
        let builder = pd.qp_builder::<verbs::Rc>(&cq, &cq);
        let qp = bring_up(builder.max_send_wr(DEPTH).max_recv_wr(DEPTH).create()?)?;
        let bufs = (0..BATCH).map(|_| pd.alloc_buf(LENGTH as usize));
        let bufs = bufs.collect::<verbs::Result<_>>()?;
        Ok(Self { qp, cq, bufs })
    }

    fn run(&mut self, count: u32) -> Result<()> {
        for _ in 0..count / BATCH {
            while let Some(buf) = self.bufs.pop() {
                self.qp.post(op::Send::new(buf)).map_err(|it| it.error)?;
            }
            while self.bufs.len() < BATCH as usize {
                let Some(mut polled) = self.cq.poll()? else {
                    continue;
                };
                while let Some(wc) = polled.next()? {
                    let buf = sent(&mut self.qp, wc.into_work_completion())?;
                    self.bufs.push(buf);
                }
            }
        }
        Ok(())
    }
}

/// Sends on many queue pairs in turn, with completions on one queue: each queue pair is found by its completion.
pub(crate) struct ManyPairs {
    cq: CompletionQueue,
    pairs: QpMap<(QueuePair<verbs::Rc, Rts>, Option<Buf>)>,
    ids: Vec<QpId>,
    next: usize,
}

impl ManyPairs {
    fn with(ctx: &Context, count: u32) -> Result<Self> {
        let pd = ctx.alloc_pd()?;
        let cq = ctx.cq_builder(count * 2 * MANY_DEPTH).batch(1).create()?;
        let mut pairs = QpMap::new();
        let mut ids = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let builder = pd.qp_builder::<verbs::Rc>(&cq, &cq);
            let qp = builder.max_send_wr(MANY_DEPTH).max_recv_wr(MANY_DEPTH);
            let qp = bring_up(qp.create()?)?;
            ids.push(qp.id());
            pairs.insert(qp.id(), (qp, Some(pd.alloc_buf(LENGTH as usize)?)));
        }
        Ok(Self {
            cq,
            pairs,
            ids,
            next: 0,
        })
    }

    /// The loop over `pairs` queue pairs.
    pub(crate) fn boxed(ctx: &Context, pairs: u32) -> Result<Loop> {
        let mut kind = Self::with(ctx, pairs)?;
        Ok(Box::new(move |count| kind.run(count)))
    }

    fn run(&mut self, count: u32) -> Result<()> {
        for _ in 0..count {
            let id = self.ids[self.next];
            self.next = (self.next + 1) % self.ids.len();
            let (qp, buf) = self.pairs.get_mut(id).ok_or("no such queue pair")?;
            let buf = buf.take().ok_or("a queue pair has lost its buffer")?;
            qp.post(op::Send::new(buf)).map_err(|it| it.error)?;
            loop {
                let first = self.cq.poll()?.next();
                if let Some(wc) = first {
                    let pair = self.pairs.get_mut(wc.qp_id());
                    let (qp, buf) = pair.ok_or("the completion is of no queue pair")?;
                    *buf = Some(sent(qp, wc)?);
                    break;
                }
            }
        }
        Ok(())
    }
}
