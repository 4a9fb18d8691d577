//! Files of sysfs, and other questions about the machine.

use std::{
    ffi::{CStr, OsStr, c_char, c_int, c_void},
    fs::File,
    io::Read,
    os::unix::ffi::OsStrExt,
    path::Path,
};

use crate::set_errno;

/// `ibv_gid_type` of `RoCEv2` GIDs in the function for providers.
const ROCE_V2: c_int = 1;

#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads the start of a file, without the newline at the end.
fn read(path: &Path, buffer: &mut [u8]) -> Option<usize> {
    let mut len = File::open(path).ok()?.read(buffer).ok()?;
    if let Some(b'\n') = buffer.get(..len)?.last() {
        len -= 1;
    }
    if let Some(end) = buffer.get_mut(len) {
        *end = 0;
    }
    Some(len)
}

/// Reads a file in a folder of sysfs. In programs of `softnic run`, the device has files there.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: a terminated string of the caller.
    let folder = unsafe { CStr::from_ptr(folder) };
    // SAFETY: a terminated string of the caller.
    let file = unsafe { CStr::from_ptr(file) };
    let path = Path::new(OsStr::from_bytes(folder.to_bytes()));
    let path = path.join(OsStr::from_bytes(file.to_bytes()));
    // SAFETY: the caller's buffer of this size.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), size) };
    let len = read(&path, buffer).and_then(|len| c_int::try_from(len).ok());
    len.unwrap_or(-1)
}

/// Fails: a function for providers, whose format and further arguments are C's. The caller removes them.
#[unsafe(no_mangle)]
extern "C" fn ibv_read_ibdev_sysfs_file(
    _buffer: *mut c_char,
    _size: usize,
    _device: *mut c_void,
    _format: *const c_char,
) -> c_int {
    set_errno(libc::ENOENT);
    -1
}

/// All GIDs are those of `RoCEv2`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    _ctx: *mut c_void,
    _port: u8,
    _index: u32,
    out: *mut c_int,
) -> c_int {
    // SAFETY: the caller's place.
    unsafe { *out = ROCE_V2 };
    0
}

/// Succeeds without effect: the engine copies with the processor, so a child may have copies of the pages.
#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_start: *mut c_void, _len: usize) -> c_int {
    0
}

/// Succeeds without effect, as [`ibv_dontfork_range`].
#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_start: *mut c_void, _len: usize) -> c_int {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_read_without_its_newline_and_cut_to_the_buffer() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("name"), "softnic0\n").unwrap();
        let mut path = folder.path().as_os_str().as_bytes().to_vec();
        path.push(0);
        let read = |size: usize| {
            let mut buffer = vec![b'x'; size];
            // SAFETY: terminated strings, and a buffer of this size.
            let len = unsafe {
                ibv_read_sysfs_file(
                    path.as_ptr().cast(),
                    c"name".as_ptr(),
                    buffer.as_mut_ptr().cast(),
                    size,
                )
            };
            (len, buffer)
        };
        assert_eq!(read(10), (8, b"softnic0\0x".to_vec()));
        assert_eq!(read(4), (4, b"soft".to_vec()));
        path.splice(path.len() - 1.., *b"/none\0");
        // SAFETY: as above.
        let absent = unsafe {
            ibv_read_sysfs_file(
                path.as_ptr().cast(),
                c"x".as_ptr(),
                std::ptr::null_mut::<c_char>().wrapping_add(8),
                0,
            )
        };
        assert_eq!(absent, -1);
    }
}
