//! State shared by all connections over one device.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use verbs::{
    Context, ProtectionDomain, RemoteToken, WcStatus, attr::AtomicCap, cq::CompletionChannel,
    mr::PoolBuf,
};

use crate::{
    ib_connection::RESERVED_SENDS,
    loopback::{AtomicError, Loopback},
    proto::connection::AtomicOp,
    slots::Slots,
};

/// An open device: protection domain, completion channel and frame slots.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) pd: ProtectionDomain,
    /// Completion events of all connections.
    pub(crate) channel: CompletionChannel,
    pub(crate) slots: Slots,
    /// Length of a connection's receive queue.
    pub(crate) receives: u32,
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
#[derive(Debug)]
pub(crate) struct KnownDevices {
    pub(crate) devices: Vec<Arc<Device>>,
    pub(crate) sends: u32,
    pub(crate) receives: u32,
}

impl KnownDevices {
    /// The device of a context, opened on first use. Enters the kernel.
    pub(crate) fn open(&self, ctx: &Context) -> verbs::Result<Arc<Device>> {
        let mut devices = self.devices.iter();
        match devices.find(|device| device.pd.context() == ctx) {
            Some(device) => Ok(Arc::clone(device)),
            None => Ok(Arc::new(Device::new(ctx, self.sends, self.receives)?)),
        }
    }
}

/// Upper bound of [`Device::elements`], to keep queue pairs small.
const MAX_SGE: u32 = 8;

impl Device {
    fn new(ctx: &Context, sends: u32, receives: u32) -> verbs::Result<Self> {
        let attr = ctx.query_device()?;
        let most = attr.max_qp_wr();
        Ok(Self {
            pd: ctx.alloc_pd()?,
            channel: ctx.create_comp_channel()?,
            slots: Slots::default(),
            receives: receives.min(most),
            sends: sends.min(most),
            elements: MAX_SGE.min(attr.max_sge()).max(2),
            iwarp: ctx.is_iwarp(),
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
        let mut place = self.loopback.lock().unwrap_or_else(PoisonError::into_inner);
        let mut loopback = match place.take() {
            Some(loopback) => loopback,
            None => Loopback::new(&self.pd, ip)
                .map_err(|_| AtomicError::Failed(WcStatus::GENERAL_ERR))?,
        };
        let before = loopback.atomic(op, number)?;
        // A failed queue pair is not put back; the next call creates another.
        *place = Some(loopback);
        Ok(before)
    }

    /// Send queue entries available to messages of a connection.
    pub(crate) fn room(&self) -> u32 {
        self.sends.saturating_sub(RESERVED_SENDS)
    }

    /// Number of receives at which a batch is reposted.
    pub(crate) fn max_reposts(&self) -> usize {
        (self.receives as usize / 16).min(16)
    }

    /// A slot for a header and `body` bytes of a message.
    pub(crate) fn slot(&self, body: usize) -> verbs::Result<PoolBuf> {
        self.slots.take(&self.pd, body)
    }
}
