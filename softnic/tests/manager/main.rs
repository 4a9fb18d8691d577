//! Connection managers of two hosts on a wire with faults, in virtual time.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

mod connections;
mod hostile;
mod identifiers;
mod messages;
mod retries;
mod services;
mod wire;
