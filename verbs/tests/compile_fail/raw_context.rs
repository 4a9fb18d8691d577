//! Safe code cannot make an object of a raw pointer.

use std::ptr::NonNull;

use verbs::Context;

fn misuse() -> Context {
    Context::from_open(NonNull::dangling())
}

fn main() {}
