//! The network of guests: the switch between them, the conditions of its links, and recordings.

pub(crate) mod control;
pub(crate) mod link;
pub(crate) mod switch;
pub(crate) mod wire;
