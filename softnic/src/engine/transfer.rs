//! Copies between packets and scatter/gather lists.

use super::{
    ids::PdId,
    keys::KeyTable,
    memory::{HostRange, Memory},
    packet::Content,
    request::Sge,
};

/// Total length of a list in bytes.
pub(super) fn total_len(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.len)).sum()
}

/// Appends the memory of `len` bytes at `offset` of a list. Returns false if the list is shorter, or a key does not
/// allow the access.
pub(super) fn resolve(
    keys: &KeyTable,
    pd: PdId,
    sges: &[Sge],
    (offset, len): (u64, u64),
    writes: bool,
    ranges: &mut Vec<HostRange>,
) -> bool {
    let (mut skip, mut remaining) = (offset, len);
    for sge in sges {
        let sge_len = u64::from(sge.len);
        if remaining == 0 {
            break;
        }
        if skip >= sge_len {
            skip -= sge_len;
            continue;
        }
        let part = remaining.min(sge_len - skip);
        let addr = sge.addr.wrapping_add(skip);
        let Some(range) = keys.local(pd, sge.lkey, addr, part, writes) else {
            return false;
        };
        ranges.push(range);
        skip = 0;
        remaining -= part;
    }
    remaining == 0
}

/// Copies host memory into a payload of the same length.
pub(super) fn gather(memory: &mut dyn Memory, ranges: &[HostRange], mut to: &mut [u8]) {
    for range in ranges {
        let Some((part, rest)) = to.split_at_mut_checked(range.len) else {
            return;
        };
        memory.read(*range, part);
        to = rest;
    }
}

/// Copies a payload into host memory of the same length.
pub(super) fn scatter(memory: &mut dyn Memory, ranges: &[HostRange], from: Content<'_>) {
    match from {
        Content::Bytes(bytes) => scatter_bytes(memory, ranges, bytes),
        Content::Host(from, _) => copy(memory, ranges, from),
    }
}

/// Copies bytes into host memory of the same length.
pub(super) fn scatter_bytes(memory: &mut dyn Memory, ranges: &[HostRange], mut from: &[u8]) {
    for range in ranges {
        let Some((part, rest)) = from.split_at_checked(range.len) else {
            return;
        };
        memory.write(part, *range);
        from = rest;
    }
}

/// Copies host memory to host memory of the same length.
fn copy(memory: &mut dyn Memory, to: &[HostRange], from: &[HostRange]) {
    let mut from = from.iter().copied();
    let mut source = HostRange::default();
    for range in to {
        let mut target = *range;
        while target.len > 0 {
            if source.len == 0 {
                let Some(next) = from.next() else {
                    return;
                };
                source = next;
            }
            let len = target.len.min(source.len);
            memory.copy(source.part(0, len), target.part(0, len));
            source = source.part(len, source.len - len);
            target = target.part(len, target.len - len);
        }
    }
}
