//! Sharing a device, its protection domains and its memory between processes.
//!
//! One process passes on a duplicate of [`Context::cmd_fd`], and the
//! [`KernelHandle`]s of the objects; the other imports these.
//!
//! # References
//! [ibv_import_device(3)](https://man7.org/linux/man-pages/man3/ibv_import_device.3.html),
//! [ibv_import_pd(3)](https://man7.org/linux/man-pages/man3/ibv_import_pd.3.html),
//! [ibv_import_mr(3)](https://man7.org/linux/man-pages/man3/ibv_import_mr.3.html)

use std::{
    fmt,
    os::fd::{BorrowedFd, IntoRawFd, OwnedFd},
    ptr::NonNull,
};

use ibverbs_sys as ffi;

use crate::{
    context::Context,
    error::{Error, Result, cvt_ptr},
    event::KernelHandle,
    masked_failures::check_environment,
    pd::{Origin, ProtectionDomain},
};

/// `ibv_import_device(cmd_fd)`—Opens a device that another process has opened, and shares its
/// objects.
///
/// The descriptor is a duplicate of the other process's [`cmd_fd`](Context::cmd_fd), for example
/// from `SCM_RIGHTS`. The context takes ownership.
///
/// # Errors
/// The descriptor is lost: either closed by the provider, or left open for the life of the process.
/// - `EINVAL`: the descriptor is not one of an RDMA device.
/// - `ENODEV`: the device is gone.
/// - `EOPNOTSUPP`: the device cannot be shared.
/// - `Unsupported`: see [`Device::open`](crate::Device::open).
///
/// # Examples
/// ```no_run
/// # fn f(
/// #     receive: impl FnOnce() -> (std::os::fd::OwnedFd, verbs::event::KernelHandle),
/// # ) -> verbs::Result<()> {
/// let (fd, pd) = receive(); // from the other process
/// let ctx = verbs::import::import_device(fd)?;
/// let pd = ctx.import_pd(pd)?;
/// # Ok(())
/// # }
/// ```
///
/// # References
/// [ibv_import_device(3)](https://man7.org/linux/man-pages/man3/ibv_import_device.3.html)
#[doc(alias = "ibv_import_device")]
pub fn import_device(cmd_fd: OwnedFd) -> Result<Context> {
    const CALL: &str = "ibv_import_device";
    check_environment(CALL)?;
    let cmd_fd = cmd_fd.into_raw_fd();
    // SAFETY: the descriptor is open, and has no other owner.
    let raw = unsafe { ffi::ibv_import_device(cmd_fd) };
    let Some(raw) = NonNull::new(raw) else {
        // The descriptor is given up. A failure in libibverbs itself leaves the descriptor open. A
        // failure in a provider closes the descriptor, with the same errors, and then another file
        // may have its number already.
        return Err(Error::last_os(CALL));
    };
    // SAFETY: the context is fresh, open, and has no other owner; the environment was checked.
    Ok(unsafe { Context::from_open(raw) })
}

impl Context {
    /// The command descriptor of the open device. A process with a duplicate can
    /// [import](import_device) the device.
    ///
    /// # Safety
    /// The descriptor accepts commands by `write(2)` and `ioctl(2)`. With them, the kernel writes
    /// to any address of this process, and destroys any object of this context.
    ///
    /// - In this process, the descriptor and its duplicates are used only for sending to another
    ///   process, which then has all rights of this context.
    /// - A context that this process itself imports from a duplicate is not used to destroy objects
    ///   of this context.
    ///
    /// # Examples
    /// ```
    /// # let (_fabric, ctx) = doctest::device();
    /// # fn send(fd: std::os::fd::BorrowedFd<'_>) {}
    /// // SAFETY: `send` passes it to the other process by `SCM_RIGHTS`, and does nothing else.
    /// send(unsafe { ctx.cmd_fd() });
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub unsafe fn cmd_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open for as long as `self` lives, and its descriptor is constant
        // after opening.
        let fd = unsafe { (*self.as_raw()).cmd_fd };
        // SAFETY: the descriptor is open for as long as the context, and so for as long as `self`
        // is borrowed.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// `ibv_import_pd(ctx, handle)`—Uses a protection domain made by another process that shares
    /// the device.
    ///
    /// The other process remains the owner, and frees the domain.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`: the device does not support importing domains.
    /// - `EINVAL`, `ENOENT`: there is no such domain.
    ///
    /// # References
    /// [ibv_import_pd(3)](https://man7.org/linux/man-pages/man3/ibv_import_pd.3.html)
    #[doc(alias = "ibv_unimport_pd")]
    #[doc(alias = "ibv_import_pd")]
    pub fn import_pd(&self, handle: KernelHandle) -> Result<ProtectionDomain> {
        self.check_process("ibv_import_pd")?;
        // SAFETY: the context is open for as long as `self` lives; the kernel checks the handle.
        let raw = unsafe { ffi::ibv_import_pd(self.as_raw(), handle.0) };
        let raw = cvt_ptr("ibv_import_pd", raw).map_err(|err| err.detail(format!("{handle:?}")))?;
        // SAFETY: the domain has just been imported into this context.
        Ok(unsafe { ProtectionDomain::from_raw(raw, Origin::Imported, self.clone()) })
    }
}

/// `ibv_mr`—A registration made by another process, of that process's memory.
///
/// The keys are valid in requests with addresses of the other process.
#[doc(alias = "ibv_mr")]
pub struct ImportedRegion {
    // INVARIANT: imported until `self` is dropped.
    raw: NonNull<ffi::ibv_mr>,
    pd: ProtectionDomain,
}

// SAFETY: a registration may be used and given back from any thread.
unsafe impl Send for ImportedRegion {}
// SAFETY: a shared reference only allows reading numbers, and the numbers never change.
unsafe impl Sync for ImportedRegion {}

impl ProtectionDomain {
    /// `ibv_import_mr(pd, handle)`—Uses a registration of another process that shares the device,
    /// in this domain.
    ///
    /// The other process remains the owner, and ends the registration.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`: the device does not support importing registrations.
    /// - `EINVAL`, `ENOENT`: there is no such registration.
    ///
    /// # References
    /// [ibv_import_mr(3)](https://man7.org/linux/man-pages/man3/ibv_import_mr.3.html)
    #[doc(alias = "ibv_unimport_mr")]
    #[doc(alias = "ibv_import_mr")]
    pub fn import_mr(&self, handle: KernelHandle) -> Result<ImportedRegion> {
        self.context().check_process("ibv_import_mr")?;
        // SAFETY: the domain is allocated for as long as `self` lives; the kernel checks the
        // handle.
        let raw = unsafe { ffi::ibv_import_mr(self.as_raw(), handle.0) };
        let raw = cvt_ptr("ibv_import_mr", raw).map_err(|err| err.detail(format!("{handle:?}")))?;
        let pd = self.clone();
        Ok(ImportedRegion { raw, pd })
    }
}

impl ImportedRegion {
    /// The LKey, for requests of processes that share the device.
    pub fn lkey(&self) -> u32 {
        // SAFETY: the registration is imported (invariant), and its keys never change.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    /// The key for requests of peers.
    pub fn rkey(&self) -> u32 {
        // SAFETY: the registration is imported (invariant), and its keys never change.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    /// The domain.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }
}

impl fmt::Debug for ImportedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImportedRegion")
            .field("lkey", &self.lkey())
            .field("rkey", &self.rkey())
            .finish_non_exhaustive()
    }
}

impl Drop for ImportedRegion {
    fn drop(&mut self) {
        let _: i32 = self.pd.context().destroy(|| {
            // SAFETY: the registration was imported, and is unimported once, here; the domain is
            // allocated, since `self.pd` is dropped later.
            unsafe { ffi::ibv_unimport_mr(self.raw.as_ptr()) };
            0
        });
    }
}
