//! Connection managers of two hosts on a wire with faults, in virtual time.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

mod connections;
#[path = "../recorded/exchanges.rs"]
mod exchange_vectors;
mod exchanges;
mod hostile;
mod identifiers;
mod linux;
mod messages;
mod retries;
mod services;
mod wire;
