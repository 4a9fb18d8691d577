//! The engine: two of them on a wire with faults, rules of the transport one by one, and hostile frames.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

mod completion_queues;
mod datagrams;
mod hostile;
mod management;
mod pair;
mod reliable;
mod shadow;
mod simulation;
mod states;
mod windows;
