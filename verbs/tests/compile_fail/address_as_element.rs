//! Safe code cannot name an address for the device to write to.

use std::ptr::NonNull;

use verbs::work::Sge;

fn misuse() -> Sge {
    Sge::new(NonNull::dangling(), 4096, 17)
}

fn main() {}
