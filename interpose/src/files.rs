//! What programs do with all descriptors.

use libc::{c_int, c_long};

use crate::{last_errno, real, set_errno};

/// What a library knows of the program's descriptors.
pub trait Descriptors {
    /// What a descriptor was, which is dropped when the descriptor is closed.
    type Forgotten;

    /// Forgets what a descriptor was.
    fn forget(fd: c_int) -> Self::Forgotten;

    /// `new` is another duplicate of `old` from now on, whatever it was before.
    fn follow(old: c_int, new: c_int);

    /// `F_GETFL` or `F_SETFL` of a descriptor that is the library's.
    fn status_flags(fd: c_int, cmd: c_int, arg: c_long) -> Option<c_int>;
}

type Fcntl = unsafe extern "C" fn(c_int, c_int, ...) -> c_int;

/// Another descriptor of the same; negative if there is none, with `errno` set.
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
/// As for the function of the same name.
pub unsafe fn close<D: Descriptors>(fd: c_int) -> c_int {
    let forgotten = D::forget(fd);
    let real = real!(close: unsafe extern "C" fn(c_int) -> c_int);
    // SAFETY: as the caller promises.
    let closed = unsafe { real(fd) };
    let error = last_errno();
    // What takes a while comes when nothing tells of the descriptor any more.
    drop(forgotten);
    set_errno(error);
    closed
}

/// # Safety
/// As for the function of the same name.
pub unsafe fn dup<D: Descriptors>(fd: c_int) -> c_int {
    let real = real!(dup: unsafe extern "C" fn(c_int) -> c_int);
    // SAFETY: as the caller promises.
    follow::<D>(fd, unsafe { real(fd) })
}

/// # Safety
/// As for the function of the same name.
pub unsafe fn dup2<D: Descriptors>(old: c_int, new: c_int) -> c_int {
    let real = real!(dup2: unsafe extern "C" fn(c_int, c_int) -> c_int);
    // SAFETY: as the caller promises.
    follow::<D>(old, unsafe { real(old, new) })
}

/// # Safety
/// As for the function of the same name.
pub unsafe fn dup3<D: Descriptors>(old: c_int, new: c_int, flags: c_int) -> c_int {
    let real = real!(dup3: unsafe extern "C" fn(c_int, c_int, c_int) -> c_int);
    // SAFETY: as the caller promises.
    follow::<D>(old, unsafe { real(old, new, flags) })
}

/// In C, the argument is variable. All that there are fit into a `long`, and are passed as one.
///
/// # Safety
/// As for the function of the same name.
pub unsafe fn fcntl<D: Descriptors>(fd: c_int, cmd: c_int, arg: c_long) -> c_int {
    let real = real!(fcntl: Fcntl);
    let done = match cmd {
        libc::F_GETFL | libc::F_SETFL => D::status_flags(fd, cmd, arg),
        _ => None,
    };
    if let Some(done) = done {
        return done;
    }
    // SAFETY: as the caller promises.
    let done = unsafe { real(fd, cmd, arg) };
    match cmd {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => follow::<D>(fd, done),
        _ => done,
    }
}

/// Puts functions in the place of those that close and duplicate descriptors, or change how they
/// wait, for the [`Descriptors`] of a library.
#[macro_export]
macro_rules! descriptors {
    ($known:ty) => {
        $crate::descriptors! {
            $known:
            close(fd: c_int);
            dup(fd: c_int);
            dup2(old: c_int, new: c_int);
            dup3(old: c_int, new: c_int, flags: c_int);
            fcntl(fd: c_int, cmd: c_int, arg: c_long);
        }

        /// # Safety
        /// As for the function of the same name.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn fcntl64(
            fd: $crate::libc::c_int,
            cmd: $crate::libc::c_int,
            arg: $crate::libc::c_long,
        ) -> $crate::libc::c_int {
            // SAFETY: as the caller promises.
            unsafe { fcntl(fd, cmd, arg) }
        }
    };
    ($known:ty: $($name:ident($($arg:ident: $type:ident),*);)*) => {
        $(
            /// # Safety
            /// As for the function of the same name.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($arg: $crate::libc::$type),*) -> $crate::libc::c_int {
                // SAFETY: as the caller promises.
                unsafe { $crate::files::$name::<$known>($($arg),*) }
            }
        )*
    };
}
