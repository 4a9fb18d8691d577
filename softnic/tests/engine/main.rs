//! The engine: two engines on a wire with faults, single rules of the transport, and hostile frames.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

mod completion_queues;
mod datagrams;
mod dc;
#[path = "../recorded/exchanges.rs"]
mod exchange_vectors;
mod exchanges;
mod hostile;
mod management;
mod packets;
mod pair;
mod placement;
mod recorded;
mod reliable;
mod shadow;
mod simulation;
mod srd;
mod states;
#[path = "../wire/vectors.rs"]
mod vectors;
mod windows;
mod xrc;
