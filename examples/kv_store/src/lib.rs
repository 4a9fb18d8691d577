//! A first protocol, explained in the tutorial.
//!
#![doc = include_str!("../README.md")]

pub mod bucket;
pub mod client;
pub mod entry;
pub mod exchange;
pub mod message;
pub mod server;
pub mod slot;
pub mod table;
