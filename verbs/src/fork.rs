//! Processes that have registered memory, and fork.

use ibverbs_sys as ffi;

use crate::{
    error::{Error, Result},
    named::named,
};

named! {
    /// `ibv_fork_status`—What happens to registered memory when the process forks.
    #[doc(alias = "ibv_fork_status")]
    ForkStatus(u32) {
        /// The device and the program may end up with different pages: see [`fork_init`].
        DISABLED = ffi::ibv_fork_status::IBV_FORK_DISABLED.0;
        /// Children do not have registered memory.
        ENABLED = ffi::ibv_fork_status::IBV_FORK_ENABLED.0;
        /// The kernel copies pinned pages for the child at once, so nothing happens to the parent's.
        UNNEEDED = ffi::ibv_fork_status::IBV_FORK_UNNEEDED.0;
    }
}

/// `ibv_fork_init()`—Lets the process fork, although it registers memory. Does not enter the kernel
/// for long.
///
/// After a fork, parent and child share pages until one of them writes. On older kernels, if the
/// parent writes first, *it* gets the copy, and the device goes on with the page that the child has:
/// what arrives is not seen, and what is sent is old. After this call, registered pages are not
/// inherited at all. A child that touches one dies of `SIGSEGV`, and also one that touches
/// something else on the same page: a [`Mapping`](crate::Mapping) shares pages with nothing.
///
/// A child that only calls `exec` needs none of this if its parent does not run meanwhile;
/// [`std::process::Command`] is such a case, mostly. See [`fork_status`] for whether the kernel
/// makes it unnecessary. A child cannot use any object of this crate that it has inherited.
///
/// Each registration costs another system call from then on. The environment variables
/// `RDMAV_FORK_SAFE` and `IBV_FORK_SAFE` have the same effect.
///
/// # Errors
/// - `EINVAL`: memory has been registered already.
/// - `ENOSYS`: the kernel cannot do it.
/// - `ENOMEM`: out of memory.
///
/// # Examples
/// ```
/// use verbs::ForkStatus;
/// if verbs::fork_status() != ForkStatus::UNNEEDED {
///     verbs::fork_init()?;
///     assert_eq!(verbs::fork_status(), ForkStatus::ENABLED);
/// }
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # References
/// [ibv_fork_init(3)](https://man7.org/linux/man-pages/man3/ibv_fork_init.3.html)
#[doc(alias = "ibv_fork_init")]
pub fn fork_init() -> Result<()> {
    // SAFETY: has no arguments, and is documented to be called at any time: it fails if that is too
    // late.
    match unsafe { ffi::ibv_fork_init() } {
        0 => Ok(()),
        errno => Err(Error::from_errno("ibv_fork_init", errno.saturating_abs())),
    }
}

/// `ibv_is_fork_initialized()`—What happens to registered memory when the process forks.
///
/// # References
/// [ibv_is_fork_initialized(3)](https://man7.org/linux/man-pages/man3/ibv_is_fork_initialized.3.html)
#[doc(alias = "ibv_is_fork_initialized")]
pub fn fork_status() -> ForkStatus {
    // SAFETY: has no arguments, and only reads.
    ForkStatus(unsafe { ffi::ibv_is_fork_initialized() }.0)
}
