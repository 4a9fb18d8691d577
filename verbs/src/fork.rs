//! `fork` in a process with registered memory: preparation, and its effect.
//!
//! # Inherited objects
//! A child inherits each object of this crate, with the descriptor of its device. The kernel's
//! object is the parent's, and a child opens a [`Context`](crate::Context) of its own:
//!
//! - A child that drops its copy makes no destroying call, so the parent's object stays. The copy
//!   is leaked, with the work in flight and the registered memory. A destroying call with a result,
//!   such as [`QueuePair::destroy`](crate::QueuePair::destroy), fails.
//! - Calls that create an object of an inherited one, that modify a queue pair, a shared receive
//!   queue or a completion queue, or that take an event, are refused with the kind
//!   [`Unsupported`](std::io::ErrorKind::Unsupported).
//! - Not checked: posting and polling, arming (`ibv_req_notify_cq`), windows bound by a request,
//!   queries, counters set or read, `ibv_set_ece`, `ibv_modify_qp_rate_limit`, `ibv_advise_mr`,
//!   the content of device memory, and calls on the C objects of `as_raw`. A child must not make
//!   these calls on an inherited object: they act on the parent's.
//!
//! # References
//! [ibv_fork_init(3)](https://man7.org/linux/man-pages/man3/ibv_fork_init.3.html),
//! [ibv_is_fork_initialized(3)](https://man7.org/linux/man-pages/man3/ibv_is_fork_initialized.3.html)

#[cfg(not(miri))]
use std::ptr;
use std::{
    process,
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
    /// `ibv_fork_status`—The effect of `fork` on registered memory.
    #[doc(alias = "ibv_fork_status")]
    ForkStatus(u32) {
        /// The device and the program may end up with different pages: see [`fork_init`].
        #[doc(alias = "IBV_FORK_DISABLED")]
        DISABLED = ffi::ibv_fork_status::IBV_FORK_DISABLED.0;
        /// Children do not have registered memory.
        #[doc(alias = "IBV_FORK_ENABLED")]
        ENABLED = ffi::ibv_fork_status::IBV_FORK_ENABLED.0;
        /// The kernel copies pinned pages for the child at once, so nothing happens to the parent's.
        #[doc(alias = "IBV_FORK_UNNEEDED")]
        UNNEEDED = ffi::ibv_fork_status::IBV_FORK_UNNEEDED.0;
    }
}

/// `ibv_fork_init()`—Makes `fork` safe in a process with registered memory. Enters the kernel only
/// briefly.
///
/// After a fork, parent and child share pages until one of them writes. On older kernels, if the
/// parent writes first, the *parent* gets the copy, and the device continues with the child's page:
/// received data stay invisible, and sent data are stale. After this call, registered pages are not
/// inherited at all. A child that accesses a registered page is killed by `SIGSEGV`, also for other
/// data on the page; a [`Mapping`](crate::mr::Mapping) shares its pages with no other data.
///
/// A child that only calls `exec` needs no such call if the parent does not run in the meantime, as
/// with [`std::process::Command`] in general. [`fork_status`] reports whether the kernel
/// makes the call unnecessary. A child cannot use any [inherited object](self#inherited-objects).
///
/// Cost: one more system call for each registration. The environment variables `RDMAV_FORK_SAFE`
/// and `IBV_FORK_SAFE` have the same effect.
///
/// # Errors
/// - `EINVAL`: memory has been registered already.
/// - `ENOSYS`: no support in the kernel.
/// - `ENOMEM`: out of memory.
///
/// # Examples
/// ```
/// use verbs::fork::ForkStatus;
/// if verbs::fork::fork_status() != ForkStatus::UNNEEDED {
///     verbs::fork::fork_init()?;
///     assert_eq!(verbs::fork::fork_status(), ForkStatus::ENABLED);
/// }
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # References
/// [ibv_fork_init(3)](https://man7.org/linux/man-pages/man3/ibv_fork_init.3.html)
#[doc(alias = "ibv_fork_init")]
pub fn fork_init() -> Result<()> {
    // SAFETY: has no arguments, and is documented as callable at any time: a call that is too late
    // fails.
    match unsafe { ffi::ibv_fork_init() } {
        0 => Ok(()),
        errno => Err(Error::from_errno("ibv_fork_init", errno.saturating_abs())),
    }
}

/// `ibv_is_fork_initialized()`—The effect of `fork` on registered memory.
///
/// # References
/// [ibv_is_fork_initialized(3)](https://man7.org/linux/man-pages/man3/ibv_is_fork_initialized.3.html)
#[doc(alias = "ibv_is_fork_initialized")]
pub fn fork_status() -> ForkStatus {
    // SAFETY: has no arguments, and only reads.
    ForkStatus(unsafe { ffi::ibv_is_fork_initialized() }.0)
}

/// The last process number given out in a family of forked processes. A child starts with the
/// parent's value.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The location of this process's number, if wiped on fork.
static OWN: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();

/// An identity of this process: a child's number differs from each ancestor's. An object that keeps
/// its creator's number can detect its inheritance by a fork.
///
/// Unlike [`std::process::id`], does not enter the kernel, except the first time. A child of
/// `vfork` shares the memory of its parent, and so the number too.
///
/// # Examples
/// ```
/// let made_by = verbs::fork::fork_generation();
/// // ...
/// assert_eq!(verbs::fork::fork_generation(), made_by, "only a child would have another");
/// ```
///
/// # References
/// [madvise(2)](https://man7.org/linux/man-pages/man2/madvise.2.html), `MADV_WIPEONFORK`: Linux
/// 4.14. On older kernels, the result is [`std::process::id`].
pub fn fork_generation() -> u64 {
    let Some(generation) = OWN.get_or_init(wiped_on_fork) else {
        return process::id().into();
    };
    match generation.load(Relaxed) {
        0 => {
            let next = LAST.fetch_add(1, Relaxed) + 1;
            match generation.compare_exchange(0, next, Relaxed, Relaxed) {
                Ok(_) => next,
                // Another thread was first.
                Err(number) => number,
            }
        }
        number => number,
    }
}

/// Memory that is zero here and reset to zero in each child; `None` without support in the kernel.
///
/// Under Miri, which has neither `madvise` nor `fork`, any memory is.
#[cfg(miri)]
fn wiped_on_fork() -> Option<&'static AtomicU64> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    Some(&NUMBER)
}

/// Memory that is zero here and reset to zero in each child; `None` without support in the kernel.
#[cfg(not(miri))]
fn wiped_on_fork() -> Option<&'static AtomicU64> {
    let len = size_of::<AtomicU64>();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: maps new memory, without touching existing mappings.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page has just been mapped, and its address is not shared yet. Only a child's copy
    // of the page is wiped.
    if unsafe { libc::madvise(at, len, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: the same page; nothing refers to the page.
        unsafe { libc::munmap(at, len) };
        return None;
    }
    // SAFETY: mapped for as long as the process lives, with the size and alignment of a page, all
    // zero (a valid value of the type), and used only through this reference.
    Some(unsafe { &*at.cast::<AtomicU64>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fork_generation_differs_in_each_child() {
        let parent = fork_generation();
        assert_eq!(fork_generation(), parent);
        // Whether the numbers are right is the status of the child.
        let status = in_a_child(|| {
            let child = fork_generation();
            let right = child != parent && child == fork_generation();
            let grandchild = in_a_child(|| {
                let number = fork_generation();
                number != parent && number != child
            });
            right && grandchild == 0
        });
        assert_eq!(status, 0);
        assert_eq!(fork_generation(), parent);
    }

    /// The child's exit status: 0 if the condition holds there.
    fn in_a_child(is_true: impl FnOnce() -> bool) -> i32 {
        // SAFETY: the child limits itself to operations allowed after a fork: reading and adding
        // numbers, forking, and waiting for its own child.
        match unsafe { libc::fork() } {
            0 => {
                let status = i32::from(!is_true());
                // SAFETY: `_exit` ends the child without running any other code of the program.
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
