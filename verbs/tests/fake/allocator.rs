//! An allocator with minimal alignment, no more than requested, and with memory that is not zero, as the contract
//! allows.

use std::alloc::{GlobalAlloc, Layout, System};

pub(crate) struct Unaligned;

/// Maximum number of bytes filled: large memory is not touched.
const FILLED: usize = 1 << 16;

/// The layout of an allocation in which the wanted one begins at its alignment.
fn outer(layout: Layout) -> Option<Layout> {
    let (size, align) = (layout.size(), layout.align());
    Layout::from_size_align(size.checked_add(align)?, align.checked_mul(2)?).ok()
}

// SAFETY: each block is inside one of the system's, with a layout derived from the requested one.
unsafe impl GlobalAlloc for Unaligned {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(outer) = outer(layout) else {
            return std::ptr::null_mut();
        };
        // SAFETY: the size is not zero, since an alignment is not.
        let block = unsafe { System.alloc(outer) };
        if block.is_null() {
            return block;
        }
        // SAFETY: inside of the block.
        let memory = unsafe { block.add(layout.align()) };
        if !cfg!(miri) {
            // Miri finds reads of memory that was not written by itself.
            // SAFETY: as above, and not in use yet.
            unsafe { memory.write_bytes(0xa5, layout.size().min(FILLED)) };
        }
        memory
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if let Some(outer) = outer(layout) {
            // SAFETY: `alloc` has added as much.
            let block = unsafe { block.sub(layout.align()) };
            // SAFETY: allocated with this layout.
            unsafe { System.dealloc(block, outer) };
        }
    }
}
