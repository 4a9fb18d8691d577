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

    /// The processor ends a program that reads or writes such a value as an aligned one.
    #[cfg(target_arch = "x86_64")]
    fn wide_value_at_an_odd_address() {
        let source: [u8; 48] = std::array::from_fn(|i| u8::try_from(i).unwrap_or(0));
        let mut target = [0_u8; 48];
        for offset in 0..32 {
            let at: *const std::arch::x86_64::__m128i = source[offset..].as_ptr().cast();
            // SAFETY: sixteen bytes are left.
            let value = unsafe { load(at) }.unwrap();
            let to = target[offset..].as_mut_ptr().cast();
            // SAFETY: sixteen bytes are left.
            unsafe { store(to, value) };
            assert_eq!(target[offset..][..16], source[offset..][..16]);
        }
    }

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
        #[cfg(target_arch = "x86_64")]
        wide_value_at_an_odd_address();
        let none = std::ptr::null_mut::<u32>();
        // SAFETY: null.
        unsafe { store(none, 1) };
        // SAFETY: null.
        assert_eq!(unsafe { load(none) }, None);
    }
}
