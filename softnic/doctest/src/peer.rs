//! A peer for queue pairs of `verbs`: sends each message back.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use softnic::{Fabric, Host};
use verbs::{
    Buf, Completed, CompletionQueue, Context, Gid, Init, ProtectionDomain, QueuePair, RemoteAccess,
    RemoteRegion, RemoteToken, Reset, Rtr, Rts, WcStatus,
    ah::AddressVector,
    op,
    qp::{Attributes, Psn, QpNum},
};

use crate::{CLIENT, SERVER, open};

/// Messages that the peer can receive before its thread runs.
const RECEIVES: u32 = 16;

/// Longest message to the peer, and size of the peer's memory, in bytes.
const PEER_LEN: usize = 4096;

/// First packet sequence number of each connection.
const PSN: u32 = 0;

/// Interval between the thread's looks at the end of the example.
const STOP_INTERVAL: Duration = Duration::from_millis(10);

/// A host at 10.9.0.1 that sends each message back. The example is on another host.
pub struct Peer {
    host: Host,
    ctx: Context,
    pd: ProtectionDomain,
    memory: RemoteRegion,
    stop: Arc<AtomicBool>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The last field, so dropped after all objects of the peer.
    _fabric: Fabric,
}

/// A connection of the example: keep the peer, use the queue pair and its completion queue.
pub type Connected<SW, RW> = (Peer, QueuePair<verbs::Rc, Rts, SW, RW>, CompletionQueue);

/// Makes a peer, and puts the example on another host.
///
/// # Panics
/// If softnic refuses a call.
pub fn peer() -> Peer {
    let fabric = Fabric::new();
    let host = fabric.host(SERVER.into());
    fabric.host(CLIENT.into()).make_default();
    let ctx = host.run(open);
    let pd = ctx.alloc_pd().expect("softnic makes protection domains");
    let memory = pd.alloc_remote(PEER_LEN, access());
    Peer {
        memory: memory.expect("softnic registers memory"),
        host,
        ctx,
        pd,
        stop: Arc::default(),
        threads: Mutex::default(),
        _fabric: fabric,
    }
}

/// Makes a peer, and a queue pair connected to it with a completion queue for events.
///
/// # Panics
/// If softnic refuses a call.
pub fn connected() -> Connected<Buf, Buf> {
    connected_for()
}

/// As [`connected`], for other kinds of work.
///
/// # Panics
/// If softnic refuses a call.
pub fn connected_for<SW: 'static, RW: 'static>() -> Connected<SW, RW> {
    let peer = peer();
    let ctx = open();
    let pd = ctx.alloc_pd().expect("softnic makes protection domains");
    let cq = ctx.cq_builder(64).waitable().create();
    let cq = cq.expect("softnic makes completion queues");
    let qp = pd
        .qp_builder::<verbs::Rc>(&cq, &cq)
        .max_send_wr(16)
        .max_recv_wr(16)
        .max_inline_data(64)
        .max_send_sge(2)
        .max_recv_sge(2)
        .create_for()
        .expect("softnic makes queue pairs");
    let qp = peer.connect(qp);
    (peer, qp, cq)
}

impl Peer {
    /// Connects a queue pair.
    ///
    /// # Panics
    /// If softnic refuses a call.
    pub fn connect<SW, RW>(
        &self,
        qp: QueuePair<verbs::Rc, Reset, SW, RW>,
    ) -> QueuePair<verbs::Rc, Rts, SW, RW> {
        let cq = self.ctx.cq_builder(2 * RECEIVES).waitable().create();
        let cq = cq.expect("softnic makes completion queues");
        let peer_qp = self.pd.qp_builder::<verbs::Rc>(&cq, &cq);
        let peer_qp = peer_qp.max_send_wr(RECEIVES).max_recv_wr(RECEIVES).create();
        let peer_qp = peer_qp.expect("softnic makes queue pairs");
        let example = (gid(qp.pd().context()), qp.qp_num());
        let this = (gid(&self.ctx), peer_qp.qp_num());
        let peer_qp = bring_up(peer_qp, example);
        let qp = bring_up(qp, this);
        let stop = Arc::clone(&self.stop);
        let thread = self.host.spawn(move || echo(peer_qp, cq, &stop));
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.push(thread);
        qp
    }

    /// The path to the peer.
    pub fn path(&self) -> AddressVector {
        AddressVector::global(1, 0, self.gid())
    }

    /// The peer's address.
    pub fn gid(&self) -> Gid {
        gid(&self.ctx)
    }

    /// Memory of the peer with all rights.
    pub fn token(&self) -> RemoteToken {
        self.memory.token()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let threads = self
            .threads
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("the peer has not panicked");
            }
        }
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

/// Sends each message back until the end of the example or of the connection.
fn echo(mut qp: QueuePair<verbs::Rc, Rts>, mut cq: CompletionQueue, stop: &AtomicBool) {
    let pd = qp.pd().clone();
    let buf = || pd.alloc_buf(PEER_LEN).expect("softnic registers memory");
    for _ in 0..RECEIVES {
        qp.post_recv(buf()).expect("the queue has room");
    }
    while !stop.load(Ordering::Relaxed) {
        let mut messages = Vec::new();
        let completions = cq.wait(Some(STOP_INTERVAL)).expect("the device is there");
        for wc in completions {
            if wc.status() != WcStatus::SUCCESS {
                return;
            }
            if let Ok(Completed::Receive(done)) = qp.complete(wc) {
                messages.extend(done.received().map(<[u8]>::to_vec));
            }
        }
        for message in messages {
            qp.post_recv(buf()).expect("the queue has room");
            let answer = pd.register_buf(message).expect("softnic registers memory");
            // A queue full of answers without a receiver: the example wants none.
            let _refused = qp.post(op::Send::new(answer));
        }
    }
}

fn access() -> RemoteAccess {
    RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC
}

fn gid(ctx: &Context) -> Gid {
    let gid = ctx.query_gid(1, 0).expect("port 1 has a GID");
    gid.expect("the first GID is valid")
}

/// Brings a queue pair up, with a peer's GID and number.
fn bring_up<SW, RW>(
    qp: QueuePair<verbs::Rc, Reset, SW, RW>,
    (gid, number): (Gid, QpNum),
) -> QueuePair<verbs::Rc, Rts, SW, RW> {
    let path = AddressVector::global(1, 0, gid);
    let psn = Psn::from_low_bits(PSN);
    let init = Attributes::<verbs::Rc, Init>::new(1).access(access());
    let rtr = Attributes::<verbs::Rc, Rtr>::new(&path, number, psn);
    let rts = Attributes::<verbs::Rc, Rts>::new(psn);
    let legal = "the transitions are legal";
    let qp = qp.to_init(&init).expect(legal);
    let qp = qp.to_rtr(&rtr).expect(legal);
    qp.to_rts(&rts).expect(legal)
}
