//! Reads and writes through unaligned pointers of the program.
//!
//! The kernel accepts pointers of any alignment, and programs rely on this: Python's `fcntl.ioctl` passes integers at
//! odd addresses.

/// Reads the value at `at`; `None` if `at` is null.
///
/// # Safety
/// `at` is null, or the bytes of a `T` at `at` are readable. Any alignment is allowed.
#[must_use]
pub unsafe fn load<T: Copy>(at: *const T) -> Option<T> {
    // SAFETY: not null, and the caller promises the rest.
    (!at.is_null()).then(|| unsafe { at.read_unaligned() })
}

/// Writes a value to `at`, unless `at` is null.
///
/// # Safety
/// `at` is null, or the bytes of a `T` at `at` are writable. Any alignment is allowed.
pub unsafe fn store<T: Copy>(at: *mut T, value: T) {
    if !at.is_null() {
        // SAFETY: not null, and the caller promises the rest.
        unsafe { at.write_unaligned(value) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_at_an_odd_address_is_read_and_written() {
        let mut bytes = [0_u8; 9];
        for offset in 0..=5 {
            // SAFETY: within the bytes.
            let at: *mut u32 = unsafe { bytes.as_mut_ptr().add(offset) }.cast();
            // SAFETY: four bytes are left.
            unsafe { store(at, 0x0102_0304) };
            // SAFETY: as above.
            assert_eq!(unsafe { load(at) }, Some(0x0102_0304));
        }
        let none = std::ptr::null_mut::<u32>();
        // SAFETY: null.
        unsafe { store(none, 1) };
        // SAFETY: null.
        assert_eq!(unsafe { load(none) }, None);
    }
}
