//! Memory that is only borrowed, registered for as long as a scope lasts.

use std::{
    fmt, io,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    process,
    ptr::NonNull,
    slice,
    sync::{Mutex, PoisonError},
};

use ibverbs_sys as ffi;

use crate::{
    error::{Error, Result},
    pd::ProtectionDomain,
    work::{Gather, Scatter, Sge, SgeList},
};

/// Runs `f`, which can register memory that it only borrows, in the manner of
/// [`std::thread::scope`].
///
/// However `f` ends, all that it registered is deregistered before this function returns, so the
/// device has lost its access by then. Requests that are still in flight, on a queue pair that was
/// forgotten for example, fail with
/// [`LOC_PROT_ERR`](crate::WcStatus::LOC_PROT_ERR) or another status, and touch nothing.
///
/// Should the device refuse to deregister, which for such memory no device known does, the process
/// is aborted: there is no way to give the memory back.
///
/// # Examples
/// ```no_run
/// # use verbs::{CompletionQueue, ProtectionDomain, QueuePair, Rc, Reset, Rts, ScopedBuf, ScopedSlice};
/// # trait Connect {
/// #     fn connect<'s>(
/// #         self,
/// #         qp: QueuePair<Rc, Reset, ScopedSlice<'s>, ScopedBuf<'s>>,
/// #     ) -> QueuePair<Rc, Rts, ScopedSlice<'s>, ScopedBuf<'s>>;
/// # }
/// # fn f(pd: ProtectionDomain, mut cq: CompletionQueue, peer: impl Connect) -> verbs::Result<()> {
/// use verbs::op::Send;
/// let question = *b"on the stack";
/// let mut answer = [0; 64];
/// verbs::scope(&pd, |scope| {
///     let qp = pd.qp_builder::<Rc>(&cq, &cq).create_for()?;
///     let mut qp = peer.connect(qp);
///     qp.post_recv(scope.register(&mut answer)?)?;
///     qp.post(Send::new(scope.register_shared(&question)?))?;
///     for wc in cq.wait(None)? {
///         qp.complete(wc).expect("there is no other queue pair");
///     }
///     Ok::<(), verbs::Error>(())
/// })?;
/// println!("{answer:?}");
/// # Ok(())
/// # }
/// ```
pub fn scope<'env, F, R>(pd: &ProtectionDomain, f: F) -> R
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
{
    let scope = Scope {
        regions: Regions {
            registered: Mutex::default(),
            pd: pd.clone(),
        },
        scope: PhantomData,
        env: PhantomData,
    };
    // Dropped on every way out of here, also by a panic.
    f(&scope)
}

/// Registers borrowed memory; see [`scope`].
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    regions: Regions,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// What a scope has registered.
struct Regions {
    // INVARIANT: registered, and deregistered only in `drop`.
    registered: Mutex<Vec<Registered>>,
    pd: ProtectionDomain,
}

struct Registered(NonNull<ffi::ibv_mr>);

// SAFETY: a registration may be ended from any thread.
unsafe impl Send for Registered {}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// `ibv_reg_mr`—Registers memory that the device may read and write.
    ///
    /// # Errors
    /// - `InvalidInput`: no bytes, or more than `u32::MAX`.
    /// - As for [`alloc_buf`](ProtectionDomain::alloc_buf).
    ///
    /// # References
    /// [ibv_reg_mr(3)](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html)
    #[doc(alias = "ibv_reg_mr")]
    pub fn register(&'scope self, memory: &'env mut [u8]) -> Result<ScopedBuf<'scope>> {
        let access = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        let start = NonNull::from(&mut *memory).cast();
        // SAFETY: the memory is borrowed for longer than the scope, and is the program's again only
        // when the scope has ended: `self.regions` is dropped before that.
        let lkey = unsafe { self.regions.register(start, memory.len(), access.0) }?;
        let len = memory.len();
        Ok(ScopedBuf {
            memory: Part { start, len, lkey },
            scope: PhantomData,
        })
    }

    /// `ibv_reg_mr`—Registers memory that the device may only read.
    ///
    /// # Errors
    /// As for [`register`](Self::register).
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_shared(&'scope self, memory: &'env [u8]) -> Result<ScopedSlice<'scope>> {
        let start = NonNull::from(memory).cast();
        // SAFETY: as above; the device gets no right to write.
        let lkey = unsafe { self.regions.register(start, memory.len(), 0) }?;
        let len = memory.len();
        Ok(ScopedSlice {
            memory: Part { start, len, lkey },
            scope: PhantomData,
        })
    }
}

impl Regions {
    /// # Safety
    /// - The range is valid, and for what `access` allows the device's, until `self` is dropped.
    unsafe fn register(&self, start: NonNull<u8>, len: usize, access: u32) -> Result<u32> {
        let detail = || format!("{len} bytes");
        if len == 0 || u32::try_from(len).is_err() {
            let reason = "from 1 to 4294967295 bytes can be registered in a scope";
            return Err(
                Error::refused("ibv_reg_mr", io::ErrorKind::InvalidInput, reason).detail(detail()),
            );
        }
        // SAFETY: the domain is allocated for as long as `self` lives; the range is as the caller
        // promised.
        let mr = unsafe { ffi::ibv_reg_mr(self.pd.as_raw(), start.as_ptr().cast(), len, access) };
        let mr = NonNull::new(mr).ok_or_else(|| Error::last_os("ibv_reg_mr").detail(detail()))?;
        self.registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Registered(mr));
        // SAFETY: the region has just been registered, and its keys are set for good.
        Ok(unsafe { mr.as_ref() }.lkey)
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        let registered = self
            .registered
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for Registered(mr) in registered.drain(..) {
            // SAFETY: the region is registered (invariant), and deregistered once, here; its domain
            // is allocated, since that is dropped after this.
            if unsafe { ffi::ibv_dereg_mr(mr.as_ptr()) } != 0 {
                // The device keeps its access to memory that its owner is about to use.
                process::abort();
            }
        }
    }
}

impl fmt::Debug for Regions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Regions")
            .field("pd", &self.pd)
            .finish_non_exhaustive()
    }
}

/// A range of memory that a scope has registered.
#[derive(Clone, Copy, Debug)]
struct Part {
    start: NonNull<u8>,
    len: usize,
    lkey: u32,
}

impl Part {
    #[inline]
    fn sge(self) -> Sge {
        let len = u32::try_from(self.len).unwrap_or(u32::MAX);
        // SAFETY: the range is registered with this key; it is no longer than `u32::MAX`, which was
        // checked then.
        unsafe { Sge::new(self.start, len, self.lkey) }
    }
}

/// Borrowed memory, registered for reading and writing until its [`scope`] ends.
///
/// Like a [`Buf`](crate::Buf), it moves into a queue when it is posted, and comes back with the
/// completion.
#[derive(Debug)]
pub struct ScopedBuf<'scope> {
    // INVARIANT: borrowed exclusively for longer than `'scope`.
    memory: Part,
    scope: PhantomData<&'scope mut [u8]>,
}

/// Borrowed memory, registered for reading until its [`scope`] ends.
///
/// Like a [`SharedBuf`](crate::SharedBuf), it can be posted many times at once.
#[derive(Clone, Copy, Debug)]
pub struct ScopedSlice<'scope> {
    // INVARIANT: borrowed for longer than `'scope`.
    memory: Part,
    scope: PhantomData<&'scope [u8]>,
}

// SAFETY: it is an exclusive borrow of bytes, which may change threads.
unsafe impl Send for ScopedBuf<'_> {}
// SAFETY: a shared one only allows reading.
unsafe impl Sync for ScopedBuf<'_> {}
// SAFETY: it is a shared borrow of bytes.
unsafe impl Send for ScopedSlice<'_> {}
// SAFETY: see `Send`.
unsafe impl Sync for ScopedSlice<'_> {}

impl Deref for ScopedBuf<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are initialised and borrowed exclusively by `self` (invariant). The
        // device does not write them: it only does so for posted work, which would have moved
        // `self` away.
        unsafe { slice::from_raw_parts(self.memory.start.as_ptr(), self.memory.len) }
    }
}

impl DerefMut for ScopedBuf<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `&mut self` excludes every other reference.
        unsafe { slice::from_raw_parts_mut(self.memory.start.as_ptr(), self.memory.len) }
    }
}

impl AsRef<[u8]> for ScopedBuf<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Deref for ScopedSlice<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are initialised and borrowed (invariant), so nobody writes them.
        unsafe { slice::from_raw_parts(self.memory.start.as_ptr(), self.memory.len) }
    }
}

impl AsRef<[u8]> for ScopedSlice<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

// SAFETY: the element is memory that is borrowed exclusively and stays registered until the scope
// ends. When that comes before `self` is dropped, because its owner was forgotten, the registration
// ends, and with it every access.
unsafe impl Gather for ScopedBuf<'_> {
    #[inline]
    fn gather(&self, list: &mut SgeList) {
        list.push(self.memory.sge());
    }
}

// SAFETY: see `Gather`; registered for local writing.
unsafe impl Scatter for ScopedBuf<'_> {}

// SAFETY: as for `ScopedBuf`; the memory is borrowed, so nobody writes it.
unsafe impl Gather for ScopedSlice<'_> {
    #[inline]
    fn gather(&self, list: &mut SgeList) {
        list.push(self.memory.sge());
    }
}
