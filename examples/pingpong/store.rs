//! Memory for all messages: host memory or device memory.

use std::ops::Range;

use verbs::{RemoteRegion, dm::DeviceMemory, mr::UnmappedRegion, work::Scatter};

/// Memory divided into pieces for requests; readable and writable by the program.
pub trait Store {
    /// Handle to a piece, which keeps the memory alive.
    type Piece: Scatter + Clone;

    /// Returns a piece.
    ///
    /// # Panics
    /// Panics when the range is out of bounds.
    fn piece(&self, range: Range<usize>) -> Self::Piece;

    /// Writes the whole memory.
    ///
    /// # Errors
    /// Writing to the device failed.
    fn fill(&mut self, bytes: &[u8]) -> verbs::Result<()>;

    /// Reads the whole memory.
    ///
    /// # Errors
    /// Reading from the device failed.
    fn content(&self, bytes: &mut [u8]) -> verbs::Result<()>;
}

impl Store for RemoteRegion {
    type Piece = Self;

    fn piece(&self, range: Range<usize>) -> Self {
        self.slice(range)
    }

    fn fill(&mut self, bytes: &[u8]) -> verbs::Result<()> {
        self.write(0, bytes);
        Ok(())
    }

    fn content(&self, bytes: &mut [u8]) -> verbs::Result<()> {
        self.read(0, bytes);
        Ok(())
    }
}

/// Host memory or device memory.
#[derive(Debug)]
pub enum AnyStore {
    /// Host memory.
    Host(RemoteRegion),
    /// Device memory, and a registration of the whole.
    Device(DeviceMemory, UnmappedRegion),
}

/// A piece of either kind; exactly one of the two is `Some`.
pub type AnyPiece = (Option<RemoteRegion>, Option<UnmappedRegion>);

impl Store for AnyStore {
    type Piece = AnyPiece;

    fn piece(&self, range: Range<usize>) -> AnyPiece {
        match self {
            Self::Host(region) => (Some(region.slice(range)), None),
            Self::Device(_, region) => {
                let range = range.start as u64..range.end as u64;
                (None, Some(region.slice(range)))
            }
        }
    }

    fn fill(&mut self, bytes: &[u8]) -> verbs::Result<()> {
        match self {
            Self::Host(region) => region.fill(bytes),
            Self::Device(memory, _) => memory.write(0, bytes),
        }
    }

    fn content(&self, bytes: &mut [u8]) -> verbs::Result<()> {
        match self {
            Self::Host(region) => region.content(bytes),
            Self::Device(memory, _) => memory.read(0, bytes),
        }
    }
}
