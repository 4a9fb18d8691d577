//! Growth of buffers that limit the throughput.

/// Number of stalls before a buffer grows beyond its size in use. Programs with little data never reach this number.
const GROW_THRESHOLD: u8 = 8;

/// Growth state of a buffer: small while idle, of the size in use from the first stall on, then of the maximum size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    size: u32,
    in_use: u32,
    max: u32,
    /// Number of stalls caused by the buffer since it has this size, or since it could not grow.
    stalls: u8,
}

impl Growth {
    /// Creates the state of a buffer of `size` bytes.
    pub(super) fn new(size: u32, in_use: u32, max: u32) -> Self {
        Self {
            size,
            in_use,
            max,
            stalls: 0,
        }
    }

    /// Whether the buffer is smaller than one in use.
    pub(super) fn is_small(&self) -> bool {
        self.size < self.in_use
    }

    /// Counts a stall caused by the buffer.
    pub(super) fn count_stall(&mut self) {
        self.stalls = self.stalls.saturating_add(1);
    }

    /// Returns the new size, once the buffer should grow.
    pub(super) fn requested_size(&self) -> Option<u32> {
        let (larger, threshold) = if self.is_small() {
            (self.in_use, 1)
        } else {
            (self.max, GROW_THRESHOLD)
        };
        (larger > self.size && self.stalls >= threshold).then_some(larger)
    }

    /// Records that the buffer has grown to `size` bytes.
    pub(super) fn grown(&mut self, size: u32) {
        self.size = size;
        self.stalls = 0;
    }

    /// Records that the buffer could not grow. The next attempt follows as many further stalls.
    pub(super) fn refused(&mut self) {
        self.stalls = 0;
    }
}
