//! Copies between frames and scatter/gather lists.

use super::{ids::PdId, keys::KeyTable, memory::Memory, request::Sge};

/// Contiguous host memory, already checked against a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) host: u64,
    pub(super) len: usize,
}

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
    pieces: &mut Vec<Piece>,
) -> bool {
    let (mut skip, mut left) = (offset, len);
    for sge in sges {
        let sge_len = u64::from(sge.len);
        if left == 0 {
            break;
        }
        if skip >= sge_len {
            skip -= sge_len;
            continue;
        }
        let part = left.min(sge_len - skip);
        let addr = sge.addr.wrapping_add(skip);
        let Some(host) = keys.local(pd, sge.lkey, addr, part, writes) else {
            return false;
        };
        let Ok(part_len) = usize::try_from(part) else {
            return false;
        };
        pieces.push(Piece {
            host,
            len: part_len,
        });
        skip = 0;
        left -= part;
    }
    left == 0
}

/// Copies host memory into a payload of the same length.
pub(super) fn gather(memory: &mut dyn Memory, pieces: &[Piece], mut to: &mut [u8]) {
    for piece in pieces {
        let Some((part, rest)) = to.split_at_mut_checked(piece.len) else {
            return;
        };
        memory.read(piece.host, part);
        to = rest;
    }
}

/// Copies a payload into host memory of the same length.
pub(super) fn scatter(memory: &mut dyn Memory, pieces: &[Piece], mut from: &[u8]) {
    for piece in pieces {
        let Some((part, rest)) = from.split_at_checked(piece.len) else {
            return;
        };
        memory.write(piece.host, part);
        from = rest;
    }
}
