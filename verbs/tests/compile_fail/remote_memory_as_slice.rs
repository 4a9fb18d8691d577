//! Memory that a peer may write at any time is not accessible as a slice.

use verbs::RemoteRegion;

fn misuse(region: &RemoteRegion) -> &[u8] {
    region
}

fn main() {}
