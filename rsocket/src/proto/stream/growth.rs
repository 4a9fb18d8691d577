//! Buffers that become larger where they hold up who would do more.

/// So often a buffer holds somebody up before it grows: who has little to say never waits that often.
const TIMES: u8 = 8;

/// Whether a buffer is to become larger.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    /// How large, as long as it may.
    to: Option<u32>,
    /// How often it has held somebody up.
    times: u8,
}

impl Growth {
    /// Of a buffer of `size` bytes that may become one of `to`.
    pub(super) fn new(size: u32, to: u32) -> Self {
        Self {
            to: Some(to).filter(|&to| to > size),
            times: 0,
        }
    }

    /// The buffer has been too small for once.
    pub(super) fn held_up(&mut self) {
        self.times = self.times.saturating_add(1);
    }

    /// The size that the buffer is to have.
    pub(super) fn wanted(&self) -> Option<u32> {
        self.to.filter(|_| self.times >= TIMES)
    }

    /// It has that size now, or cannot have it. It does not grow any more.
    pub(super) fn end(&mut self) {
        self.to = None;
    }
}
