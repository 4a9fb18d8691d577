//! Payload of an outgoing message, kept until the peer has acknowledged the message.

use std::{
    io::IoSlice,
    net::IpAddr,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use smallvec::SmallVec;
use verbs::{ProtectionDomain, RemoteRegion, mr::PoolBuf};

use crate::{
    device::Device,
    proto::{
        connection::Bodies,
        wire::{FRAGMENT, Header},
    },
    slots::{FrameBody, SpareSlot},
};

/// Bodies of the frames of a message, `None` while posted. Inline for the common case of one frame.
type Frames = SmallVec<[Option<FrameBody>; 1]>;

/// Payload of a message. The slot of a posted frame is owned by the queue pair.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    frames: Mutex<Frames>,
    /// Memory of a zero-copy message, and its cookie.
    borrowed: Option<Box<(RemoteRegion, u32)>>,
    /// Operands of the RDMA and atomic operations before the message.
    pub(crate) operands: Option<Box<Operands>>,
}

/// Local memory of a message's operations, opaque to the protocol.
#[derive(Debug)]
pub(crate) struct Operands {
    /// Address of the host targeted by the operations.
    pub(crate) peer: IpAddr,
    /// Local pieces of the RDMA operation, in order.
    pub(crate) rdma: Vec<RemoteRegion>,
    pub(crate) atomic: Option<RemoteRegion>,
}

/// A frame ready to post: a slot for the header and a copied body, or a header slot and a borrowed
/// body.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) slot: PoolBuf,
    pub(crate) rest: Option<RemoteRegion>,
}

/// A shared message payload.
pub(crate) type Payload = Arc<Outbound>;

impl Outbound {
    /// Copies `bufs` into the bodies made by `alloc`, of at most [`FRAGMENT`] bytes each.
    pub(crate) fn copy<E>(
        bufs: &[IoSlice<'_>],
        alloc: impl Fn(usize) -> Result<FrameBody, E>,
    ) -> Result<Self, E> {
        let mut remaining: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut source = Source::new(bufs);
        let mut frames = Frames::new();
        if remaining > FRAGMENT as usize {
            frames.reserve(remaining.div_ceil(FRAGMENT as usize));
        }
        while remaining > 0 {
            let len = remaining.min(FRAGMENT as usize);
            remaining -= len;
            let mut body = alloc(len)?;
            source.fill(body.as_mut());
            frames.push(Some(body));
        }
        Ok(Self {
            frames: Mutex::new(frames),
            borrowed: None,
            operands: None,
        })
    }

    /// A zero-copy payload: the device reads `memory` directly. `name` is the cookie reported on
    /// completion.
    pub(crate) fn borrow(memory: RemoteRegion, name: u32) -> Self {
        Self {
            borrowed: Some(Box::new((memory, name))),
            ..Self::default()
        }
    }

    /// The cookie of a zero-copy message.
    pub(crate) fn name(&self) -> Option<u32> {
        self.borrowed.as_ref().map(|borrowed| borrowed.1)
    }

    /// The operands, if the message has operations.
    pub(crate) fn operands(&self) -> Option<&Operands> {
        self.operands.as_deref()
    }

    fn lock(&self) -> MutexGuard<'_, Frames> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the frame of these bytes for posting on `device`, with a new slot from `spare` if
    /// required; `None` if the frame is posted already.
    pub(crate) fn take(
        &self,
        range: Range<u32>,
        device: &Device,
        spare: &mut SpareSlot,
    ) -> verbs::Result<Option<Frame>> {
        let (start, end) = (range.start as usize, range.end as usize);
        if let Some((memory, _)) = self.borrowed.as_deref() {
            let part = memory.slice(start..end);
            if part.pd() == &device.pd {
                let slot = spare.take(&device.slots, 0)?;
                let rest = Some(part);
                return Ok(Some(Frame { slot, rest }));
            }
            let mut slot = spare.take(&device.slots, end - start)?;
            part.read(0, &mut slot[Header::SIZE..]);
            return Ok(Some(Frame { slot, rest: None }));
        }
        let index = (range.start / FRAGMENT) as usize;
        let mut frames = self.lock();
        let Some(frame) = frames.get_mut(index) else {
            return Ok(None);
        };
        let is_usable = |slot: &PoolBuf| slot.pool().pd() == &device.pd;
        let slot = take_from(frame, is_usable, |len| spare.take(&device.slots, len))?;
        Ok(slot.map(|slot| Frame { slot, rest: None }))
    }

    /// Returns the slot of a frame whose request has completed.
    pub(crate) fn return_slot(&self, at: u32, slot: PoolBuf) {
        let index = (at / FRAGMENT) as usize;
        if let Some(frame) = self.lock().get_mut(index) {
            *frame = Some(FrameBody::Slot(slot));
        }
    }

    /// Moves the bodies of an unsent message to the heap, unless their device is among `devices`.
    pub(crate) fn restrict_to(&self, devices: &[Arc<Device>]) {
        // All bodies were copied for the same device.
        let pd = match self.lock().first() {
            Some(Some(FrameBody::Slot(slot))) => slot.pool().pd().clone(),
            _ => return,
        };
        if !devices.iter().any(|device| device.pd == pd) {
            self.copy_off_device(&pd);
        }
    }

    /// Moves bodies out of slots of a removed device, once the device has released them.
    pub(crate) fn copy_off_device(&self, pd: &ProtectionDomain) {
        for body in self.lock().iter_mut().flatten() {
            body.copy_off_device(pd);
        }
    }

    /// Whether the payload keeps memory of the program registered.
    pub(crate) fn has_regions(&self) -> bool {
        self.borrowed.is_some() || self.operands.is_some()
    }

    /// Whether a frame is posted.
    pub(crate) fn is_posted(&self) -> bool {
        self.lock().iter().any(Option::is_none)
    }

    /// Whether an operand is registered in `pd`.
    pub(crate) fn needs(&self, pd: &ProtectionDomain) -> bool {
        self.operands().is_some_and(|operands| {
            let mut memory = operands.rdma.iter().chain(&operands.atomic);
            memory.any(|region| region.pd() == pd)
        })
    }

    /// Takes all bodies, for delivery to a socket of the same engine.
    pub(crate) fn bodies(&self) -> Bodies<FrameBody> {
        if let Some((memory, _)) = self.borrowed.as_deref() {
            let mut bytes = vec![0; memory.len()].into_boxed_slice();
            memory.read(0, &mut bytes);
            return Bodies::One(FrameBody::Heap(bytes));
        }
        let mut bodies: Vec<FrameBody> = self.lock().iter_mut().filter_map(Option::take).collect();
        match (bodies.pop(), bodies.is_empty()) {
            (Some(body), true) => Bodies::One(body),
            (Some(body), false) => {
                bodies.push(body);
                Bodies::Many(bodies)
            }
            (None, _) => Bodies::Many(bodies),
        }
    }
}

/// Takes a body from `entry`. A body outside of slots accepted by `is_usable` is copied into a new
/// `slot`; if there is none, the body stays in the entry.
fn take_from(
    entry: &mut Option<FrameBody>,
    is_usable: impl FnOnce(&PoolBuf) -> bool,
    slot: impl FnOnce(usize) -> verbs::Result<PoolBuf>,
) -> verbs::Result<Option<PoolBuf>> {
    match entry.take() {
        None => Ok(None),
        Some(FrameBody::Slot(slot)) if is_usable(&slot) => Ok(Some(slot)),
        // The body is on the heap, or in a slot of another device.
        Some(body) => {
            let bytes = body.as_ref();
            match slot(bytes.len()) {
                Ok(mut slot) => {
                    slot[Header::SIZE..].copy_from_slice(bytes);
                    Ok(Some(slot))
                }
                Err(err) => {
                    *entry = Some(body);
                    Err(err)
                }
            }
        }
    }
}

/// Reader over scattered buffers.
struct Source<'a> {
    bufs: &'a [IoSlice<'a>],
    at: usize,
}

impl<'a> Source<'a> {
    fn new(bufs: &'a [IoSlice<'a>]) -> Self {
        Self { bufs, at: 0 }
    }

    /// Fills `to`. The caller guarantees `to.len()` remaining bytes.
    fn fill(&mut self, mut to: &mut [u8]) {
        while let Some((first, rest)) = self.bufs.split_first() {
            let from = &first[self.at..];
            let len = from.len().min(to.len());
            let (now, later) = to.split_at_mut(len);
            now.copy_from_slice(&from[..len]);
            to = later;
            self.at += len;
            if self.at < first.len() {
                return;
            }
            self.bufs = rest;
            self.at = 0;
            if to.is_empty() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy on the heap.
    fn copy(bufs: &[IoSlice<'_>]) -> Outbound {
        Outbound::copy(bufs, |len| FrameBody::alloc(None, len)).unwrap()
    }

    #[test]
    fn copy_of_scattered_buffers_fragments_at_4096() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|i| i.to_le_bytes()[0]).collect();
        let (a, rest) = bytes.split_at(1);
        let (b, c) = rest.split_at(5000);
        let bufs = [a, &[], b, c].map(IoSlice::new);
        let outbound = copy(&bufs);
        let bodies = outbound.bodies();
        let lens: Vec<usize> = bodies.as_slice().iter().map(|b| b.as_ref().len()).collect();
        assert_eq!(lens, [4096, 4096, 1808]);
        let joined: Vec<u8> = bodies
            .as_slice()
            .iter()
            .flat_map(|body| body.as_ref().to_vec())
            .collect();
        assert_eq!(joined, bytes);
        assert!(outbound.bodies().as_slice().is_empty(), "they are taken");
    }

    #[test]
    fn take_without_memory_keeps_the_body() {
        let mut body = Some(FrameBody::Heap(b"hello".as_slice().into()));
        let none = |len| {
            assert_eq!(len, 5);
            Err(verbs::Error::from_errno("ibv_reg_mr", 12))
        };
        for _ in 0..2 {
            take_from(&mut body, |_| true, none).unwrap_err();
            assert_eq!(
                body.as_ref().map(FrameBody::as_ref),
                Some(b"hello".as_slice())
            );
        }
        let taken_body = take_from(&mut None, |_| true, none).unwrap();
        assert!(taken_body.is_none());
    }

    #[test]
    fn copy_of_short_and_empty_messages_has_one_and_no_frame() {
        let short = copy(&[IoSlice::new(b"hi")]);
        assert!(matches!(short.bodies(), Bodies::One(body) if body.as_ref() == b"hi"));
        let empty = copy(&[]);
        assert!(matches!(empty.bodies(), Bodies::Many(bodies) if bodies.is_empty()));
    }
}
