//! A working set of objects, dropped in any order, also in orders forbidden in C. For the device's
//! tests and the fake's.

use std::time::Duration;

use verbs::{
    AddressHandle, Buf, CompletionQueue, Context, MemoryWindow, ProtectionDomain, QueuePair,
    RemoteAccess, RemoteRegion, Reset, Rts, SharedReceiveQueue,
    ah::AddressVector,
    cq::{CompletionChannel, CqKey, Notify},
    mw::WindowType,
    op,
    qp::QpNum,
};

/// How many objects are in a set.
const OBJECTS: usize = 8;
/// How many orders there are.
pub(crate) const ORDERS: usize = 40_320;

/// Where a set is made, and how.
pub(crate) struct World<'a> {
    pub(crate) ctx: &'a Context,
    pub(crate) address_vector: AddressVector,
    /// Connects a queue pair with itself.
    pub(crate) connect: &'a dyn Fn(QueuePair<verbs::Rc, Reset>) -> QueuePair<verbs::Rc, Rts>,
    /// Lets the device finish the oldest request.
    pub(crate) finish: &'a dyn Fn(QpNum),
}

/// One object of each kind; `None` once dropped.
struct Set {
    pd: Option<ProtectionDomain>,
    channel: Option<CompletionChannel>,
    cq: Option<CompletionQueue>,
    srq: Option<SharedReceiveQueue<Buf>>,
    qp: Option<QueuePair<verbs::Rc, Rts>>,
    region: Option<RemoteRegion>,
    window: Option<MemoryWindow>,
    ah: Option<AddressHandle>,
}

impl Set {
    /// Makes the objects, with a bound window, a taken event, and work in flight on each queue.
    fn new(world: &World<'_>) -> Self {
        let pd = world.ctx.alloc_pd().unwrap();
        let channel = world.ctx.create_comp_channel().unwrap();
        let cq = world.ctx.cq_builder(64).channel(&channel, CqKey(3));
        let mut cq = cq.create().unwrap();
        let mut srq = pd.create_srq::<Buf>(8, 1).unwrap();
        let qp = pd
            .qp_builder::<verbs::Rc>(&cq, &cq)
            .max_send_wr(8)
            .srq(&srq);
        let mut qp = (world.connect)(qp.create().unwrap());
        let region = pd.alloc_for_windows(64).unwrap();
        let mut window = pd.alloc_mw(WindowType::Type2).unwrap();
        let ah = pd.create_ah(&world.address_vector).unwrap();

        cq.req_notify(Notify::Next).unwrap();
        let work = pd.alloc_buf(1).unwrap();
        qp.bind_window(&mut window, &region, RemoteAccess::WRITE, work)
            .unwrap();
        (world.finish)(qp.qp_num());
        let event = channel.wait_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(event, Some(CqKey(3)));
        // A device may raise an event some time before the completion.
        loop {
            let mut found = cq.poll().unwrap();
            if let Some(wc) = found.next() {
                wc.ok().unwrap();
                assert!(qp.complete(wc).is_ok());
                break;
            }
        }
        for _ in 0..2 {
            srq.post(pd.alloc_buf(16).unwrap()).unwrap();
        }
        qp.post(op::Send::new(pd.alloc_buf(8).unwrap()).unsignaled())
            .unwrap();
        Self {
            pd: Some(pd),
            channel: Some(channel),
            cq: Some(cq),
            srq: Some(srq),
            qp: Some(qp),
            region: Some(region),
            window: Some(window),
            ah: Some(ah),
        }
    }

    /// Uses the objects not dropped yet.
    fn touch(&mut self) {
        if let Some(pd) = &self.pd {
            let buf = pd.alloc_buf(1).unwrap();
            if let Some(qp) = &mut self.qp {
                // The queue pair may have failed, but posting must not.
                qp.post(op::Send::new(buf)).unwrap();
            }
        }
        if let Some(channel) = &self.channel {
            channel.try_next().unwrap();
        }
        if let Some(cq) = &mut self.cq {
            cq.req_notify(Notify::Next).unwrap();
            for wc in cq.poll().unwrap() {
                let wc = match &mut self.srq {
                    Some(srq) => srq.complete(wc).err(),
                    None => Some(wc),
                };
                if let (Some(qp), Some(wc)) = (&mut self.qp, wc) {
                    drop(qp.complete(wc));
                }
            }
        }
        if let Some(srq) = &mut self.srq {
            srq.arm_limit(1).unwrap();
        }
        if let Some(region) = &self.region {
            region.store(0, 5);
            assert_eq!(region.load(0), 5);
        }
        if let Some(window) = &self.window {
            assert_ne!(window.rkey(), 0);
        }
        if let Some(ah) = &self.ah {
            assert!(!ah.as_raw().is_null());
        }
    }

    fn drop_one(&mut self, which: usize) {
        match which {
            0 => self.pd = None,
            1 => self.channel = None,
            2 => self.cq = None,
            3 => self.srq = None,
            4 => self.qp = None,
            5 => self.region = None,
            6 => self.window = None,
            7 => self.ah = None,
            _ => unreachable!("there are {OBJECTS}"),
        }
    }
}

/// Makes a set, and drops it in the order with this number, using the remaining objects after each
/// step.
pub(crate) fn drop_in_order(world: &World<'_>, mut number: usize) {
    let mut set = Set::new(world);
    let mut remaining: Vec<usize> = (0..OBJECTS).collect();
    set.touch();
    while !remaining.is_empty() {
        let which = remaining.remove(number % remaining.len());
        number /= remaining.len() + 1;
        set.drop_one(which);
        set.touch();
    }
}
