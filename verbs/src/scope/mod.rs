//! Scopes: borrowed memory, and queue pairs for work with borrowed memory.

mod memory;
mod work;

use std::{
    fmt, io,
    marker::PhantomData,
    process,
    ptr::NonNull,
    sync::{Mutex, MutexGuard, PoisonError},
};

use ibverbs_sys as ffi;

use self::memory::Part;
use crate::{
    error::{Error, Result},
    pd::ProtectionDomain,
    qp::{Member, QueuePair, QueuePairBuilder, Queued, Reset},
    work::MAX_ELEMENT,
};

pub use self::{
    memory::{ScopedBuf, ScopedSlice},
    work::{Scoped, ScopedWork},
};

/// Runs `f` with a scope for registering borrowed memory, in the manner of [`std::thread::scope`].
///
/// Only a queue pair [created in the scope](Scope::create_qp) accepts such memory. However `f` ends,
/// every queue pair of the scope is destroyed before this function returns or unwinds, also a
/// forgotten one (`mem::forget`), and then every registration ends. So the device has lost its
/// access to the memory by then. The work of a forgotten queue pair is leaked, and not dropped.
///
/// # Aborts
/// The process is aborted if the device does not destroy a queue pair of the scope: the borrowed
/// memory must be returned to its owner, and the device might still write there. If the device does
/// not destroy a dropped queue pair, the scope retries at its end. A registration that the device
/// does not end is only leaked: no request uses the registration any more.
///
/// # Examples
/// ```
/// # let peer = doctest::peer();
/// # let ctx = verbs::devices()?.first()?.open()?;
/// # let (pd, mut cq) = (ctx.alloc_pd()?, ctx.cq_builder(16).waitable().create()?);
/// use verbs::op;
/// let question = *b"on the stack";
/// let mut answer = [0; 64];
/// verbs::scope(&pd, |scope| {
/// #   let connect = |qp| peer.connect(qp);
///     let qp = scope.create_qp(pd.qp_builder::<verbs::Rc>(&cq, &cq))?;
///     let mut qp = connect(qp); // with the crate `cm`, or by hand
///     qp.post_recv(scope.register(&mut answer)?)?;
///     qp.post(op::Send::new(scope.register_shared(&question)?))?;
///     for wc in cq.wait(None)? {
///         qp.complete(wc).expect("there is no other queue pair");
///     }
///     Ok::<(), verbs::Error>(())
/// })?;
/// println!("{answer:?}");
/// # Ok::<(), verbs::Error>(())
/// ```
pub fn scope<'env, F, R>(pd: &ProtectionDomain, f: F) -> R
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
{
    let scope = Scope {
        members: ScopeMembers(Mutex::default()),
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

/// Registers borrowed memory, and creates queue pairs for such memory; see [`scope`].
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    // Dropped first: the device uses the regions' memory until the queue pairs are destroyed.
    members: ScopeMembers,
    regions: Regions,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// The queue pairs of a scope.
// INVARIANT: every queue pair made in the scope and possibly still existing.
struct ScopeMembers(Mutex<Vec<Member>>);

/// The registrations of a scope.
struct Regions {
    // INVARIANT: registered, and deregistered only in `drop`.
    registered: Mutex<Vec<Registered>>,
    pd: ProtectionDomain,
}

struct Registered(NonNull<ffi::ibv_mr>);

// SAFETY: a registration belongs to no thread. Assumption: calls of libibverbs may be made from any
// thread, and several at once.
unsafe impl Send for Registered {}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// `ibv_create_qp(pd, …)`—Creates a queue pair for work with borrowed memory. Destroyed when
    /// dropped, at the latest when the scope ends. Enters the kernel.
    ///
    /// The types of its work name the lifetime of the scope, so that the queue pair cannot leave
    /// the scope: [`ScopedBuf`], [`ScopedSlice`], containers of them, or other work as [`Scoped`].
    ///
    /// # Errors
    /// As for [`QueuePairBuilder::create`].
    ///
    /// # Examples
    /// ```
    /// # use verbs::{Buf, QueuePair, Reset, scope::{Scoped, ScopedBuf}};
    /// # let (_fabric, ctx) = doctest::device();
    /// # let (pd, cq) = (&ctx.alloc_pd()?, &ctx.create_cq(64)?);
    /// verbs::scope(pd, |scope| {
    ///     // Sends owned memory, and receives into borrowed memory.
    ///     let qp: QueuePair<verbs::Rc, Reset, Scoped<'_, Buf>, ScopedBuf<'_>> =
    ///         scope.create_qp(pd.qp_builder::<verbs::Rc>(cq, cq))?;
    ///     Ok::<(), verbs::Error>(())
    /// })?;
    /// # Ok::<(), verbs::Error>(())
    /// ```
    ///
    /// # References
    /// [ibv_create_qp(3)](https://man7.org/linux/man-pages/man3/ibv_create_qp.3.html)
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp<T, SW, RW>(
        &'scope self,
        builder: QueuePairBuilder<'_, T>,
    ) -> Result<QueuePair<T, Reset, SW, RW>>
    where
        T: Queued,
        SW: ScopedWork<'scope> + 'scope,
        RW: ScopedWork<'scope> + 'scope,
    {
        let mut members = self.members.lock();
        members.retain(Member::exists);
        members.reserve(1);
        let (qp, member) = builder.create_member()?;
        members.push(member);
        Ok(qp)
    }

    /// `ibv_reg_mr`—Registers memory for reading and writing by the device.
    ///
    /// # Errors
    /// - `InvalidInput`: no bytes, or at least 2 GiB.
    /// - As for [`alloc_buf`](ProtectionDomain::alloc_buf).
    ///
    /// # References
    /// [ibv_reg_mr(3)](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html)
    #[doc(alias = "ibv_reg_mr")]
    pub fn register(&'scope self, memory: &'env mut [u8]) -> Result<ScopedBuf<'scope>> {
        let access = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        let (start, len) = (NonNull::from(&mut *memory).cast(), memory.len());
        // SAFETY: the memory is borrowed for longer than the scope, and its owner uses the memory
        // only after the scope: `self.members` and `self.regions` are dropped before.
        let lkey = unsafe { self.regions.register(start, len, access.0) }?;
        // SAFETY: registered, and borrowed exclusively for longer than `'scope`.
        Ok(unsafe { ScopedBuf::new(Part { start, len, lkey }) })
    }

    /// `ibv_reg_mr`—Registers memory for reading by the device.
    ///
    /// # Errors
    /// As for [`register`](Self::register).
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_shared(&'scope self, memory: &'env [u8]) -> Result<ScopedSlice<'scope>> {
        let (start, len) = (NonNull::from(memory).cast(), memory.len());
        // SAFETY: as above; the device gets no right to write.
        let lkey = unsafe { self.regions.register(start, len, 0) }?;
        // SAFETY: registered, and borrowed for longer than `'scope`.
        Ok(unsafe { ScopedSlice::new(Part { start, len, lkey }) })
    }
}

impl ScopeMembers {
    fn lock(&self) -> MutexGuard<'_, Vec<Member>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ScopeMembers {
    fn drop(&mut self) {
        let members = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        for member in members {
            // SAFETY: the scope's function is over, and the types of every half and handle name the
            // scope's lifetime. So those not dropped were forgotten, and are not used any more.
            if unsafe { member.end() }.is_err() {
                // The device keeps its access to memory about to be used by its owner.
                process::abort();
            }
        }
    }
}

impl fmt::Debug for ScopeMembers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&*self.lock()).finish()
    }
}

impl Regions {
    /// # Safety
    /// - The range is valid, and open to the device for the access in `access`, until `self` is
    ///   dropped.
    unsafe fn register(&self, start: NonNull<u8>, len: usize, access: u32) -> Result<u32> {
        let detail = || format!("{len} bytes");
        self.pd.context().check_process("ibv_reg_mr")?;
        if !(1..=MAX_ELEMENT as usize).contains(&len) {
            let reason = "from 1 to 2147483647 bytes can be registered in a scope";
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
        // SAFETY: the region has just been registered, and its keys are constant.
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
            let _: i32 = self.pd.context().destroy(|| {
                // SAFETY: the region is registered (invariant), and deregistered once, here; the domain
                // is allocated, since its field is dropped later.
                //
                // The result is of no use: only requests on queue pairs of the scope named the region,
                // and those queue pairs are destroyed. Peers have no access.
                unsafe { ffi::ibv_dereg_mr(mr.as_ptr()) }
            });
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
