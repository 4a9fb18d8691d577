//! Pools of registered memory for frames: 48 bytes of header, then the body.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use verbs::{
    ProtectionDomain,
    mr::{BufPool, PoolBuf},
};

use crate::proto::wire::{FRAGMENT, Header};

/// Size of the largest frame, and of every receive slot.
pub(crate) const FRAME_SIZE: usize = Header::SIZE + FRAGMENT as usize;

/// Slot sizes. Short messages dominate, and many may be queued.
const SLOT_SIZES: [usize; 3] = [256, 1024, FRAME_SIZE];

/// Number of slots in the first pool of a size. Each further pool doubles the total, up to
/// [`MAX_POOL_SLOTS`] per pool.
const INITIAL_POOL_SLOTS: usize = 64;
const MAX_POOL_SLOTS: usize = 1024;

/// The frame slots of one device. Grows on demand and never shrinks.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    pools: [Mutex<Vec<BufPool>>; SLOT_SIZES.len()],
}

fn lock(pools: &Mutex<Vec<BufPool>>) -> MutexGuard<'_, Vec<BufPool>> {
    pools.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slots {
    /// Takes a slot for a header and `body` bytes, at most [`FRAGMENT`]. Registers another pool if
    /// none is free.
    pub(crate) fn take(&self, pd: &ProtectionDomain, body: usize) -> verbs::Result<PoolBuf> {
        let len = Header::SIZE + body;
        let class = SLOT_SIZES.iter().position(|&size| len <= size);
        let class = class.unwrap_or(SLOT_SIZES.len() - 1);
        let mut pools = lock(&self.pools[class]);
        let free = pools.iter().rev().find_map(BufPool::try_take);
        let mut slot = match free {
            Some(slot) => slot,
            None => {
                let allocated: usize = pools.iter().map(BufPool::count).sum();
                let more = allocated.clamp(INITIAL_POOL_SLOTS, MAX_POOL_SLOTS);
                let pool = pd.alloc_pool(more, SLOT_SIZES[class])?;
                let slot = pool.try_take();
                pools.push(pool);
                // A new pool always has a free slot.
                slot.ok_or_else(|| {
                    verbs::Error::from_errno("ibv_reg_mr", Errno::NOMEM.raw_os_error())
                })?
            }
        };
        slot.set_len(len.min(SLOT_SIZES[class]));
        Ok(slot)
    }
}

/// The body of a frame.
#[derive(Debug)]
pub(crate) enum Body {
    /// In registered memory, after the header.
    Slot(PoolBuf),
    /// In heap memory.
    Heap(Box<[u8]>),
}

impl Body {
    /// Copies the body to the heap if its slot belongs to the removed device of `pd`.
    pub(crate) fn leave(&mut self, pd: &ProtectionDomain) {
        if let Self::Slot(slot) = self
            && slot.pool().pd() == pd
        {
            *self = Self::Heap(self.as_ref().into());
        }
    }
}

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Slot(slot) => slot.get(Header::SIZE..).unwrap_or_default(),
            Self::Heap(bytes) => bytes,
        }
    }
}
