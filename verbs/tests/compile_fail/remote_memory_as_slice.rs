//! Memory that a peer may write at any time cannot be looked at as if nobody did.

use verbs::RemoteRegion;

fn misuse(region: &RemoteRegion) -> &[u8] {
    region
}

fn main() {}
