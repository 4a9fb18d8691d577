//! Memory longer than one registration can be.

use std::{io, ops::Range, ptr::NonNull};

use super::{
    builder::RemoteRegistration,
    granule::MAX_PAGE,
    handle::MemoryHandle,
    memory::Memory,
    provider_memory::ProviderMemory,
    remote::{RemoteRegion, RemoteToken},
};
use crate::error::{Error, Refused, Result};

/// Number of bytes of which the parts begin and end at multiples.
const GRANULE: usize = MAX_PAGE as usize;

/// Maximum number of bytes of a pair: below the limit of a request, a multiple of each page.
const MAX_PAIR: u64 = 1 << 30;

/// Some bytes of memory with several registrations.
#[derive(Debug)]
pub(super) struct Part<M> {
    handle: MemoryHandle<M>,
    // INVARIANT: inside the handle's range; each end is the range's, or an address between words.
    range: NonNull<[u8]>,
}

// SAFETY: an address, and a handle that may be moved to another thread.
unsafe impl<M: Memory + Sync> Send for Part<M> {}

// SAFETY: a part of the handle's memory. Its words are the words of the whole (invariant), so each byte is accessed in one size.
unsafe impl<M: Memory + Sync> Memory for Part<M> {
    fn range(&mut self) -> NonNull<[u8]> {
        self.range
    }

    fn provider(&self) -> Option<&ProviderMemory> {
        self.handle.provider()
    }

    fn frees_pages(&self) -> bool {
        self.handle.frees_pages()
    }
}

impl<M: Memory + Sync> RemoteRegistration<'_, MemoryHandle<M>> {
    /// `ibv_reg_mr`—Registers the memory in parts of at most
    /// [`max_mr_size`](crate::attr::DeviceAttr::max_mr_size) bytes, for memory longer than one registration of the device
    /// can be. Enters the kernel for each part.
    ///
    /// The parts divide the memory at multiples of 64 KiB, the largest page of any architecture. Each has keys of its own;
    /// [zero-based](Self::zero_based) ones begin at 0 each.
    ///
    /// # Errors
    /// The error returns the memory; parts already registered have ended:
    /// - `InvalidInput`: the memory has no bytes.
    /// - `Unsupported`: the device registers less than 64 KiB at once.
    /// - As for [`create`](Self::create).
    ///
    /// # Examples
    /// ```
    /// # let (_fabric, ctx) = doctest::device();
    /// use verbs::{RemoteAccess, mr::{Mapping, MemoryHandle}};
    /// let pd = ctx.alloc_pd()?;
    /// let memory = MemoryHandle::new(Mapping::new(1 << 20)?);
    /// let region = pd.register(memory).remote(RemoteAccess::WRITE).create_parts()?;
    /// let tokens = region.tokens(); // for the peer
    /// assert_eq!(tokens.len(), 1 << 20);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    pub fn create_parts(self) -> Result<RegionParts, Refused<MemoryHandle<M>>> {
        let (pd, handle, terms) = self.into_options();
        let refuse = |handle, error| {
            Err(Refused {
                value: handle,
                error,
            })
        };
        let max = match pd.context().query_device() {
            Ok(attr) => attr.max_mr_size(),
            Err(error) => return refuse(handle, error),
        };
        let part_len = usize::try_from(max).unwrap_or(usize::MAX) / GRANULE * GRANULE;
        if handle.len() == 0 || part_len == 0 {
            let (kind, reason) = match handle.len() {
                0 => (
                    io::ErrorKind::InvalidInput,
                    "a region has at least one byte",
                ),
                _ => (
                    io::ErrorKind::Unsupported,
                    "the device registers less than 64 KiB at once",
                ),
            };
            return refuse(handle, Error::refused("ibv_reg_mr", kind, reason));
        }
        let mut parts = Vec::new();
        for range in divide(handle.bytes(), part_len) {
            let mut terms = terms.clone();
            terms.advance(
                range.cast::<u8>().addr().get() - handle.bytes().cast::<u8>().addr().get(),
            );
            let part = Part {
                handle: handle.clone(),
                range,
            };
            match RemoteRegistration::of_options(pd, part, terms).create() {
                Ok(region) => parts.push(region),
                Err(refused) => {
                    drop(parts);
                    return refuse(handle, refused.error);
                }
            }
        }
        Ok(RegionParts { parts })
    }
}

/// Divides a range into parts of at most `part_len` bytes, a multiple of the granule, at multiples of the granule.
fn divide(range: NonNull<[u8]>, part_len: usize) -> impl Iterator<Item = NonNull<[u8]>> {
    let (start, len) = (range.cast::<u8>(), range.len());
    // The first part ends at a multiple, too.
    let first = part_len - start.addr().get() % GRANULE;
    let mut offset = 0;
    std::iter::from_fn(move || {
        let part = if offset == 0 { first } else { part_len }.min(len - offset);
        // SAFETY: `offset` is at most the length, so the result is inside the range, or its end.
        let begin = unsafe { start.add(offset) };
        offset += part;
        (part > 0).then(|| NonNull::slice_from_raw_parts(begin, part))
    })
}

/// Memory with several registrations of one device, in order; see [`RemoteRegistration::create_parts`].
///
/// Cloning is cheap for each part, as for a [`RemoteRegion`].
#[derive(Clone, Debug)]
pub struct RegionParts {
    parts: Vec<RemoteRegion>,
}

impl RegionParts {
    /// The number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.parts.iter().map(RemoteRegion::len).sum()
    }

    /// The regions of the parts, in the order of their bytes.
    pub fn parts(&self) -> &[RemoteRegion] {
        &self.parts
    }

    /// The tokens with which a peer can access the memory.
    pub fn tokens(&self) -> RemoteTokens {
        RemoteTokens::new(self.parts.iter().map(RemoteRegion::token).collect())
    }

    /// Copies bytes out, beginning at `offset`; see [`RemoteRegion::read`].
    ///
    /// # Panics
    /// Panics when the bytes are not inside.
    pub fn read(&self, offset: usize, mut bytes: &mut [u8]) {
        for part in self.slice(offset..offset + bytes.len()) {
            let (first, rest) = bytes.split_at_mut(part.len());
            part.read(0, first);
            bytes = rest;
        }
    }

    /// Copies bytes in, beginning at `offset`; see [`RemoteRegion::write`].
    ///
    /// # Panics
    /// Panics when the bytes are not inside.
    pub fn write(&self, offset: usize, mut bytes: &[u8]) {
        for part in self.slice(offset..offset + bytes.len()) {
            let (first, rest) = bytes.split_at(part.len());
            part.write(0, first);
            bytes = rest;
        }
    }

    /// The regions of some bytes, each inside one part.
    ///
    /// # Panics
    /// Panics when the range is not inside.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Vec<RemoteRegion> {
        let (start, end, len) = (range.start as u64, range.end as u64, self.len());
        assert!(
            range.start <= range.end && range.end <= len,
            "{range:?} is not inside of {len} bytes"
        );
        let lens = self.parts.iter().map(|part| part.len() as u64);
        overlaps(lens, start..end)
            .map(|(part, range)| {
                let range = local(range.start)..local(range.end);
                self.parts[part].slice(range)
            })
            .collect()
    }

    /// Pairs of memory for requests that transfer some bytes from or to a peer's memory: each pair is inside one part on both
    /// sides, and short enough for a request.
    ///
    /// # Errors
    /// - `InvalidInput`: the peer's memory has another length than the range.
    ///
    /// # Panics
    /// Panics when the range is not inside.
    pub fn pairs(
        &self,
        range: Range<usize>,
        peer: &RemoteTokens,
    ) -> Result<Vec<(RemoteRegion, RemoteToken)>> {
        let len = range.len() as u64;
        if len != peer.len() {
            let reason = format!("{len} bytes for {} of the peer", peer.len());
            let kind = io::ErrorKind::InvalidInput;
            return Err(Error::refused("RegionParts::pairs", kind, reason));
        }
        let mut pairs = Vec::new();
        let mut offset = 0;
        for region in self.slice(range) {
            let mut done = 0;
            while done < region.len() {
                let rest = (region.len() - done) as u64;
                let remote = peer.slice(offset..offset + rest.min(MAX_PAIR))?;
                let Some(first) = remote.parts.first() else {
                    break;
                };
                let piece = local(first.len);
                pairs.push((region.slice(done..done + piece), *first));
                done += piece;
                offset += first.len;
            }
        }
        Ok(pairs)
    }
}

/// Tokens of a peer's memory in parts, in order. The program sends them to the peer, in a format of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RemoteTokens {
    parts: Vec<RemoteToken>,
}

impl RemoteTokens {
    /// The tokens of consecutive parts.
    pub fn new(parts: Vec<RemoteToken>) -> Self {
        Self { parts }
    }

    /// The number of bytes; of parts that no memory has, at most the greatest number.
    #[expect(
        clippy::len_without_is_empty,
        reason = "the number of bytes, not of parts"
    )]
    pub fn len(&self) -> u64 {
        let lens = self.parts.iter().map(|part| part.len);
        lens.fold(0, u64::saturating_add)
    }

    /// The token of each part.
    pub fn parts(&self) -> &[RemoteToken] {
        &self.parts
    }

    /// The tokens of some bytes.
    ///
    /// # Errors
    /// - `InvalidInput`: the range is not inside.
    pub fn slice(&self, range: Range<u64>) -> Result<Self> {
        if range.start > range.end || range.end > self.len() {
            let reason = format!("{range:?} is not inside of {} bytes", self.len());
            let kind = io::ErrorKind::InvalidInput;
            return Err(Error::refused("RemoteTokens::slice", kind, reason));
        }
        let lens = self.parts.iter().map(|part| part.len);
        let parts = overlaps(lens, range).map(|(part, range)| self.parts[part].slice(range));
        Ok(Self {
            parts: parts.collect::<Result<_>>()?,
        })
    }
}

impl From<RemoteToken> for RemoteTokens {
    fn from(token: RemoteToken) -> Self {
        Self { parts: vec![token] }
    }
}

/// An offset in memory of this process, from an equal one of a peer.
fn local(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The parts with bytes of a range, and the ranges inside them.
fn overlaps(
    lens: impl Iterator<Item = u64>,
    range: Range<u64>,
) -> impl Iterator<Item = (usize, Range<u64>)> {
    let mut begin = 0_u64;
    lens.enumerate().filter_map(move |(part, len)| {
        let first = begin;
        begin = begin.saturating_add(len);
        let inside = range.start.max(first)..range.end.min(begin);
        (inside.start < inside.end).then(|| (part, inside.start - first..inside.end - first))
    })
}
