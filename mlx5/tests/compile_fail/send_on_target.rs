//! A target sends nothing.

use mlx5::Dct;
use verbs::{QueuePair, Rtr};

fn send(mut target: QueuePair<Dct, Rtr, (), ()>) {
    let _batch = target.extended_batch();
}

fn main() {}
