//! Identifiers of an engine's objects.

/// Identifier of a protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PdId(
    /// The number.
    pub u32,
);

/// Identifier of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CqId(
    /// The number.
    pub u32,
);

/// Identifier of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SrqId(
    /// The number.
    pub u32,
);

/// Identifier of an XRC domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct XrcdId(
    /// The number.
    pub u32,
);

/// Number of a queue pair, 24 bits; visible to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpNum(
    /// The number.
    pub u32,
);
