//! What all connections over one device share.

use std::{
    net::IpAddr,
    sync::{Mutex, OnceLock, PoisonError},
};

use verbs::{
    AtomicCap, ChannelWaker, CompletionChannel, Context, CqKey, PoolBuf, ProtectionDomain,
    RemoteToken, WcStatus,
};

use crate::{
    ib_connection::RESERVED_SENDS,
    loopback::{AtomicError, Loopback},
    proto::connection::AtomicOp,
    slots::Slots,
};

/// A device, as the engine uses it.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) pd: ProtectionDomain,
    /// Tells of the completions of all connections.
    pub(crate) channel: CompletionChannel,
    pub(crate) slots: Slots,
    /// How many receives a connection has posted.
    pub(crate) receives: u32,
    /// How many sends it can have.
    pub(crate) sends: u32,
    /// How many elements an RDMA operation can have.
    pub(crate) elements: u32,
    /// Whether it speaks iWARP.
    pub(crate) iwarp: bool,
    /// Whether peers can change numbers here.
    pub(crate) atomics: bool,
    /// Wakes who waits in a read of the channel, once somebody has, and if there can be one.
    waker: OnceLock<Option<ChannelWaker>>,
    /// To itself, since it was needed first.
    loopback: Mutex<Option<Loopback>>,
}

/// What the waker's events are called, which are of no connection.
const WAKER_KEY: CqKey = CqKey(usize::MAX);

/// The most elements of one request of an RDMA operation.
const MAX_SGE: u32 = 8;

impl Device {
    pub(crate) fn new(ctx: &Context, sends: u32, receives: u32) -> verbs::Result<Self> {
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
            waker: OnceLock::new(),
            loopback: Mutex::new(None),
        })
    }

    /// Wakes who waits in a read of the channel; `None` where that cannot be.
    pub(crate) fn waker(&self) -> Option<&ChannelWaker> {
        let waker = self
            .waker
            .get_or_init(|| self.channel.waker(&self.pd, WAKER_KEY).ok());
        waker.as_ref()
    }

    /// Whether it can change numbers in its own memory for its own programs. Only the connection
    /// manager connects iWARP's queue pairs.
    pub(crate) fn has_local_atomics(&self) -> bool {
        self.atomics && !self.iwarp
    }

    /// Changes a number in its own memory, as it does for peers, and says what it was. Blocks until that
    /// is done. The address is one of its own.
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
        // One that has failed is made anew when it is needed again.
        *place = Some(loopback);
        Ok(before)
    }

    /// How many requests a connection can have at once, beside those for which room is kept.
    pub(crate) fn room(&self) -> u32 {
        self.sends.saturating_sub(RESERVED_SENDS)
    }

    /// So many receives of a connection may wait to be posted again.
    pub(crate) fn max_reposts(&self) -> usize {
        (self.receives as usize / 16).min(16)
    }

    /// Memory for a frame with so many bytes of a message.
    pub(crate) fn slot(&self, body: usize) -> verbs::Result<PoolBuf> {
        self.slots.take(&self.pd, body)
    }
}
