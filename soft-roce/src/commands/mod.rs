//! The commands of `cargo soft-roce`, and their reports.

pub(crate) mod cargo_runner;
pub mod cli;
pub(crate) mod command;
pub(crate) mod doctor;
pub mod report;
pub mod setup;
