//! Frames: round trips, hostile bytes, and frames recorded from Linux's rxe.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

mod arbitrary;
mod hostile;
mod kind;
mod recorded;
mod round_trip;
mod vectors;
