//! Numbers of frames on the links of a fabric.

/// Numbers of frames sent over links, and of their faults. A frame for a multicast group counts once for each link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of frames.
    pub frames: u64,
    /// Number of frames lost with all their copies, by chance or by a cut.
    pub lost: u64,
    /// Number of frames that arrive twice.
    pub duplicated: u64,
    /// Number of copies with a flipped bit.
    pub corrupted: u64,
}
