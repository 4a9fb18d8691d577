//! A region is readable in place only after its end, and words of a region are borrowed from it.

use verbs::RemoteRegion;

fn misuse(region: RemoteRegion) -> u64 {
    let words = region.words();
    let memory = region.revoke();
    drop(memory);
    words[0].load(std::sync::atomic::Ordering::Relaxed)
}

fn main() {}
