//! Interposed functions for any file descriptor.

use libc::{c_int, c_long};

use crate::{border::is_of_library, cross, last_errno, real, set_errno};

/// Descriptors of the program known to a library.
pub trait Descriptors {
    /// Entry of a closed descriptor, dropped after the descriptor is closed.
    type Forgotten;

    /// Removes the entry of a descriptor.
    fn forget(fd: c_int) -> Self::Forgotten;

    /// Makes `new` a duplicate of `old`, replacing its entry.
    fn follow(old: c_int, new: c_int);

    /// Whether a call may concern a descriptor of the library.
    fn may_have(fd: c_int) -> bool;

    /// Whether a descriptor is one of the library's own, which the program does not have.
    fn is_internal(fd: c_int) -> bool;

    /// Runs `F_GETFL` or `F_SETFL` on a descriptor of the library.
    fn status_flags(fd: c_int, cmd: c_int, arg: c_long) -> Option<c_int>;
}

type Fcntl = unsafe extern "C" fn(c_int, c_int, ...) -> c_int;

/// Duplicates a descriptor. Returns a negative number and sets `errno` on failure.
#[must_use]
pub fn duplicate(fd: c_int, close_on_exec: bool) -> c_int {
    let real = real!(fcntl: Fcntl);
    let cmd = if close_on_exec {
        libc::F_DUPFD_CLOEXEC
    } else {
        libc::F_DUPFD
    };
    // SAFETY: the argument of this command is an `int`.
    unsafe { real(fd, cmd, 0 as c_int) }
}

fn follow<D: Descriptors>(old: c_int, new: c_int) -> c_int {
    if new >= 0 && new != old {
        D::follow(old, new);
    }
    new
}

/// # Safety
/// As for the libc function.
pub unsafe fn close<D: Descriptors>(fd: c_int) -> c_int {
    let real = real!(close: unsafe extern "C-unwind" fn(c_int) -> c_int);
    if refuses::<D>(fd) {
        // As if no library had it.
        set_errno(libc::EBADF);
        return -1;
    }
    if !D::may_have(fd) {
        // SAFETY: guaranteed by the caller.
        return unsafe { real(fd) };
    }
    let closed = cross(false, false, || {
        let forgotten = D::forget(fd);
        // SAFETY: guaranteed by the caller.
        let closed = unsafe { real(fd) };
        let error = last_errno();
        // Dropping a socket may block, so the entry is removed before.
        drop(forgotten);
        set_errno(error);
        Some(closed)
    });
    closed.unwrap_or(-1)
}

/// Whether a descriptor is one of the device library, by its name for the kernel: of a device, or of a channel of libibverbs,
/// `anon_inode:[infinibandevent]`.
#[must_use]
pub fn is_of_device(fd: c_int) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    let link = link.to_string_lossy();
    ["/dev/infiniband/", "anon_inode:[infiniband"]
        .iter()
        .any(|prefix| link.starts_with(prefix))
}

/// Whether a descriptor is one of these crates, or made for them by libibverbs or librdmacm.
#[must_use]
pub fn is_internal(fd: c_int) -> bool {
    verbs::fd::is_internal(fd) || verbs::fd::was_made_by_c(fd) && is_of_device(fd)
}

/// Whether a call of the program would close a descriptor of the library.
fn refuses<D: Descriptors>(fd: c_int) -> bool {
    D::is_internal(fd) && !is_of_library()
}

/// Duplicates a descriptor by `make`, to `to` if known.
fn duplicating<D: Descriptors>(old: c_int, to: Option<c_int>, make: impl Fn() -> c_int) -> c_int {
    if to.is_some_and(refuses::<D>) {
        // As beside another thread that opens a file at this number.
        set_errno(libc::EBUSY);
        return -1;
    }
    if !D::may_have(old) && !to.is_some_and(D::may_have) {
        return follow::<D>(old, make());
    }
    let new = cross(false, false, || Some(follow::<D>(old, make())));
    new.unwrap_or(-1)
}

/// # Safety
/// As for the libc function.
pub unsafe fn dup<D: Descriptors>(fd: c_int) -> c_int {
    let real = real!(dup: unsafe extern "C" fn(c_int) -> c_int);
    // SAFETY: guaranteed by the caller.
    duplicating::<D>(fd, None, || unsafe { real(fd) })
}

/// # Safety
/// As for the libc function.
pub unsafe fn dup2<D: Descriptors>(old: c_int, new: c_int) -> c_int {
    let real = real!(dup2: unsafe extern "C" fn(c_int, c_int) -> c_int);
    // SAFETY: guaranteed by the caller.
    duplicating::<D>(old, Some(new), || unsafe { real(old, new) })
}

/// # Safety
/// As for the libc function.
pub unsafe fn dup3<D: Descriptors>(old: c_int, new: c_int, flags: c_int) -> c_int {
    let real = real!(dup3: unsafe extern "C" fn(c_int, c_int, c_int) -> c_int);
    // SAFETY: guaranteed by the caller.
    duplicating::<D>(old, Some(new), || unsafe { real(old, new, flags) })
}

/// The argument is variable in C. Every argument type fits into a `long`, and is passed as one.
///
/// # Safety
/// As for the libc function.
pub unsafe fn fcntl<D: Descriptors>(fd: c_int, cmd: c_int, arg: c_long) -> c_int {
    // A wait for a lock of a file is a cancellation point.
    let real = real!(fcntl: unsafe extern "C-unwind" fn(c_int, c_int, ...) -> c_int);
    let is_duplicating = matches!(cmd, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
    let call = || {
        // SAFETY: guaranteed by the caller.
        let done = unsafe { real(fd, cmd, arg) };
        if is_duplicating {
            follow::<D>(fd, done)
        } else {
            done
        }
    };
    if !D::may_have(fd) {
        return call();
    }
    let done = cross(false, false, || {
        let done = match cmd {
            libc::F_GETFL | libc::F_SETFL => D::status_flags(fd, cmd, arg),
            _ => None,
        };
        Some(done.unwrap_or_else(call))
    });
    done.unwrap_or(-1)
}

/// Exports functions to close and duplicate descriptors and change their flags, for the
/// [`Descriptors`] of a library.
#[macro_export]
macro_rules! descriptors {
    ($family:ty) => {
        $crate::descriptors! {
            $family:
            close(fd: c_int);
            dup(fd: c_int);
            dup2(old: c_int, new: c_int);
            dup3(old: c_int, new: c_int, flags: c_int);
            fcntl(fd: c_int, cmd: c_int, arg: c_long);
        }

        /// # Safety
        /// As for the libc function.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn fcntl64(
            fd: $crate::libc::c_int,
            cmd: $crate::libc::c_int,
            arg: $crate::libc::c_long,
        ) -> $crate::libc::c_int {
            // SAFETY: guaranteed by the caller.
            unsafe { fcntl(fd, cmd, arg) }
        }
    };
    ($family:ty: $($name:ident($($arg:ident: $type:ident),*);)*) => {
        $(
            /// # Safety
            /// As for the libc function.
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($arg: $crate::libc::$type),*) -> $crate::libc::c_int {
                // SAFETY: guaranteed by the caller.
                unsafe { $crate::files::$name::<$family>($($arg),*) }
            }
        )*
    };
}
