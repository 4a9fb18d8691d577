//! One registration: memory, and the device's access rights.

use std::{
    fmt::Write as _,
    io,
    mem::{self, ManuallyDrop},
    ptr::NonNull,
    sync::Arc,
};

use ibverbs_sys::{self as ffi, ibv_access_flags as flag};

use super::{
    bound::BoundRegion,
    dmah::DmaHandle,
    granule::{Granule, MAX_PAGE},
    memory::{Memory, OwnedMemory},
    on_demand::Implicit,
    provider_memory::ProviderMemory,
};
use crate::{
    context::ContextId,
    error::{Error, Refused, Result, cvt_ptr, found},
    pd::ProtectionDomain,
    work::{MAX_ELEMENT, Sge, SgeList},
};

/// A C registration and its domain.
pub(super) struct Mr {
    // INVARIANT: registered until `dereg` has succeeded.
    raw: NonNull<ffi::ibv_mr>,
    pd: ProtectionDomain,
}

// SAFETY: a registration belongs to no thread. Assumption: calls of libibverbs may be made from any
// thread, and several at once.
unsafe impl Send for Mr {}
// SAFETY: a shared reference only allows reading numbers, and changing the numbers takes `&mut`.
unsafe impl Sync for Mr {}

impl Mr {
    /// Takes over a call's result.
    ///
    /// # Safety
    /// - `raw` is null, with `errno` set, or a new registration in `pd` with no other owner.
    pub(super) unsafe fn new(
        call: &'static str,
        raw: *mut ffi::ibv_mr,
        pd: &ProtectionDomain,
    ) -> Result<Self> {
        let raw = cvt_ptr(call, raw)?;
        let pd = pd.clone();
        Ok(Self { raw, pd })
    }

    pub(super) fn as_raw(&self) -> *mut ffi::ibv_mr {
        self.raw.as_ptr()
    }

    pub(super) fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The LKey, for requests of this process.
    #[inline]
    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: `self.raw` is registered (invariant), and only C calls that need `&mut self`
        // change its keys.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    /// The RKey, for requests of peers.
    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: as for `lkey`.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    /// Ends the registration. Returns whether the device has certainly lost its access.
    ///
    /// # Safety
    /// - `dereg` has not succeeded before, and `self` is not used again.
    pub(super) unsafe fn dereg(&mut self) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.try_dereg() }.is_ok()
    }

    /// Ends the registration: the device has certainly lost its access. Returns the error number otherwise.
    ///
    /// # Safety
    /// - `dereg` has not succeeded before, and `self` is not used again after a success.
    unsafe fn try_dereg(&mut self) -> Result<(), i32> {
        let errno = self.pd.context().destroy(|| {
            // SAFETY: registered (invariant), and `&mut self` excludes other users; the domain is
            // allocated, since its field is dropped later.
            unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) }
        });
        if errno == 0 || self.pd.context().is_removed(errno) {
            return Ok(());
        }
        Err(errno)
    }
}

/// The options of a registration.
#[derive(Clone, Debug, Default)]
pub(super) struct Terms {
    /// Of `ibv_access_flags`.
    pub(super) access: u32,
    /// Requested rights of peers that `RemoteAccess` does not name. The registration is refused.
    pub(super) unknown_rights: u32,
    /// The address of the first byte in requests, if not the virtual address.
    pub(super) iova: Option<u64>,
    pub(super) dmah: Option<DmaHandle>,
}

impl Terms {
    pub(super) fn allow(&mut self, right: flag) {
        self.access |= right.0;
    }

    /// Makes these the options of the bytes from `offset` on. Zero-based ones begin at 0 each.
    pub(super) fn advance(&mut self, offset: usize) {
        if self.access & flag::IBV_ACCESS_ZERO_BASED.0 == 0 {
            self.iova = self.iova.map(|iova| iova.wrapping_add(offset as u64));
        }
    }

    /// The options of the registration, for an error.
    pub(super) fn describe(&self, len: usize) -> String {
        let mut text = format!("{len} bytes");
        let names = [
            (flag::IBV_ACCESS_REMOTE_WRITE, "remote write"),
            (flag::IBV_ACCESS_REMOTE_READ, "remote read"),
            (flag::IBV_ACCESS_REMOTE_ATOMIC, "remote atomic"),
            (flag::IBV_ACCESS_MW_BIND, "windows"),
            (flag::IBV_ACCESS_ON_DEMAND, "on demand"),
            (flag::IBV_ACCESS_HUGETLB, "huge pages"),
            (flag::IBV_ACCESS_RELAXED_ORDERING, "relaxed ordering"),
            (flag::IBV_ACCESS_ZERO_BASED, "zero based"),
        ];
        for (right, name) in names {
            if self.access & right.0 != 0 {
                text.extend([", ", name]);
            }
        }
        if let Some(iova) = self.iova {
            // Writing to a string does not fail.
            let _: std::fmt::Result = write!(text, ", from {iova:#x}");
        }
        text
    }
}

/// Memory owned by this crate and registered with a device.
///
/// The bytes are initialised, and nothing here reads or writes them: the holder of a `Region`
/// governs the access to each part.
pub(super) struct Region {
    grant: Grant,
    // INVARIANT: `len` bytes from `start` are the range of `memory`, and covered by `grant`.
    start: NonNull<u8>,
    len: usize,
    /// The address of the first byte in requests.
    iova: u64,
    // INVARIANT: `Some` until the registration is ended; dropped after the device has lost its
    // access, or never.
    memory: Option<Box<dyn Memory>>,
    /// Dropped after the registration has ended.
    dmah: Option<DmaHandle>,
    /// Whether windows can be bound.
    for_windows: bool,
    /// Buffers of the region begin and end at multiples.
    granule: Granule,
}

/// The registration behind the device's access.
enum Grant {
    /// One for this memory.
    Own(Mr),
    /// One for all memory there is.
    Everything(Arc<Implicit>),
}

// SAFETY: a registration belongs to no thread, and memory may be dropped by any. Assumption: calls
// of libibverbs may be made from any thread, and several at once.
unsafe impl Send for Region {}
// SAFETY: through a shared `Region` only addresses and keys can be read; the memory is touched by
// `drop` alone.
unsafe impl Sync for Region {}

impl Region {
    /// Registers `memory`, for requests of this process and for the access in `terms`.
    pub(super) fn register<M: Memory>(
        pd: &ProtectionDomain,
        memory: M,
        mut terms: Terms,
    ) -> Result<Self, Refused<M>> {
        // A fixed address.
        let mut memory = Box::new(memory);
        let range = memory.range();
        terms.allow(flag::IBV_ACCESS_LOCAL_WRITE);
        let granule = Granule::of(pd, &terms).and_then(|granule| {
            granule.check(range, &terms)?;
            Ok(granule)
        });
        let granule = granule.map_err(|error| error.detail(terms.describe(range.len())));
        let registered = granule.and_then(|granule| {
            // SAFETY: the range is valid until the memory is dropped, and the drop follows the end of
            // the registration. The device accesses whole granules, all inside of the range.
            let mr = unsafe { register(pd, range, memory.provider(), &terms) }?;
            Ok((mr, granule))
        });
        match registered {
            Ok((mr, granule)) => Ok(Self {
                granule,
                grant: Grant::Own(mr),
                start: range.cast(),
                len: range.len(),
                iova: terms.iova.unwrap_or(address(range.cast())),
                memory: Some(memory),
                for_windows: terms.access & flag::IBV_ACCESS_MW_BIND.0 != 0,
                dmah: terms.dmah,
            }),
            Err(error) => {
                let value = *memory;
                Err(Refused { value, error })
            }
        }
    }

    /// Puts memory under a registration of everything.
    pub(super) fn covered(everything: &Arc<Implicit>, memory: impl OwnedMemory) -> Self {
        let mut memory = Box::new(memory);
        let range = memory.range();
        Self {
            grant: Grant::Everything(Arc::clone(everything)),
            start: range.cast(),
            len: range.len(),
            iova: address(range.cast()),
            memory: Some(memory),
            dmah: None,
            for_windows: false,
            granule: Granule::BYTE,
        }
    }

    /// The registration.
    #[inline]
    pub(super) fn mr(&self) -> &Mr {
        match &self.grant {
            Grant::Own(mr) => mr,
            Grant::Everything(implicit) => implicit.mr(),
        }
    }

    /// Buffers of the region begin and end at multiples.
    pub(super) fn granule(&self) -> Granule {
        self.granule
    }

    /// Records that the registration now covers other memory, under its own addresses. Returns the
    /// old memory; the device has no access to the old memory any more.
    pub(super) fn replace(&mut self, mut memory: Box<dyn Memory>) -> Option<Box<dyn Memory>> {
        let range = memory.range();
        self.start = range.cast();
        self.len = range.len();
        self.iova = address(range.cast());
        self.memory.replace(memory)
    }

    /// The first byte.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The number of bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The address of the first byte in requests.
    pub(super) fn iova(&self) -> u64 {
        self.iova
    }
}

impl Region {
    /// Whether the registration is this memory's alone.
    pub(super) fn is_registered_alone(&self) -> bool {
        matches!(self.grant, Grant::Own(_))
    }

    /// Records that the registration is in another domain now.
    pub(super) fn set_pd(&mut self, pd: ProtectionDomain) {
        if let Grant::Own(mr) = &mut self.grant {
            mr.pd = pd;
        }
    }

    /// Ends the registration, and returns the memory if the device has lost its access. Otherwise
    /// the memory is leaked.
    pub(super) fn end(&mut self) -> Option<Box<dyn Memory>> {
        let memory = ManuallyDrop::new(self.memory.take()?);
        // SAFETY: once, since there was still memory; not used afterwards, since the registration
        // is unusable, and `self` its only owner.
        let ended = unsafe { self.dereg() };
        ended.then(|| ManuallyDrop::into_inner(memory))
    }

    /// Ends the registration and returns the memory, or leaves both as they were.
    ///
    /// # Errors
    /// - `InvalidInput`: the registration is of all memory there is, or others may use the memory.
    /// - Any error of the device.
    pub(super) fn revoke(&mut self, call: &'static str) -> Result<Box<dyn Memory>> {
        let refused = |reason| Err(Error::refused(call, io::ErrorKind::InvalidInput, reason));
        let Grant::Own(mr) = &mut self.grant else {
            return refused("all memory is registered at once");
        };
        match &self.memory {
            Some(memory) if memory.is_exclusive() => {}
            _ => return refused("others may use the memory; copy the bytes by `read`"),
        }
        // SAFETY: the registration has not ended, since there is memory. Assumption: a failed deregistration leaves the
        // registration as it was. After a success only `drop` uses `self`, and does nothing without memory.
        unsafe { mr.try_dereg() }.map_err(|errno| Error::from_errno(call, errno))?;
        match self.memory.take() {
            Some(memory) => Ok(memory),
            None => refused("the registration has ended"),
        }
    }

    /// Ends the registration. Returns whether the device has certainly lost its access.
    ///
    /// # Safety
    /// - As for [`Mr::dereg`].
    unsafe fn dereg(&mut self) -> bool {
        match &mut self.grant {
            // SAFETY: the caller's promise.
            Grant::Own(mr) => unsafe { mr.dereg() },
            // Only requests with a buffer or a region of this memory named the bytes to the device,
            // and none is left, neither here nor in flight; a parent process may have some.
            Grant::Everything(implicit) => !implicit.mr().pd.context().is_inherited(),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // No buffer is left, since each holds an `Arc` of `self`.
        let Some(memory) = self.memory.take().map(ManuallyDrop::new) else {
            return;
        };
        // SAFETY: once, since there was still memory; if this fails, only `BoundRegion` tries again.
        if unsafe { self.dereg() } {
            drop(ManuallyDrop::into_inner(memory));
        } else if let (true, Grant::Own(mr)) = (self.for_windows, &self.grant) {
            // SAFETY: registered, since ending failed, and `self` has no other owner.
            let bound = unsafe { BoundRegion::new(mr.raw, memory, self.dmah.take()) };
            mr.pd.bound_regions().keep(bound, mr.pd.context());
        }
    }
}

/// A byte's virtual address, as the address in requests. Exposes the provenance, since the device
/// may use the address from now on.
pub(super) fn address(byte: NonNull<u8>) -> u64 {
    byte.as_ptr().expose_provenance() as u64
}

/// Registers a range.
///
/// # Safety
/// - The range is valid, and open to the device for the access in `terms`, until the registration
///   has ended. With provider memory, the range is that memory's.
unsafe fn register(
    pd: &ProtectionDomain,
    range: NonNull<[u8]>,
    provider: Option<&ProviderMemory>,
    terms: &Terms,
) -> Result<Mr> {
    let (start, len) = (range.cast::<u8>(), range.len());
    let fail = |err: Error| err.detail(terms.describe(len));
    pd.context().check_process("ibv_reg_mr").map_err(fail)?;
    if provider.is_some_and(|memory| memory.pd() != pd) {
        let reason = "the memory was allocated in another protection domain";
        let refused = Error::refused("ibv_reg_buf_mr", io::ErrorKind::InvalidInput, reason);
        return Err(fail(refused));
    }
    // Exposed, since the device may use the address from now on.
    let addr = address(start);
    let (call, raw) = match (provider, &terms.dmah, terms.iova) {
        (Some(memory), None, None) => {
            const CALL: &str = "ibv_reg_buf_mr";
            let reg_buf_mr = found(CALL, ffi::late::ibv_reg_buf_mr()).map_err(fail)?;
            let (pd, addr) = (pd.as_raw(), start.as_ptr().cast());
            let access = terms.access as i32;
            // SAFETY: the domain is allocated for as long as `pd` lives, the provider memory for as
            // long as `memory`, and the caller vouches for the range. C does not touch the bytes;
            // from here on only requests with a key make the device do so.
            let raw = unsafe { reg_buf_mr(pd, memory.as_raw(), addr, len, access) };
            (CALL, raw)
        }
        (None, None, iova) => {
            let iova = iova.unwrap_or(addr);
            let (pd, start, access) = (pd.as_raw(), start.as_ptr().cast(), terms.access);
            // SAFETY: as above.
            let raw = unsafe { ffi::ibv_reg_mr_iova(pd, start, len, iova, access) };
            ("ibv_reg_mr", raw)
        }
        (memory, dmah, iova) => {
            use ffi::ibv_mr_init_attr_mask as has;
            const CALL: &str = "ibv_reg_mr_ex";
            let reg_mr_ex = found(CALL, ffi::late::ibv_reg_mr_ex()).map_err(fail)?;
            // SAFETY: integers and pointers; zero is a value of each.
            let mut attr: ffi::ibv_mr_init_attr = unsafe { mem::zeroed() };
            let mut mask = has::IBV_REG_MR_MASK_ADDR.0;
            attr.length = len;
            attr.access = terms.access as i32;
            attr.addr = start.as_ptr().cast();
            if memory.is_none() || iova.is_some() {
                attr.iova = iova.unwrap_or(addr);
                mask |= has::IBV_REG_MR_MASK_IOVA.0;
            }
            if let Some(memory) = memory {
                attr.buf = memory.as_raw();
                mask |= has::IBV_REG_MR_MASK_BUF.0;
            }
            if let Some(dmah) = dmah {
                attr.dmah = dmah.as_raw();
                mask |= has::IBV_REG_MR_MASK_DMAH.0;
            }
            attr.comp_mask = u64::from(mask);
            // SAFETY: as above; the handle lives as long as `terms`, kept by the region. Assumption: C
            // keeps no pointer to the attributes.
            (CALL, unsafe { reg_mr_ex(pd.as_raw(), &raw mut attr) })
        }
    };
    // SAFETY: `raw` is the call's result.
    unsafe { Mr::new(call, raw, pd) }.map_err(fail)
}

/// An element with the first byte's address as the device knows it.
///
/// # Safety
/// - As for [`Sge::new`], where the range is the device's view of `addr` with `lkey`.
#[inline]
pub(super) unsafe fn element(addr: u64, length: u32, lkey: u32) -> Sge {
    let raw = ffi::ibv_sge { addr, length, lkey };
    // SAFETY: an `Sge` is a transparent `ibv_sge`.
    unsafe { mem::transmute::<ffi::ibv_sge, Sge>(raw) }
}

/// Adds `len` bytes from `addr` to a list: in several elements for 2 GiB or more, and posting refuses
/// more than 2 GiB. `addr` is the address of the bytes in this process, unless only the
/// device can interpret the address.
///
/// # Safety
/// - As for [`element`].
#[inline]
pub(super) unsafe fn push_elements(
    list: &mut SgeList,
    mut addr: u64,
    mut len: u64,
    lkey: u32,
    device: Option<ContextId>,
) {
    loop {
        let part = match u32::try_from(len) {
            Ok(part @ ..=MAX_ELEMENT) => part,
            _ => MAX_ELEMENT & !(MAX_PAGE - 1),
        };
        // SAFETY: a part of the caller's range.
        let sge = unsafe { element(addr, part, lkey) };
        match device {
            None => list.push(sge),
            Some(device) => list.push_elsewhere(sge, device),
        }
        addr = addr.wrapping_add(part.into());
        len -= u64::from(part);
        if len == 0 {
            break;
        }
    }
}
