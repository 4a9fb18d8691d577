//! A completion cannot be kept for later by cloning it.

use verbs::WorkCompletion;

fn misuse<'p>(wc: &WorkCompletion<'p>) -> WorkCompletion<'p> {
    wc.clone()
}

fn main() {}
