//! The shared library that programs of `softnic run` load first (`LD_PRELOAD`): paths of the device's files in sysfs and `/dev` lead
//! to the folder that the keeper of the address writes.
#![no_main]

#[path = "../redirection/mod.rs"]
mod redirection;
