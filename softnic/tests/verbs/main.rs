//! `verbs` on devices of a fabric, in a process without libibverbs.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

mod cards;
mod connected;
mod dmabuf;
mod end;
mod errnos;
mod extended;
mod faults;
mod flight_recorder;
mod key_value;
mod links;
mod listing;
mod outages;
mod routes;
mod setup;
mod sizes;
mod threads;
mod windows;
mod xrc;
