//! State shared by all connections over one device.

use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use verbs::{
    CompletionQueue, Context, ProtectionDomain, RemoteToken, Reset, WcStatus,
    attr::AtomicCap,
    cq::{CompletionChannel, CqHandle, CqKey, Notify},
    mr::PoolBuf,
};

use crate::{
    ib_connection::{Pair, RESERVED_SENDS},
    loopback::{AtomicError, Loopback},
    proto::{connection::AtomicOp, wire::FRAGMENT},
    slots::Slots,
};

/// An open device: protection domain, completion queues and frame slots.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) pd: ProtectionDomain,
    /// Completion events of all queues.
    pub(crate) channel: CompletionChannel,
    /// The polled completion queues.
    cqs: Mutex<Vec<SharedCq>>,
    /// Maximum number of entries of a completion queue.
    max_cqe: u32,
    pub(crate) slots: Slots,
    /// Length of a connection's receive queue.
    pub(crate) receives: u32,
    /// Receives posted for a connection until its peer has proven itself. The device
    /// of a peer with more messages receives an RNR NAK, and retransmits; on iWARP, the connection
    /// would end, so all receives are posted.
    pub(crate) initial_receives: u32,
    /// Length of a connection's send queue.
    pub(crate) sends: u32,
    /// Maximum number of scatter/gather entries per request.
    pub(crate) elements: u32,
    /// The transport is iWARP.
    pub(crate) iwarp: bool,
    /// The device supports atomic operations by peers.
    pub(crate) atomics: bool,
    /// Queue pair connected to itself, created on first use.
    loopback: Mutex<Option<Loopback>>,
}

/// The open devices, and the sizes of queues for the next.
#[derive(Clone, Debug)]
pub(crate) struct OpenDevices {
    pub(crate) devices: Vec<Arc<Device>>,
    pub(crate) sends: u32,
    pub(crate) receives: u32,
    pub(crate) initial_receives: u32,
}

impl OpenDevices {
    /// The device of a context, opened on first use. Enters the kernel.
    pub(crate) fn open(&self, ctx: &Context) -> verbs::Result<Arc<Device>> {
        let mut devices = self.devices.iter();
        match devices.find(|device| device.pd.context() == ctx) {
            Some(device) => Ok(Arc::clone(device)),
            None => Ok(Arc::new(Device::new(ctx, self)?)),
        }
    }
}

/// Upper bound of [`Device::elements`], to keep queue pairs small.
const MAX_SGE: u32 = 8;

/// Maximum number of completions per `ibv_poll_cq` call.
pub(crate) const POLL_BATCH: usize = 64;

/// Number of connections on the first completion queue of a device. Each further queue quadruples
/// the total, so that a wake-up polls and arms few queues.
const INITIAL_CONNECTIONS: u32 = 4;

/// Notifications requested from a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Armed {
    /// Solicited receives (last frames and acknowledgements) and errors.
    Solicited,
    /// Every completion.
    All,
}

/// A completion queue for sends and receives of several connections. On iWARP, of one connection.
#[derive(Debug)]
pub(crate) struct SharedCq {
    pub(crate) cq: CompletionQueue,
    key: CqKey,
    /// The armed notification, `None` after its event was taken.
    pub(crate) armed: Option<Armed>,
    /// Polling has failed. Shared with the connections of the queue.
    pub(crate) failed: Arc<AtomicBool>,
}

impl SharedCq {
    fn new(device: &Device, entries: u32) -> verbs::Result<Self> {
        let failed = Arc::<AtomicBool>::default();
        // The address of the flag names the queue in events.
        let key = CqKey(Arc::as_ptr(&failed).addr());
        let ctx = device.pd.context();
        let cq = ctx.cq_builder(entries).channel(&device.channel, key);
        Ok(Self {
            cq: cq.batch(POLL_BATCH).create()?,
            key,
            armed: None,
            failed,
        })
    }

    /// Whether polling has failed. The queue is destroyed with its last connection.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// Requests a notification for the next completion of this kind. Returns whether the queue was
    /// not armed for it.
    pub(crate) fn arm(&mut self, kind: Armed) -> verbs::Result<bool> {
        if self.armed >= Some(kind) {
            return Ok(false);
        }
        self.cq.req_notify(match kind {
            Armed::Solicited => Notify::Solicited,
            Armed::All => Notify::Next,
        })?;
        self.armed = Some(kind);
        Ok(true)
    }
}

impl Device {
    /// The polled completion queues.
    pub(crate) fn cqs(&self) -> MutexGuard<'_, Vec<SharedCq>> {
        self.cqs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of completions in flight of one connection.
    fn entries(&self) -> u32 {
        self.sends + self.receives
    }

    /// A completion queue with room for another connection, and its failure flag. On iWARP, a peer
    /// can send before the connection is established here, so the connection gets a queue of its
    /// own, to be polled from then on. Enters the kernel if the queue is new.
    pub(crate) fn cq(&self) -> verbs::Result<(CqHandle, Arc<AtomicBool>, Option<SharedCq>)> {
        let shared = |cq: &SharedCq| (cq.cq.handle().clone(), Arc::clone(&cq.failed));
        if self.iwarp {
            let queue = SharedCq::new(self, self.entries())?;
            let (cq, failed) = shared(&queue);
            return Ok((cq, failed, Some(queue)));
        }
        let fits = |cq: &&SharedCq| cq.cq.available() >= self.entries() && !cq.has_failed();
        let free = self.cqs().iter().find(fits).map(shared);
        let (cq, failed) = match free {
            Some(free) => free,
            None => {
                let total: u32 = self.cqs().iter().map(|cq| cq.cq.capacity()).sum();
                let entries = self.entries().saturating_mul(INITIAL_CONNECTIONS);
                let entries = entries.max(total.saturating_mul(3)).min(self.max_cqe);
                let new = SharedCq::new(self, entries.max(self.entries()))?;
                let shared = shared(&new);
                self.cqs().push(new);
                shared
            }
        };
        Ok((cq, failed, None))
    }

    /// Destroys the completion queues without connections. Enters the kernel.
    pub(crate) fn release_cqs(&self) {
        let is_unused = |cq: &mut SharedCq| cq.cq.available() == cq.cq.capacity();
        let unused: Vec<SharedCq> = self.cqs().extract_if(.., is_unused).collect();
        // Dropped here, outside the lock.
        drop(unused);
    }

    /// Takes the events of armed queues. Reads the channel only if a queue is armed: an empty read
    /// is a system call.
    pub(crate) fn take_events(&self) -> verbs::Result<()> {
        let mut cqs = self.cqs();
        while cqs.iter().any(|cq| cq.armed.is_some())
            && let Some(key) = self.channel.try_next()?
        {
            for cq in cqs.iter_mut().filter(|cq| cq.key == key) {
                cq.armed = None;
            }
        }
        Ok(())
    }

    fn new(ctx: &Context, queues: &OpenDevices) -> verbs::Result<Self> {
        let attr = ctx.query_device()?;
        let max_wr = attr.max_qp_wr();
        let receives = queues.receives.min(max_wr);
        let iwarp = ctx.is_iwarp();
        Ok(Self {
            pd: ctx.alloc_pd()?,
            channel: ctx.create_comp_channel()?,
            cqs: Mutex::default(),
            max_cqe: attr.max_cqe(),
            slots: Slots::default(),
            receives,
            initial_receives: match iwarp {
                true => receives,
                false => queues.initial_receives.min(receives),
            },
            sends: queues.sends.min(max_wr),
            elements: MAX_SGE.min(attr.max_sge()).max(2),
            iwarp,
            atomics: attr.atomic_cap() != AtomicCap::NONE,
            loopback: Mutex::new(None),
        })
    }

    /// Whether atomic operations on local memory work. They need a queue pair connected to itself;
    /// on iWARP, only the connection manager can connect queue pairs.
    pub(crate) fn has_local_atomics(&self) -> bool {
        self.atomics && !self.iwarp
    }

    /// Performs an atomic operation on local memory, and returns the previous value. Blocks until
    /// the device completes the operation, up to 10 s. `ip` is an address of this device.
    pub(crate) fn local_atomic(
        &self,
        ip: IpAddr,
        op: AtomicOp,
        number: RemoteToken,
    ) -> Result<u64, AtomicError> {
        let mut cached = self.loopback.lock().unwrap_or_else(PoisonError::into_inner);
        let mut loopback = match cached.take() {
            Some(loopback) => loopback,
            None => Loopback::new(&self.pd, ip)
                .map_err(|_| AtomicError::Failed(WcStatus::GENERAL_ERR))?,
        };
        let before = loopback.atomic(op, number)?;
        // A failed queue pair is not put back; the next call creates another.
        *cached = Some(loopback);
        Ok(before)
    }

    /// Send queue entries available to messages of a connection.
    pub(crate) fn send_entries(&self) -> u32 {
        self.sends.saturating_sub(RESERVED_SENDS)
    }

    /// Makes the objects of one connection, except an identifier, and releases them; the slots stay registered. Enters the
    /// kernel.
    pub(crate) fn try_connection(&self) -> verbs::Result<()> {
        let (cq, _, own_cq) = self.cq()?;
        let qp = self.create_qp(&cq)?;
        // One for the first frame.
        let slots = (0..=self.initial_receives).map(|_| self.slot(FRAGMENT as usize));
        let slots: verbs::Result<Vec<PoolBuf>> = slots.collect();
        drop((qp, cq, own_cq));
        self.release_cqs();
        slots.map(drop)
    }

    /// Creates the queue pair of a connection. Enters the kernel.
    pub(crate) fn create_qp(&self, cq: &CqHandle) -> verbs::Result<Pair<Reset>> {
        let qp = self.pd.qp_builder::<verbs::Rc>(cq, cq);
        let qp = qp.max_send_wr(self.sends).max_recv_wr(self.receives);
        let qp = qp.max_send_sge(self.elements).max_recv_sge(1);
        qp.create_for()
    }

    /// A slot for a header and `body` bytes of a message. Enters the kernel if no slot is free.
    pub(crate) fn slot(&self, body: usize) -> verbs::Result<PoolBuf> {
        self.slots.take(&self.pd, body)
    }
}
