//! The engine on softnic.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test, outside of its functions too"
)]

mod bounds;
mod endings;
mod failover;
mod support;
mod transfer;
