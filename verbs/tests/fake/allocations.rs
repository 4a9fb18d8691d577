//! Counts allocations of each thread.

use std::{
    alloc::{GlobalAlloc, Layout},
    cell::Cell,
};

use crate::allocator::Unaligned;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

fn count(size: usize) {
    // Allocations of an exiting thread are not counted.
    let _: Result<(), _> = COUNT.try_with(|count| count.set(count.get() + 1));
    let _: Result<(), _> = BYTES.try_with(|bytes| bytes.set(bytes.get() + size));
}

// SAFETY: every call is passed on to another allocator, unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise.
        unsafe { Unaligned.alloc(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller's promise.
        unsafe { Unaligned.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { Unaligned.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often this thread allocates in `work`.
pub(crate) fn allocations(work: impl FnOnce()) -> usize {
    let before = COUNT.get();
    work();
    COUNT.get() - before
}

/// Number of bytes allocated by this thread in `work`, freed ones among them.
pub(crate) fn allocated_bytes(work: impl FnOnce()) -> usize {
    let before = BYTES.get();
    work();
    BYTES.get() - before
}

#[test]
fn allocation_counter_counts_each_allocation() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(7)))), 1);
    assert_eq!(allocations(|| ()), 0);
    let bytes = allocated_bytes(|| drop(std::hint::black_box(Box::new(7_u64))));
    assert_eq!(bytes, 8);
}
