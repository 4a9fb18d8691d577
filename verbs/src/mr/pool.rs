//! Pools of buffers.

use std::{
    fmt, io,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
    sync::Arc,
};

use super::{
    builder::Registration,
    free_list::{FreeList, MAX_SLOTS},
    mapping::Mapping,
    memory::OwnedMemory,
    region::Region,
};
use crate::{
    error::{Error, Refused, Result},
    pd::ProtectionDomain,
    work::{Gather, MAX_ELEMENT, Scatter, Sge, SgeList},
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

struct PoolShared {
    region: Region,
    free: FreeList,
    /// From one buffer to the next.
    // INVARIANT: `stride` times the number of slots is at most the length of the region, `capacity` is
    // at most `stride`, and `stride` is a multiple of the region's granule.
    stride: usize,
    capacity: u32,
}

/// A buffer of a [`BufPool`].
///
/// Like a [`Buf`](crate::Buf), a pool buffer moves to the device when posted, and returns with the
/// completion.
pub struct PoolBuf {
    // INVARIANT: `slot` was taken from `shared.free`, and `start` is the address of the slot's
    // bytes.
    shared: Arc<PoolShared>,
    slot: u32,
    // INVARIANT: at most the capacity.
    len: u32,
    start: NonNull<u8>,
    lkey: u32,
}

// SAFETY: a `PoolBuf` owns its bytes alone while it has the slot, and bytes may be owned by any
// thread. The list makes this owner's writes visible to the next owner.
unsafe impl Send for PoolBuf {}
// SAFETY: a shared one only allows reading.
unsafe impl Sync for PoolBuf {}

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
        Ok(BufPool {
            shared: Arc::new(PoolShared {
                region,
                free: FreeList::new(slots),
                stride,
                // At most `MAX_ELEMENT`, or there would be no stride.
                capacity: u32::try_from(len).unwrap_or(MAX_ELEMENT),
            }),
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
        let slot = self.shared.free.take()?;
        let offset = slot as usize * self.shared.stride;
        // SAFETY: the slot is below the number of slots, so the bytes are inside the region.
        let start = unsafe { self.shared.region.start().add(offset) };
        Some(PoolBuf {
            shared: Arc::clone(&self.shared),
            slot,
            len: self.shared.capacity,
            start,
            lkey: self.shared.region.mr().lkey(),
        })
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
        self.shared.region.mr().pd()
    }
}

impl PoolBuf {
    /// The maximum length for [`set_len`](Self::set_len), in bytes.
    pub fn capacity(&self) -> usize {
        self.shared.capacity as usize
    }

    /// Sets the length in bytes: of the slice, of a send, and of the space for a receive.
    ///
    /// # Panics
    /// Panics when `len` is more than the capacity.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        match u32::try_from(len) {
            Ok(len) if len <= self.shared.capacity => self.len = len,
            _ => super::buf::length_panic(len, self.capacity()),
        }
    }

    /// Sets the length back to the whole capacity.
    #[inline]
    pub fn set_full(&mut self) {
        self.len = self.shared.capacity;
    }

    /// The pool of this buffer.
    pub fn pool(&self) -> BufPool {
        BufPool {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Drop for PoolBuf {
    #[inline]
    fn drop(&mut self) {
        self.shared.free.give_back(self.slot);
    }
}

impl Deref for PoolBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are the slot's, initialised, and owned by `self` alone (invariant).
        // Assumption: a device accesses local memory for posted requests only. Posting would have
        // moved `self` away.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len as usize) }
    }
}

impl DerefMut for PoolBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `&mut self` excludes every other reference to these bytes.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len as usize) }
    }
}

impl AsRef<[u8]> for PoolBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for PoolBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for PoolBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuf")
            .field("slot", &self.slot)
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
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

// SAFETY: the element is a range of registered memory owned by `self` alone: registered and at a
// fixed address until `self` is dropped, and neither read nor written elsewhere.
unsafe impl Gather for PoolBuf {
    #[inline]
    fn gather(&self, list: &mut SgeList) {
        // SAFETY: `[start, start + len)` is inside a region registered with `lkey`, and `self`
        // keeps the region registered.
        list.push(unsafe { Sge::new(self.start, self.len, self.lkey) });
    }
}

// SAFETY: see `Gather`: owned alone, and registered for local writing.
unsafe impl Scatter for PoolBuf {}

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
