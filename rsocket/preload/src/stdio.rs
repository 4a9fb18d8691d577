//! `FILE` streams on rsockets.
//!
//! The C library reads and writes a `FILE` through internal system calls, invisible to this library. A `FILE`
//! on an rsocket therefore gets functions of this library.

use std::{
    collections::BTreeMap,
    ptr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use interpose::{real, set_errno};
use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};

use crate::fork;

/// Descriptors of open streams by address: for the C library, such a stream has no descriptor.
static OPEN: Mutex<BTreeMap<usize, c_int>> = Mutex::new(BTreeMap::new());

/// Number of entries in [`OPEN`]. No lock is taken while 0.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn open_files() -> MutexGuard<'static, BTreeMap<usize, c_int>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `cookie_io_functions_t` of `<stdio.h>`.
#[repr(C)]
struct Functions {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C-unwind" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    fn ftrylockfile(file: *mut FILE) -> c_int;
    fn fflush_unlocked(file: *mut FILE) -> c_int;
    fn funlockfile(file: *mut FILE);
}

/// Converts a cookie to a descriptor.
fn descriptor(cookie: *mut c_void) -> c_int {
    c_int::try_from(cookie.addr()).unwrap_or(-1)
}

/// # Safety
/// `len` bytes of `buf` are writable.
unsafe extern "C-unwind" fn read_file(
    cookie: *mut c_void,
    buf: *mut c_char,
    len: size_t,
) -> ssize_t {
    // SAFETY: as the caller promises.
    unsafe { libc::read(descriptor(cookie), buf.cast(), len) }
}

/// Writes all bytes: the C library treats a short write as an error and does not retry.
///
/// # Safety
/// `len` bytes of `buf` are readable.
unsafe extern "C-unwind" fn write_file(
    cookie: *mut c_void,
    buf: *const c_char,
    len: size_t,
) -> ssize_t {
    let mut done = 0;
    while done < len {
        // SAFETY: within the bytes promised by the caller.
        let rest = unsafe { buf.add(done) };
        // SAFETY: `len - done` bytes are left.
        let written = unsafe { libc::write(descriptor(cookie), rest.cast(), len - done) };
        match usize::try_from(written) {
            Ok(written @ 1..) => done += written,
            _ => break,
        }
    }
    ssize_t::try_from(done).unwrap_or(0)
}

/// Fails with `ESPIPE`, expected by the C library: sockets have no position.
///
/// # Safety
/// No requirements: the arguments are not used.
unsafe extern "C-unwind" fn seek_file(_: *mut c_void, _: *mut off64_t, _: c_int) -> c_int {
    set_errno(libc::ESPIPE);
    -1
}

/// # Safety
/// The program has closed the file.
unsafe extern "C-unwind" fn close_file(cookie: *mut c_void) -> c_int {
    let fd = descriptor(cookie);
    let mut open = open_files();
    open.retain(|_, cookie_fd| *cookie_fd != fd);
    COUNT.store(open.len(), SeqCst);
    drop(open);
    // SAFETY: the closed stream owned the descriptor.
    unsafe { libc::close(fd) }
}

const FUNCTIONS: Functions = Functions {
    read: read_file,
    write: write_file,
    seek: seek_file,
    close: close_file,
};

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    let cookie = usize::try_from(fd).ok().map(ptr::without_provenance_mut);
    let Some(cookie) = cookie.filter(|_| fork::is_own(fd)) else {
        let real = real!(fdopen: unsafe extern "C-unwind" fn(c_int, *const c_char) -> *mut FILE);
        // SAFETY: as the caller promises.
        return unsafe { real(fd, mode) };
    };
    // SAFETY: the mode is a string, as the caller promises. Assumption: `fopencookie` passes the cookie to its functions
    // unchanged.
    let file = unsafe { fopencookie(cookie, mode, FUNCTIONS) };
    if !file.is_null() {
        let mut open = open_files();
        open.insert(file.expose_provenance(), fd);
        COUNT.store(open.len(), SeqCst);
    }
    file
}

/// The C library passes a `va_list` by its address on all supported architectures.
///
/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn vdprintf(
    fd: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    let cookie = usize::try_from(fd).ok().map(ptr::without_provenance_mut);
    let Some(cookie) = cookie.filter(|_| fork::is_own(fd)) else {
        let real = real!(
            vdprintf: unsafe extern "C-unwind" fn(c_int, *const c_char, *mut c_void) -> c_int
        );
        // SAFETY: as the caller promises.
        return unsafe { real(fd, format, arguments) };
    };
    let mut text = ptr::null_mut();
    // SAFETY: as the caller promises; the text is a local variable.
    let len = unsafe { vasprintf(&raw mut text, format, arguments) };
    let Ok(len_of_text) = usize::try_from(len) else {
        return -1;
    };
    // SAFETY: the text has this length.
    let written = unsafe { write_file(cookie, text, len_of_text) };
    // SAFETY: allocated by `vasprintf`, and not used any more.
    unsafe { libc::free(text.cast()) };
    if written.unsigned_abs() == len_of_text {
        len
    } else {
        -1
    }
}

/// # Safety
/// As for `vdprintf`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __vdprintf_chk(
    fd: c_int,
    _flag: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { vdprintf(fd, format, arguments) }
}

/// Writes the buffered data of all open streams, except those in use by another thread.
pub(crate) fn flush_all() {
    // Held meanwhile, so that no other thread closes a stream. The writing functions do not use it.
    let Ok(open) = OPEN.try_lock() else { return };
    for address in open.keys() {
        let file: *mut FILE = ptr::with_exposed_provenance_mut(*address);
        // SAFETY: open, as in the map.
        if unsafe { ftrylockfile(file) } != 0 {
            continue;
        }
        // SAFETY: open, and locked by this thread.
        unsafe { fflush_unlocked(file) };
        // SAFETY: open, and locked by this thread.
        unsafe { funlockfile(file) };
    }
}

/// # Safety
/// As for the function of the same name.
unsafe fn reopen(
    real: Freopen,
    path: *const c_char,
    mode: *const c_char,
    file: *mut FILE,
) -> *mut FILE {
    if let Some(fd) = known_fileno(file) {
        // The C library crashes, as for any stream with functions. As there, a failure closes the stream.
        // SAFETY: open, as in the map.
        unsafe { libc::fflush(file) };
        // SAFETY: the stream owns the descriptor, and ends here.
        unsafe { close_file(ptr::without_provenance_mut(fd.unsigned_abs() as usize)) };
        set_errno(libc::EOPNOTSUPP);
        return ptr::null_mut();
    }
    // SAFETY: as the caller promises.
    unsafe { real(path, mode, file) }
}

type Freopen = unsafe extern "C-unwind" fn(*const c_char, *const c_char, *mut FILE) -> *mut FILE;

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    file: *mut FILE,
) -> *mut FILE {
    // SAFETY: as the caller promises.
    unsafe { reopen(real!(freopen: Freopen), path, mode, file) }
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    file: *mut FILE,
) -> *mut FILE {
    // SAFETY: as the caller promises.
    unsafe { reopen(real!(freopen64: Freopen), path, mode, file) }
}

fn known_fileno(file: *mut FILE) -> Option<c_int> {
    if COUNT.load(SeqCst) == 0 {
        return None;
    }
    open_files().get(&file.addr()).copied()
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fileno(file: *mut FILE) -> c_int {
    known_fileno(file).unwrap_or_else(|| {
        let real = real!(fileno: unsafe extern "C-unwind" fn(*mut FILE) -> c_int);
        // SAFETY: as the caller promises.
        unsafe { real(file) }
    })
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fileno_unlocked(file: *mut FILE) -> c_int {
    known_fileno(file).unwrap_or_else(|| {
        let real = real!(fileno_unlocked: unsafe extern "C-unwind" fn(*mut FILE) -> c_int);
        // SAFETY: as the caller promises.
        unsafe { real(file) }
    })
}
