//! Copies between packets and scatter/gather lists.

use super::{ids::PdId, keys::KeyTable, memory::Memory, packet::Content, request::Sge};

/// Contiguous host memory, already checked against a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) host: u64,
    pub(super) len: usize,
}

impl Piece {
    /// Drops the first `len` bytes.
    fn advance(&mut self, len: usize) {
        self.host = self.host.wrapping_add(len as u64);
        self.len -= len;
    }
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
pub(super) fn scatter(memory: &mut dyn Memory, pieces: &[Piece], from: Content<'_>) {
    match from {
        Content::Bytes(bytes) => scatter_bytes(memory, pieces, bytes),
        Content::Host(from, _) => copy(memory, pieces, from),
    }
}

fn scatter_bytes(memory: &mut dyn Memory, pieces: &[Piece], mut from: &[u8]) {
    for piece in pieces {
        let Some((part, rest)) = from.split_at_checked(piece.len) else {
            return;
        };
        memory.write(piece.host, part);
        from = rest;
    }
}

/// Copies host memory to host memory of the same length.
fn copy(memory: &mut dyn Memory, to: &[Piece], from: &[Piece]) {
    let mut from = from.iter().copied();
    let mut source = Piece { host: 0, len: 0 };
    for piece in to {
        let mut target = *piece;
        while target.len > 0 {
            if source.len == 0 {
                let Some(next) = from.next() else {
                    return;
                };
                source = next;
            }
            let len = target.len.min(source.len);
            memory.copy(source.host, target.host, len);
            source.advance(len);
            target.advance(len);
        }
    }
}
