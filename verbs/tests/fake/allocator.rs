//! An allocator with minimal alignment: no more than requested, as the contract allows.

use std::alloc::{GlobalAlloc, Layout, System};

pub(crate) struct Unaligned;

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
        unsafe { block.add(layout.align()) }
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
