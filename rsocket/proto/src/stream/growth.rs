//! Growth of buffers that limit the throughput.

/// Number of stalls before a buffer grows. Programs with little data never reach this number.
const GROW_THRESHOLD: u8 = 8;

/// Growth state of a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    /// Target size, while growth is possible.
    to: Option<u32>,
    /// Number of stalls caused by the buffer.
    stalls: u8,
}

impl Growth {
    /// Creates the state of a buffer of `size` bytes with the maximum size `to`.
    pub(super) fn new(size: u32, to: u32) -> Self {
        Self {
            to: Some(to).filter(|&to| to > size),
            stalls: 0,
        }
    }

    /// Counts a stall caused by the buffer.
    pub(super) fn count_stall(&mut self) {
        self.stalls = self.stalls.saturating_add(1);
    }

    /// Returns the new size, once the buffer should grow.
    pub(super) fn wanted(&self) -> Option<u32> {
        self.to.filter(|_| self.stalls >= GROW_THRESHOLD)
    }

    /// Ends the growth: the buffer has grown, or cannot grow.
    pub(super) fn end(&mut self) {
        self.to = None;
    }
}
