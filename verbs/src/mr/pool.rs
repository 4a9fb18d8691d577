//! Pools of buffers.

use std::{fmt, io, ptr::NonNull, sync::Arc};

use super::{
    builder::Registration,
    free_list::{FreeList, MAX_SLOTS},
    mapping::Mapping,
    memory::OwnedMemory,
    pool_buf::{PoolBuf, Slot},
    region::Region,
};
use crate::{
    error::{Error, Refused, Result},
    pd::ProtectionDomain,
    work::MAX_ELEMENT,
};

/// Alignment of each buffer in the pool, in bytes: a cache line, so that no two buffers share one.
const ALIGNMENT: usize = 64;

/// Buffers of one size, registered at once.
///
/// Taking a buffer neither allocates, nor locks, nor enters the kernel; dropping a buffer returns
/// the slot, from any thread. Registering is slow, and a device's number of registrations is
/// limited: use a pool where each message needs a buffer.
///
/// Cloning is cheap: the pool is reference-counted, like an `Arc`. Buffers in use keep the pool
/// alive.
///
/// # Examples
/// ```
/// # let (_fabric, ctx) = doctest::device();
/// let pd = ctx.alloc_pd()?;
/// let pool = pd.alloc_pool(1024, 4096)?;
/// let mut buf = pool.try_take().expect("none is out yet");
/// buf[..5].copy_from_slice(b"hello");
/// buf.set_len(5);
/// # Ok::<(), verbs::Error>(())
/// ```
#[derive(Clone)]
pub struct BufPool {
    shared: Arc<PoolShared>,
}

/// The part shared by the handles and the buffers in use.
pub(super) struct PoolShared {
    region: Region,
    pub(super) free: FreeList,
    // INVARIANT: a leaked box of as many slots as `free` has, freed in `drop`; each has its part of `region`.
    slots: NonNull<Slot>,
    pub(super) capacity: u32,
}

// SAFETY: a slot belongs to its taker alone, and bytes may be owned by any thread. The list makes a taker's writes
// visible to the next one.
unsafe impl Send for PoolShared {}
// SAFETY: see `Send`.
unsafe impl Sync for PoolShared {}

impl PoolShared {
    /// `slots` buffers of `capacity` bytes, `stride` bytes from one to the next.
    ///
    /// # Safety
    /// - All buffers are inside of `region`, and none overlaps another one.
    unsafe fn new(region: Region, slots: u32, stride: usize, capacity: u32) -> Self {
        let lkey = region.mr().lkey();
        let slot = |index: u32| {
            // SAFETY: the caller's promise: inside of the region.
            let start = unsafe { region.start().add(index as usize * stride) };
            Slot::new(start, capacity, lkey)
        };
        let all: Box<[Slot]> = (0..slots).map(slot).collect();
        Self {
            free: FreeList::new(slots),
            slots: NonNull::from(Box::leak(all)).cast(),
            region,
            capacity,
        }
    }

    /// A slot, below the number of slots.
    ///
    /// # Safety
    /// - `index` was taken from the list.
    #[inline]
    unsafe fn slot(&self, index: u32) -> NonNull<Slot> {
        // SAFETY: the list has as many slots as the box (invariant).
        unsafe { self.slots.add(index as usize) }
    }

    /// The index of a slot of this pool.
    #[inline]
    pub(super) fn index(&self, slot: NonNull<Slot>) -> u32 {
        let distance = slot.addr().get() - self.slots.addr().get();
        #[expect(clippy::cast_possible_truncation, reason = "at most `MAX_SLOTS`")]
        let index = (distance / size_of::<Slot>()) as u32;
        index
    }

    /// The protection domain of the registration.
    pub(super) fn pd(&self) -> &ProtectionDomain {
        self.region.mr().pd()
    }
}

impl Drop for PoolShared {
    fn drop(&mut self) {
        let slots = NonNull::slice_from_raw_parts(self.slots, self.free.slots());
        // SAFETY: the leaked box (invariant). No buffer is left, since each keeps the pool.
        drop(unsafe { Box::from_raw(slots.as_ptr()) });
    }
}

impl ProtectionDomain {
    /// `ibv_reg_mr`—Allocates and registers `count` buffers of `len` bytes each. Enters the kernel.
    ///
    /// # Errors
    /// - `InvalidInput`: `count` or `len` is zero, or either or both are too large: there can be
    ///   16777215 buffers, each of less than 2 GiB.
    /// - `ENOMEM`: the limit on locked memory (`ulimit -l`) is exceeded, or memory is exhausted.
    ///
    /// # References
    /// [ibv_reg_mr(3)](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html)
    #[doc(alias = "ibv_reg_mr")]
    pub fn alloc_pool(&self, count: usize, len: usize) -> Result<BufPool> {
        let fail = |err: Error| err.detail(format!("{count} buffers of {len} bytes"));
        let stride = stride(len).map_err(fail)?;
        let all = stride.saturating_mul(count);
        let memory = Mapping::new(all).map_err(fail)?;
        self.register(memory)
            .create_pool(len)
            .map_err(|refused| fail(refused.error))
    }
}

impl<M: OwnedMemory> Registration<'_, M> {
    /// `ibv_reg_mr`—Registers the memory, and divides the region into buffers of `len` bytes. Enters
    /// the kernel.
    ///
    /// Buffers start at multiples of 64 bytes from the first. The remainder at the end is unused.
    ///
    /// # Errors
    /// The error returns the memory:
    /// - `InvalidInput`: `len` is zero or at least 2 GiB; or there would be no buffer, or more than
    ///   16777215.
    /// - `Unsupported`: buffers would share pages [paged on demand](Self::on_demand) by Soft-RoCE.
    /// - As for [`create_buf`](Self::create_buf).
    ///
    /// # Examples
    /// ```
    /// # let (_fabric, ctx) = doctest::device();
    /// use verbs::mr::{HugePage, Mapping};
    /// let pd = ctx.alloc_pd()?;
    /// let memory = Mapping::huge(64 << 20, HugePage::MIB_2).or_else(|_| Mapping::new(64 << 20))?;
    /// let pool = pd.register(memory).create_pool(4096)?;
    /// assert_eq!(pool.count(), 16384);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    ///
    /// # References
    /// [ibv_reg_mr(3)](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html)
    #[doc(alias = "ibv_reg_mr")]
    pub fn create_pool(mut self, len: usize) -> Result<BufPool, Refused<M>> {
        let memory = self.len();
        let carved = self.granule().and_then(|granule| {
            let (stride, slots) = carve(memory, len)?;
            if granule.divides(stride) {
                return Ok((stride, slots));
            }
            let reason = format!(
                "Soft-RoCE accesses the start of a page paged on demand at any offset; a buffer has a \
                 multiple of {} bytes there",
                granule.bytes()
            );
            Err(Error::refused(
                "ibv_reg_mr",
                io::ErrorKind::Unsupported,
                reason,
            ))
        });
        let (stride, slots) = match carved {
            Ok(carved) => carved,
            Err(error) => return Err(self.refuse(error)),
        };
        let region = self.region()?;
        // At most `MAX_ELEMENT`, or there would be no stride.
        let capacity = u32::try_from(len).unwrap_or(MAX_ELEMENT);
        // SAFETY: `carve` divides the memory, which is all of the region, by a stride of at least the capacity.
        let shared = unsafe { PoolShared::new(region, slots, stride, capacity) };
        Ok(BufPool {
            shared: Arc::new(shared),
        })
    }
}

fn refused(reason: &'static str) -> Error {
    Error::refused("ibv_reg_mr", io::ErrorKind::InvalidInput, reason)
}

/// From one buffer of `len` bytes to the next.
fn stride(len: usize) -> Result<usize> {
    let stride = match u32::try_from(len) {
        Ok(1..=MAX_ELEMENT) => len.checked_next_multiple_of(ALIGNMENT),
        _ => None,
    };
    stride.ok_or_else(|| refused("a buffer has from 1 to 2147483647 bytes"))
}

/// From one buffer to the next, and how many there are.
fn carve(memory: usize, len: usize) -> Result<(usize, u32)> {
    let stride = stride(len)?;
    // No padding behind the last buffer.
    let slots = (memory + stride - len) / stride;
    match u32::try_from(slots) {
        Ok(slots @ 1..=MAX_SLOTS) => Ok((stride, slots)),
        Ok(0) => Err(refused("the memory is too small for one buffer")),
        _ => Err(refused("a pool has at most 16777215 buffers")),
    }
}

impl BufPool {
    /// Takes a buffer, of full length. `None` if all are in use. Does not block.
    ///
    /// The content is that of the last owner.
    #[inline]
    pub fn try_take(&self) -> Option<PoolBuf> {
        let index = self.shared.free.take()?;
        // SAFETY: taken from the list.
        let slot = unsafe { self.shared.slot(index) };
        // SAFETY: the slot is this buffer's alone.
        Some(unsafe { PoolBuf::of(slot, Arc::clone(&self.shared)) })
    }

    /// The handle of a buffer's pool.
    pub(super) fn of(shared: Arc<PoolShared>) -> Self {
        Self { shared }
    }

    /// Whether a buffer is of this pool.
    #[inline]
    pub(super) fn is_pool_of(&self, buf: &PoolBuf) -> bool {
        buf.is_of(&self.shared)
    }

    /// The number of buffers, free and in use.
    pub fn count(&self) -> usize {
        self.shared.free.slots()
    }

    /// The number of bytes of each buffer.
    pub fn capacity(&self) -> usize {
        self.shared.capacity as usize
    }

    /// The protection domain of the registration.
    pub fn pd(&self) -> &ProtectionDomain {
        self.shared.pd()
    }
}

impl fmt::Debug for BufPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufPool")
            .field("count", &self.count())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_buffers_are_aligned_up_to_the_end_of_memory() {
        assert_eq!(carve(4096, 64).unwrap(), (64, 64));
        assert_eq!(carve(4096, 65).unwrap(), (128, 32));
        assert_eq!(carve(64 + 10, 10).unwrap(), (64, 2));
        assert_eq!(carve(64 + 9, 10).unwrap(), (64, 1));
        assert_eq!(carve(10, 10).unwrap(), (64, 1));
    }

    #[test]
    fn pool_of_impossible_size_is_refused() {
        for (memory, len, reason) in [
            (100, 0, "from 1 to 2147483647"),
            (usize::MAX / 2, 1 << 31, "from 1 to 2147483647"),
            (9, 10, "too small"),
            (0, 10, "too small"),
            (1 << 30, 1, "at most 16777215"),
        ] {
            let err = carve(memory, len).unwrap_err().to_string();
            assert!(err.contains(reason), "{err}");
        }
    }
}
