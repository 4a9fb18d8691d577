//! A flow's attributes, followed by its specifications, in C's layout.

use std::mem::{MaybeUninit, size_of};

use ibverbs_sys as ffi;

const HEADER: usize = size_of::<ffi::ibv_flow_attr>();

/// The attributes, directly followed by the specifications, without gaps.
pub(super) struct Buffer {
    /// In words, for the attributes' alignment.
    // INVARIANT: at least `len` bytes.
    words: Vec<MaybeUninit<u64>>,
    len: usize,
    specs: usize,
}

impl Buffer {
    /// Room for the attributes, and no specifications.
    pub(super) fn new() -> Self {
        let mut buffer = Self {
            words: Vec::new(),
            len: 0,
            specs: 0,
        };
        buffer.extend(HEADER);
        buffer
    }

    /// Adds room for `bytes` bytes, and returns the address.
    fn extend(&mut self, bytes: usize) -> *mut u8 {
        let start = self.len;
        self.len += bytes;
        let words = self.len.div_ceil(size_of::<u64>());
        self.words.resize(words, MaybeUninit::zeroed());
        self.words.as_mut_ptr().cast::<u8>().wrapping_add(start)
    }

    /// Adds a specification, made by `spec` from its size.
    pub(super) fn push<S>(&mut self, spec: impl FnOnce(u16) -> S) {
        const { assert!(size_of::<S>() <= u8::MAX as usize) };
        // The largest one has 88 bytes.
        let size = u16::try_from(size_of::<S>()).unwrap_or(0);
        let to = self.extend(size_of::<S>()).cast::<S>();
        // SAFETY: `to` is inside the words, with room for an `S`, and not shared; alignment is not
        // needed.
        unsafe { to.write_unaligned(spec(size)) };
        self.specs += 1;
    }

    /// The number of specifications, and of all bytes.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.specs, self.len)
    }

    /// Writes the attributes, and returns the whole, for as long as the buffer is borrowed.
    pub(super) fn finish(&mut self, attr: ffi::ibv_flow_attr) -> *mut ffi::ibv_flow_attr {
        let start = self.words.as_mut_ptr().cast::<ffi::ibv_flow_attr>();
        // SAFETY: the words begin with room for the attributes, aligned as words are.
        unsafe { start.write(attr) };
        start
    }
}
