//! Memory accessible to peers.

use std::{
    fmt, io,
    mem::ManuallyDrop,
    ops::Range,
    ptr::NonNull,
    slice,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ibverbs_sys::ibv_mr;

use super::{
    copying::{copy_in, copy_out},
    mapping::Mapping,
    memory::Words,
    region::{Region, address, element, push_elements},
};
use crate::{
    access::RemoteAccess,
    error::{Error, Result},
    pd::ProtectionDomain,
    quirk,
    work::{Gather, MAX_ELEMENT, Scatter, Sge, SgeList},
};

/// Address, length and RKey with which a peer accesses local memory. The program sends the token to
/// the peer, in a format of its own.
///
/// For the receiver, a token is a number checked by the device: a request with a wrong one fails
/// with [`REM_ACCESS_ERR`](crate::WcStatus::REM_ACCESS_ERR). The bounds of the token are
/// checked by posting: a request beyond [`len`](Self::len) is refused.
///
/// Assumption: the device checks the bounds of the registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteToken {
    /// The address of the first byte, in the address space of the registration.
    pub addr: u64,
    /// The number of bytes: the maximum for a request.
    pub len: u64,
    /// The RKey, checked by the device for each request.
    pub rkey: u32,
}

impl RemoteToken {
    /// A part of the memory.
    ///
    /// # Errors
    /// - `InvalidInput`: the range is not inside.
    pub fn slice(self, range: Range<u64>) -> Result<Self> {
        let Range { start, end } = range;
        let addr = self.addr.checked_add(start);
        match addr {
            Some(addr) if start <= end && end <= self.len => Ok(Self {
                addr,
                len: end - start,
                rkey: self.rkey,
            }),
            _ => {
                let reason = format!("{start}..{end} is not inside of {} bytes", self.len);
                Err(Error::refused(
                    "RemoteToken::slice",
                    io::ErrorKind::InvalidInput,
                    reason,
                ))
            }
        }
    }
}

/// Registered memory that a peer may read, write or change at any time.
///
/// No reference to the bytes exists: the program copies in and out. A read concurrent with a peer's
/// write returns some mixture of old and new bytes; the program's protocol must signal complete data, for
/// example by a message sent after the write.
///
/// A handle to shared memory, like an `Arc`: clones, parts, and requests in flight all keep the
/// registration. The drop of the last one revokes the RKey first, and then frees the memory;
/// [`revoke`](Self::revoke) returns the memory instead, readable in place.
///
/// # Examples
/// ```
/// # let (_fabric, ctx) = doctest::device();
/// use verbs::RemoteAccess;
/// let pd = ctx.alloc_pd()?;
/// let region = pd.alloc_remote(4096, RemoteAccess::WRITE)?;
/// let token = region.token(); // for the peer
/// let mut header = [0; 16];
/// region.read(0, &mut header); // bytes written so far
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias = "ibv_dereg_mr")]
pub struct RemoteRegion {
    // INVARIANT: dropped only by `drop`.
    range: ManuallyDrop<Arc<RegionRange>>,
}

impl Clone for RemoteRegion {
    #[inline]
    fn clone(&self) -> Self {
        let range = ManuallyDrop::clone(&self.range);
        Self { range }
    }
}

impl Drop for RemoteRegion {
    // Inlined up to the call: the pointer is passed in a register, so a region in a queue need not lie in memory.
    #[inline]
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        release(unsafe { ManuallyDrop::take(&mut self.range) });
    }
}

#[inline(never)]
fn release(range: Arc<RegionRange>) {
    drop(range);
}

/// A part of a region, at a fixed address: C reads the element in place.
struct RegionRange {
    // INVARIANT: the range, with the LKey of `region`, at its own address; if `is_single`.
    sge: Sge,
    /// Whether the range is one element of this process's memory at its virtual address.
    is_single: bool,
    region: Arc<Region>,
    // INVARIANT: `start..start + len` is inside `region`.
    start: NonNull<u8>,
    len: usize,
    // INVARIANT: the device's address of `start`.
    iova: u64,
}

// SAFETY: the bytes are reached only through atomics, from any thread.
unsafe impl Send for RegionRange {}
// SAFETY: see `Send`.
unsafe impl Sync for RegionRange {}

impl ProtectionDomain {
    /// `ibv_reg_mr`—Allocates `len` zero bytes, and registers them for peers. The first byte is
    /// aligned to a word, so [`load`](RemoteRegion::load) accepts every multiple of 8.
    ///
    /// Enters the kernel, and pins the memory.
    ///
    /// # Errors
    /// - `InvalidInput`: `len` is zero, or beyond the address space.
    /// - `ENOMEM`: the limit on locked memory (`ulimit -l`) is exceeded, or memory is exhausted.
    /// - `EINVAL`, `EOPNOTSUPP`: the device does not support this access.
    ///
    /// # References
    /// [ibv_reg_mr(3)](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html)
    #[doc(alias = "ibv_reg_mr")]
    pub fn alloc_remote(&self, len: usize, access: RemoteAccess) -> Result<RemoteRegion> {
        if quirk::access_outlives_registration(self.context())? {
            return Ok(self.register(Mapping::new(len)?).remote(access).create()?);
        }
        Ok(self.register(Words::zeroed(len)?).remote(access).create()?)
    }

    /// `ibv_reg_mr`—Allocates `len` zero bytes, accessible to peers through [memory
    /// windows](crate::MemoryWindow) only: the region's own RKey gives no access.
    ///
    /// # Errors
    /// As for [`alloc_remote`](Self::alloc_remote).
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "IBV_ACCESS_MW_BIND")]
    pub fn alloc_for_windows(&self, len: usize) -> Result<RemoteRegion> {
        let registration = self
            .register(Words::zeroed(len)?)
            .remote(RemoteAccess::empty());
        Ok(registration.windows().create()?)
    }
}

/// Ordering of a number's load: a reader that sees the number sees the writes before it.
const SEE: Ordering = Ordering::Acquire;
/// Ordering of a number's store: a reader that sees the number sees the writes before it.
const SHOW: Ordering = Ordering::Release;

impl RemoteRegion {
    /// All of a registration.
    pub(super) fn of_region(region: Region) -> Self {
        Self::whole(Arc::new(region))
    }

    fn whole(region: Arc<Region>) -> Self {
        let (start, len, iova) = (region.start(), region.len(), region.iova());
        Self::part_of(region, start, len, iova)
    }

    /// The range `start..start + len` of a region, whose address in requests is `iova`.
    fn part_of(region: Arc<Region>, start: NonNull<u8>, len: usize, iova: u64) -> Self {
        let single = u32::try_from(len).unwrap_or(u32::MAX);
        // SAFETY: used only if the range is one element, inside the region, registered with this key under this
        // address.
        let sge = unsafe { element(iova, single.min(MAX_ELEMENT), region.mr().lkey()) };
        Self {
            range: ManuallyDrop::new(Arc::new(RegionRange {
                sge,
                is_single: single <= MAX_ELEMENT && iova == address(start),
                region,
                start,
                len,
                iova,
            })),
        }
    }

    /// The number of bytes.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a region may be empty only by slicing"
    )]
    pub fn len(&self) -> usize {
        self.range.len
    }

    /// The token with which a peer can access the memory.
    pub fn token(&self) -> RemoteToken {
        RemoteToken {
            addr: self.range.iova,
            len: self.range.len as u64,
            rkey: self.range.region.mr().rkey(),
        }
    }

    /// A part of the memory, as a handle of its own. The [`token`](Self::token) covers the part,
    /// but has the RKey of the whole: peers can access the rest, too.
    ///
    /// # Panics
    /// Panics when the range is not inside.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let Range { start, end } = range;
        assert!(
            start <= end,
            "the range {start}..{end} ends before its start"
        );
        let len = end - start;
        let first = self.part(start, len);
        let region = Arc::clone(&self.range.region);
        Self::part_of(region, first, len, self.range.iova + start as u64)
    }

    /// Copies bytes out, beginning at `offset`. A peer's concurrent write may be seen or not, byte
    /// by byte.
    ///
    /// # Panics
    /// Panics when the bytes are not inside.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        let start = self.part(offset, bytes.len());
        let (memory, offset) = self.inside(start);
        // SAFETY: the bytes are inside the region, kept by `self`. No reference to the bytes
        // exists, and this process accesses them here, in `write`, and as words in `number`.
        unsafe { copy_out(memory, offset, bytes) };
    }

    /// Copies bytes in, beginning at `offset`. A peer's concurrent read may see them or not, byte
    /// by byte.
    ///
    /// Other bytes keep their values, concurrent writes included. But if the device changes a word
    /// by a peer's atomic operation at the same time, the word must be written whole or not at all.
    ///
    /// # Panics
    /// Panics when the bytes are not inside.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let start = self.part(offset, bytes.len());
        let (memory, offset) = self.inside(start);
        // SAFETY: as for `read`.
        unsafe { copy_in(bytes, memory, offset) };
    }

    /// The 8 bytes at `offset`, as a number in this machine's byte order, read in one step. Writes
    /// before the number's store, of any writer, are visible after this load.
    ///
    /// # Panics
    /// Panics when the bytes are not inside, or `offset` is not a multiple of 8 from an aligned
    /// start.
    pub fn load(&self, offset: usize) -> u64 {
        self.number(offset).load(SEE)
    }

    /// Writes a number in one step; see [`load`](Self::load).
    ///
    /// # Panics
    /// As for [`load`](Self::load).
    pub fn store(&self, offset: usize, value: u64) {
        self.number(offset).store(value, SHOW);
    }

    /// The aligned words of 8 bytes inside the memory, for loads and stores in place: all bytes, if the memory begins and ends
    /// between words, as [`alloc_remote`](ProtectionDomain::alloc_remote) and pages do.
    ///
    /// A peer's write may be seen or not, word by word. There is no such view of single bytes: [`read`](Self::read) and
    /// [`write`](Self::write) access the same memory by words, and accesses of two sizes at the same time are undefined.
    /// Bytes that no peer can write any more are readable after [`revoke`](Self::revoke).
    pub fn words(&self) -> &[AtomicU64] {
        let len = self.range.len;
        let before = self.range.start.align_offset(size_of::<u64>()).min(len);
        let first = self.part(before, 0).cast::<AtomicU64>();
        let count = (len - before) / size_of::<u64>();
        // SAFETY: the words are inside the region, kept by `self`, and aligned; without a word, the pointer is aligned only by
        // chance, so it is not used. `copying` accesses them as words, too. References to atomics are no claim on the bytes.
        unsafe { words(first, count) }
    }

    /// The address of the first byte, for `unsafe` code and for other devices of this process.
    ///
    /// Valid as long as a handle of the region is. While a peer or a request of this process may write, only atomic accesses
    /// of whole [words](Self::words) are defined beside [`read`](Self::read) and [`write`](Self::write). A reference to the
    /// bytes needs a proof that no peer can write: the protocol's, or [`revoke`](Self::revoke).
    pub fn as_ptr(&self) -> *mut u8 {
        self.range.start.as_ptr()
    }

    fn number(&self, offset: usize) -> &AtomicU64 {
        let start = self.part(offset, 8);
        assert!(
            start.cast::<u64>().is_aligned(),
            "offset {offset} is not aligned"
        );
        // SAFETY: the 8 bytes are inside the region, kept by `self`, and aligned. So `copying`
        // accesses them as a word, too. A reference to an atomic is no claim on the bytes.
        unsafe { AtomicU64::from_ptr(start.as_ptr().cast()) }
    }

    /// The protection domain of the registration.
    pub fn pd(&self) -> &ProtectionDomain {
        self.range.region.mr().pd()
    }

    /// The registration, if there is no other handle, no request in flight and no window.
    pub(super) fn region_mut(&mut self) -> Option<&mut Region> {
        let range = Arc::get_mut(&mut self.range)?;
        Arc::get_mut(&mut range.region)
    }

    /// All of the registration, after a replacement of the memory.
    pub(super) fn renewed(self) -> Self {
        Self::whole(Arc::clone(&self.range.region))
    }

    /// The same part of the registration, after a change of its keys.
    pub(super) fn rekeyed(self) -> Self {
        let range = &self.range;
        Self::part_of(
            Arc::clone(&range.region),
            range.start,
            range.len,
            range.iova,
        )
    }

    /// The C registration, valid as long as `self` lives.
    pub(crate) fn mr(&self) -> *mut ibv_mr {
        self.range.region.mr().as_raw()
    }

    /// All of the registered memory, and the offset of a byte, or of the end of one.
    fn inside(&self, start: NonNull<u8>) -> (NonNull<[u8]>, usize) {
        let region = &self.range.region;
        let first = region.start();
        let memory = NonNull::slice_from_raw_parts(first, region.len());
        (memory, start.addr().get() - first.addr().get())
    }

    /// The start of `len` bytes from `offset`, inside the region.
    fn part(&self, offset: usize, len: usize) -> NonNull<u8> {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.range.len),
            "{len} bytes from {offset} are not inside of {}",
            self.range.len
        );
        // SAFETY: `offset` is at most the length, so the result is inside the region or one past
        // the end.
        unsafe { self.range.start.add(offset) }
    }
}

/// A slice of words; an empty one, if there are none.
///
/// # Safety
/// - If `count` is not zero, that many words from `first` on are valid for `'m`, aligned, and accessed as atomic words only.
unsafe fn words<'m>(first: NonNull<AtomicU64>, count: usize) -> &'m [AtomicU64] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(first.as_ptr(), count) }
}

impl fmt::Debug for RemoteRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteRegion")
            .field("token", &self.token())
            .finish_non_exhaustive()
    }
}

// SAFETY: the elements are inside the region. `self` keeps the region registered and at its
// address, and no reference to the bytes exists.
unsafe impl Gather for RemoteRegion {
    #[inline]
    fn gather(&self, list: &mut SgeList) {
        let range = &*self.range;
        let sge = NonNull::from(&range.sge);
        // SAFETY: the element is in an `Arc`, `self` is a handle, and shared content does not change.
        unsafe { list.push_resident_range(sge, range.is_single, |list| range.push_all(list)) };
    }
}

impl RegionRange {
    /// Adds all elements, where several are needed, or only the device can interpret the address.
    #[cold]
    #[inline(never)]
    fn push_all(&self, list: &mut SgeList) {
        let mr = self.region.mr();
        let has_own_addresses = self.iova == address(self.start);
        let device = (!has_own_addresses).then(|| mr.pd().context().id());
        // SAFETY: the range is inside the region, registered with this key under this address;
        // `device` states whether only the device can interpret the address.
        unsafe { push_elements(list, self.iova, self.len as u64, mr.lkey(), device) };
    }
}

// SAFETY: see `Gather`; registered for local writing.
unsafe impl Scatter for RemoteRegion {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_token_slice_only_shrinks() {
        let token = RemoteToken {
            addr: 4096,
            len: 100,
            rkey: 7,
        };
        assert_eq!(
            token.slice(10..30).unwrap(),
            RemoteToken {
                addr: 4106,
                len: 20,
                rkey: 7
            }
        );
        assert_eq!(token.slice(100..100).unwrap().len, 0);
        #[expect(clippy::reversed_empty_ranges, reason = "the point of the test")]
        for wrong in [0..101, 30..10, u64::MAX..u64::MAX] {
            assert!(token.slice(wrong).is_err());
        }
        assert_eq!(
            token.slice(90..101).unwrap_err().to_string(),
            "`RemoteToken::slice` failed: 90..101 is not inside of 100 bytes"
        );
    }
}

#[cfg(test)]
mod interleavings {
    use super::*;

    /// Bytes, copied by `copying`, and then a number, written by `store`.
    #[test]
    fn load_of_a_stored_number_sees_earlier_writes() {
        use loom::sync::atomic::AtomicU64;
        loom::model(|| {
            let words = loom::sync::Arc::new([(); 2].map(|()| AtomicU64::new(0)));
            let [bytes, number] = &*words;
            let writer = loom::thread::spawn({
                let words = loom::sync::Arc::clone(&words);
                move || {
                    let [bytes, number] = &*words;
                    bytes.store(7, Ordering::Relaxed);
                    number.store(1, SHOW);
                }
            });
            if number.load(SEE) == 1 {
                assert_eq!(bytes.load(Ordering::Relaxed), 7);
            }
            writer.join().unwrap();
        });
    }
}
