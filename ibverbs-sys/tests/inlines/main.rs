//! The static inlines in Rust do what the C originals do, on a provider that exists in memory
//! only: same calls with the same arguments, same return value, same errno.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test, outside of its functions too"
)]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a test calls C and Rust side by side"
)]

#[path = "../compiler/mod.rs"]
mod compiler;

mod dispatch;
mod library;
mod original;
mod own;
mod world;
