//! The engine: two engines on a wire with faults, single rules of the transport, and hostile frames.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

mod completion_queues;
mod datagrams;
mod hostile;
mod management;
mod packets;
mod pair;
mod placement;
mod reliable;
mod rules;
mod shadow;
mod simulation;
mod states;
mod windows;
mod xrc;
