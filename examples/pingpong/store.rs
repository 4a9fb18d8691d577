//! The memory that all messages are sent from and arrive in: the process's, or the device's.

use std::ops::Range;

use verbs::{DeviceMemory, RemoteRegion, UnmappedRegion, work::Scatter};

/// Memory with parts that requests are for, and which the program can fill and look at.
pub trait Store {
    /// A part of it, as a handle that keeps it.
    type Piece: Scatter + Clone;

    /// A part of it.
    ///
    /// # Panics
    /// Panics when it is not inside.
    fn piece(&self, range: Range<usize>) -> Self::Piece;

    /// Writes all of it.
    ///
    /// # Errors
    /// The device cannot be written to.
    fn fill(&mut self, bytes: &[u8]) -> verbs::Result<()>;

    /// Reads all of it.
    ///
    /// # Errors
    /// The device cannot be read from.
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

/// Memory of either kind.
#[derive(Debug)]
pub enum AnyStore {
    /// The process's.
    Host(RemoteRegion),
    /// The device's, and the registration of all of it.
    Device(DeviceMemory, UnmappedRegion),
}

/// A part of memory of one kind or the other: one of the two is there.
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
