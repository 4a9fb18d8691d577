//! Pools of registered memory for frames: 48 bytes of header, then the body.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use verbs::{
    ProtectionDomain,
    mr::{BufPool, PoolBuf},
};

use crate::{
    device::Device,
    proto::wire::{FRAGMENT, Header},
};

/// Size of the largest frame, and of every receive slot.
pub(crate) const FRAME_SIZE: usize = Header::SIZE + FRAGMENT as usize;

/// Slot sizes. Short messages dominate, and many may be queued.
const SLOT_SIZES: [usize; 3] = [256, 1024, FRAME_SIZE];

/// Number of slots in the first pool of a size. Each further pool doubles the total, up to
/// [`MAX_POOL_SLOTS`] per pool, if so much memory can be locked.
const INITIAL_POOL_SLOTS: usize = 64;
const MAX_POOL_SLOTS: usize = 1024;

/// The frame slots of one device. Grows on demand and never shrinks.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    pools: [Mutex<Vec<BufPool>>; SLOT_SIZES.len()],
    /// Locked while a thread registers a pool.
    growing: Mutex<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slots {
    /// Takes a slot for a header and `body` bytes, at most [`FRAGMENT`], if one is free.
    pub(crate) fn try_take(&self, body: usize) -> Option<PoolBuf> {
        let len = Header::SIZE + body;
        let pools = lock(&self.pools[class_of(len)]);
        let mut slot = pools.iter().rev().find_map(BufPool::try_take)?;
        slot.set_len(len.min(slot.capacity()));
        Some(slot)
    }

    /// Takes a slot like [`try_take`](Self::try_take). Registers another pool if none is free: enters
    /// the kernel.
    pub(crate) fn take(&self, pd: &ProtectionDomain, body: usize) -> verbs::Result<PoolBuf> {
        if let Some(slot) = self.try_take(body) {
            return Ok(slot);
        }
        let _growing = lock(&self.growing);
        let class = class_of(Header::SIZE + body);
        loop {
            // Another thread may have registered a pool, or taken all of its slots.
            if let Some(slot) = self.try_take(body) {
                return Ok(slot);
            }
            let allocated: usize = lock(&self.pools[class]).iter().map(BufPool::count).sum();
            let pool = alloc_pool(pd, allocated, SLOT_SIZES[class])?;
            lock(&self.pools[class]).push(pool);
        }
    }
}

/// Registers a pool, after `allocated` slots of this size. Near the limit of locked memory, the pool is
/// smaller.
fn alloc_pool(pd: &ProtectionDomain, allocated: usize, size: usize) -> verbs::Result<BufPool> {
    let mut count = allocated.clamp(INITIAL_POOL_SLOTS, MAX_POOL_SLOTS);
    loop {
        match pd.alloc_pool(count, size) {
            Err(err) if count > 1 && err.raw_os_error() == Some(Errno::NOMEM.raw_os_error()) => {
                count /= 2;
            }
            result => return result,
        }
    }
}

/// Index of the pools for slots of `len` bytes.
fn class_of(len: usize) -> usize {
    let class = SLOT_SIZES.iter().position(|&size| len <= size);
    class.unwrap_or(SLOT_SIZES.len() - 1)
}

/// A slot kept by a connection for its next frame, so that a frame taken from the protocol is
/// always posted.
#[derive(Debug, Default)]
pub(crate) struct SpareSlot(Option<PoolBuf>);

impl SpareSlot {
    /// Whether there is a slot for the next frame.
    pub(crate) fn is_ready(&mut self, slots: &Slots) -> bool {
        if self.0.is_none() {
            self.0 = slots.try_take(FRAGMENT as usize);
        }
        self.0.is_some()
    }

    /// Takes a slot for a header and `body` bytes: another free one, or else the spare.
    pub(crate) fn take(&mut self, slots: &Slots, body: usize) -> verbs::Result<PoolBuf> {
        let slot = slots.try_take(body).or_else(|| {
            let mut spare = self.0.take()?;
            spare.set_len(Header::SIZE + body);
            Some(spare)
        });
        slot.ok_or_else(|| verbs::Error::from_errno("ibv_reg_mr", Errno::NOMEM.raw_os_error()))
    }
}

/// The body of a frame.
#[derive(Debug)]
pub(crate) enum FrameBody {
    /// In registered memory, after the header.
    Slot(PoolBuf),
    /// In heap memory.
    Heap(Box<[u8]>),
}

impl FrameBody {
    /// Memory for `len` bytes: a slot of `device`, which may enter the kernel, or the heap without a
    /// device.
    pub(crate) fn alloc(device: Option<&Device>, len: usize) -> verbs::Result<Self> {
        match device {
            Some(device) => Ok(Self::Slot(device.slot(len)?)),
            None => Ok(Self::Heap(vec![0; len].into())),
        }
    }

    /// Memory like that of [`alloc`](Self::alloc), unless no slot is free.
    pub(crate) fn try_alloc(device: Option<&Device>, len: usize) -> Option<Self> {
        match device {
            Some(device) => device.slots.try_take(len).map(Self::Slot),
            None => Some(Self::Heap(vec![0; len].into())),
        }
    }

    /// Copies the body to the heap if its slot belongs to the removed device of `pd`.
    pub(crate) fn copy_off_device(&mut self, pd: &ProtectionDomain) {
        if let Self::Slot(slot) = self
            && slot.pool().pd() == pd
        {
            *self = Self::Heap(self.as_ref().into());
        }
    }
}

impl AsRef<[u8]> for FrameBody {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Slot(slot) => slot.get(Header::SIZE..).unwrap_or_default(),
            Self::Heap(bytes) => bytes,
        }
    }
}

impl AsMut<[u8]> for FrameBody {
    fn as_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Slot(slot) => slot.get_mut(Header::SIZE..).unwrap_or_default(),
            Self::Heap(bytes) => bytes,
        }
    }
}
