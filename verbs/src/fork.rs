//! Processes that have registered memory, and fork.

use std::{
    process, ptr,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

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

/// The number of the last process of those that have forked each other. A child begins with its parent's.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Where the number of this process is, if that is wiped when it forks.
static OWN: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();

/// Which process this is: a child has another number than each of its ancestors, so whoever keeps that
/// of the process that made something knows whether a fork has left it behind.
///
/// Unlike [`std::process::id`] it does not enter the kernel, except the first time. A child of `vfork`,
/// which has the memory of its parent, has its number too.
///
/// # Examples
/// ```
/// let made_by = verbs::fork_generation();
/// // ...
/// assert_eq!(verbs::fork_generation(), made_by, "only a child would have another");
/// ```
///
/// # References
/// [madvise(2)](https://man7.org/linux/man-pages/man2/madvise.2.html), `MADV_WIPEONFORK`: Linux 4.14. On
/// older kernels it is the number of [`std::process::id`].
pub fn fork_generation() -> u64 {
    let Some(own) = OWN.get_or_init(wiped_on_fork) else {
        return process::id().into();
    };
    match own.load(Relaxed) {
        0 => {
            let next = LAST.fetch_add(1, Relaxed) + 1;
            match own.compare_exchange(0, next, Relaxed, Relaxed) {
                Ok(_) => next,
                // Another thread was first.
                Err(number) => number,
            }
        }
        number => number,
    }
}

/// Memory that is zero, and is so again in each child; `None` if the kernel has none.
fn wiped_on_fork() -> Option<&'static AtomicU64> {
    let len = size_of::<AtomicU64>();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: asks for new memory, and so touches none that is there.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: this is the page that has just been mapped, which nobody else knows of. What becomes zero
    // does so in a child, where it is memory of its own.
    if unsafe { libc::madvise(at, len, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: the same page; nothing refers to it.
        unsafe { libc::munmap(at, len) };
        return None;
    }
    // SAFETY: it is mapped for as long as the process lives, as long as a page and aligned as one, all
    // zero, which is a value of that type, and only used by this reference.
    Some(unsafe { &*at.cast::<AtomicU64>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_a_number_of_its_own_and_so_has_its_child() {
        let own = fork_generation();
        assert_eq!(fork_generation(), own);
        // Whether the numbers are right is the status of the child.
        let status = in_a_child(|| {
            let child = fork_generation();
            let right = child != own && child == fork_generation();
            let grandchild = in_a_child(|| {
                let number = fork_generation();
                number != own && number != child
            });
            right && grandchild == 0
        });
        assert_eq!(status, 0);
        assert_eq!(fork_generation(), own);
    }

    /// What the child's exit says: 0 if it finds that something is true.
    fn in_a_child(is_true: impl FnOnce() -> bool) -> i32 {
        // SAFETY: the child only does what is allowed after a fork, reading and adding numbers, and forking.
        match unsafe { libc::fork() } {
            0 => {
                let status = i32::from(!is_true());
                // SAFETY: ends the child, whatever there is.
                unsafe { libc::_exit(status) }
            }
            child => {
                let mut status = -1;
                // SAFETY: `status` is there to be written.
                let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
                assert_eq!(waited, child);
                status
            }
        }
    }
}
