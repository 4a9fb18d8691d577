//! Registered memory for frames: a header, and what follows it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use verbs::{BufPool, PoolBuf, ProtectionDomain};

use crate::proto::wire::{FRAGMENT, Header};

/// The bytes of a slot that fits every frame.
pub(crate) const FRAME_SIZE: usize = Header::SIZE + FRAGMENT as usize;

/// The sizes that there are: most messages are short, and many may wait.
const SLOT_SIZES: [usize; 3] = [256, 1024, FRAME_SIZE];

/// The slots of the first registration of a size, and of the largest: each is as large as all before.
const INITIAL_POOL_SLOTS: usize = 64;
const MAX_POOL_SLOTS: usize = 1024;

/// The slots of one device. There are always more.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    pools: [Mutex<Vec<BufPool>>; SLOT_SIZES.len()],
}

fn lock(pools: &Mutex<Vec<BufPool>>) -> MutexGuard<'_, Vec<BufPool>> {
    pools.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slots {
    /// A slot with room for a header and so many bytes, not more than a frame has.
    pub(crate) fn take(&self, pd: &ProtectionDomain, body: usize) -> verbs::Result<PoolBuf> {
        let len = Header::SIZE + body;
        let class = SLOT_SIZES.iter().position(|&size| len <= size);
        let class = class.unwrap_or(SLOT_SIZES.len() - 1);
        let mut pools = lock(&self.pools[class]);
        let free = pools.iter().rev().find_map(BufPool::try_take);
        let mut slot = match free {
            Some(slot) => slot,
            None => {
                let there: usize = pools.iter().map(BufPool::count).sum();
                let more = there.clamp(INITIAL_POOL_SLOTS, MAX_POOL_SLOTS);
                let pool = pd.alloc_pool(more, SLOT_SIZES[class])?;
                let slot = pool.try_take();
                pools.push(pool);
                // A pool that nobody has has one.
                slot.ok_or_else(|| {
                    verbs::Error::from_errno("ibv_reg_mr", Errno::NOMEM.raw_os_error())
                })?
            }
        };
        slot.set_len(len.min(SLOT_SIZES[class]));
        Ok(slot)
    }

    /// A slot that fits every frame, if one is free.
    pub(crate) fn take_free(&self) -> Option<PoolBuf> {
        let pools = self.pools.last()?;
        let mut slot = lock(pools).iter().rev().find_map(BufPool::try_take)?;
        slot.set_full();
        Some(slot)
    }
}

/// The bytes of a frame after its header.
#[derive(Debug)]
pub(crate) enum Body {
    /// In registered memory, behind the header.
    Slot(PoolBuf),
    /// Somewhere else.
    Heap(Box<[u8]>),
}

impl Body {
    /// Copies the bytes out of the memory of a device that is gone.
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
