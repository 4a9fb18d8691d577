//! Paths of the device's files, and the folder to which they lead.

use std::{
    ffi::{CStr, c_char},
    sync::OnceLock,
};

/// Variable with the folder.
const FILES: &CStr = c"SOFTNIC_FILES";

/// Beginnings of paths: `/sys/class/infiniband`, `/sys/class/infiniband_verbs` and others.
const PREFIXES: [&[u8]; 2] = [b"/sys/class/infiniband", b"/dev/infiniband"];

/// Bytes of a redirected path with its end.
const MAX_PATH: usize = 4096;

/// Bytes of the folder's path.
const MAX_FOLDER: usize = 256;

/// The folder's path, without its end.
#[derive(Clone, Copy)]
struct Folder {
    bytes: [u8; MAX_FOLDER],
    len: usize,
}

/// The folder, as it is at the start: a program may change its environment, and write over it.
static FOLDER: OnceLock<Option<Folder>> = OnceLock::new();

impl Folder {
    fn of_environment() -> Option<Self> {
        // SAFETY: a terminated string. As for a program in C, no other thread changes the environment meanwhile.
        let value = unsafe { libc::getenv(FILES.as_ptr()) };
        if value.is_null() {
            return None;
        }
        let mut bytes = [0; MAX_FOLDER];
        for (len, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: no byte before this one is the end of the string.
            *byte = unsafe { byte_at(value, len) };
            if *byte == 0 {
                return (len > 0).then_some(Self { bytes, len });
            }
        }
        None
    }

    /// Before the start of this library, the environment is read by each call.
    fn get() -> Option<Self> {
        FOLDER.get().copied().unwrap_or_else(Self::of_environment)
    }

    fn path(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

extern "C" fn start() {
    let _again = FOLDER.set(Folder::of_environment());
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// A byte of a string.
///
/// # Safety
/// - No byte before this one is the string's end.
unsafe fn byte_at(text: *const c_char, index: usize) -> u8 {
    // SAFETY: at most the string's end.
    let byte = unsafe { text.add(index) };
    // SAFETY: a byte of the string.
    unsafe { *byte }.to_ne_bytes()[0]
}

/// Whether a string begins with these bytes.
///
/// # Safety
/// - `text` is a terminated string.
unsafe fn begins_with(text: *const c_char, bytes: &[u8]) -> bool {
    let mut bytes = bytes.iter().enumerate();
    // SAFETY: all bytes before are equal to those of `bytes`, none of which is zero.
    bytes.all(|(index, byte)| unsafe { byte_at(text, index) } == *byte)
}

/// Whether a path is of a device's file.
///
/// # Safety
/// - `path` is null or a terminated string.
pub(super) unsafe fn is_of_device(path: *const c_char) -> bool {
    // SAFETY: a terminated string.
    !path.is_null()
        && PREFIXES
            .iter()
            .any(|prefix| unsafe { begins_with(path, prefix) })
}

/// Calls `act` with the path in the folder, or with the same path without a folder, or if it is too long. Leaves `errno` to
/// `act`.
///
/// # Safety
/// - `path` is a terminated string.
#[cold]
#[inline(never)]
pub(super) unsafe fn redirected<R>(path: *const c_char, act: impl FnOnce(*const c_char) -> R) -> R {
    let Some(folder) = Folder::get() else {
        return act(path);
    };
    let mut buffer = [0; MAX_PATH];
    let (start, rest) = buffer.split_at_mut(folder.len);
    start.copy_from_slice(folder.path());
    for (index, to) in rest.iter_mut().enumerate() {
        // SAFETY: no byte before this one is the end of the string.
        *to = unsafe { byte_at(path, index) };
        if *to == 0 {
            return act(buffer.as_ptr().cast());
        }
    }
    act(path)
}

/// Removes the folder from the beginning of a path.
///
/// # Safety
/// - `path` is null or a terminated string that may be changed.
pub(super) unsafe fn restore(path: *mut c_char) {
    let Some(folder) = Folder::get() else {
        return;
    };
    // SAFETY: a terminated string.
    if path.is_null() || !unsafe { begins_with(path, folder.path()) } {
        return;
    }
    // SAFETY: the string is at least as long as the folder's path.
    let rest = unsafe { path.add(folder.len) };
    // SAFETY: a terminated string.
    let len = unsafe { libc::strlen(rest) };
    // SAFETY: the rest of the string with its end, to the beginning of the same string.
    unsafe { path.copy_from(rest, len + 1) };
}
