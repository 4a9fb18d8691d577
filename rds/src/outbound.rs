//! The bytes of a message that is sent, until nobody needs them any more.

use std::{
    io::IoSlice,
    net::IpAddr,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use smallvec::SmallVec;
use verbs::{PoolBuf, ProtectionDomain, RemoteRegion};

use crate::{
    device::Device,
    proto::{
        connection::Bodies,
        wire::{FRAGMENT, Header},
    },
    slots::Body,
};

/// Those of a message. Most have one.
type Frames = SmallVec<[Option<Body>; 1]>;

/// What a message is sent from. While the device sends a frame, its slot is with the queue pair.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    frames: Mutex<Frames>,
    /// The bytes, if they are not copied, and what the program calls them.
    borrowed: Option<Box<(RemoteRegion, u32)>>,
    /// For the operations that go before it.
    pub(crate) operands: Option<Box<Operands>>,
}

/// What operations need that the protocol does not know of.
#[derive(Debug)]
pub(crate) struct Operands {
    /// The host whose memory they are on.
    pub(crate) peer: IpAddr,
    /// The memory here.
    pub(crate) rdma: Vec<RemoteRegion>,
    pub(crate) atomic: Option<RemoteRegion>,
}

/// What a frame is sent from: a slot for its header, and what it has of its message, or the place
/// of that.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) slot: PoolBuf,
    pub(crate) rest: Option<RemoteRegion>,
}

/// A message, for everybody who needs it.
pub(crate) type Payload = Arc<Outbound>;

impl Outbound {
    /// Copies bytes to where the device can send them from, or, without one, anywhere.
    pub(crate) fn copy(bufs: &[IoSlice<'_>], device: Option<&Device>) -> verbs::Result<Self> {
        let mut left: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut source = Source::new(bufs);
        let mut frames = Frames::new();
        if left > FRAGMENT as usize {
            frames.reserve(left.div_ceil(FRAGMENT as usize));
        }
        while left > 0 {
            let len = left.min(FRAGMENT as usize);
            left -= len;
            frames.push(Some(source.body(len, device)?));
        }
        Ok(Self {
            frames: Mutex::new(frames),
            borrowed: None,
            operands: None,
        })
    }

    /// Sends registered memory as it is.
    pub(crate) fn borrow(memory: RemoteRegion, name: u32) -> Self {
        Self {
            borrowed: Some(Box::new((memory, name))),
            ..Self::default()
        }
    }

    /// What the program calls memory that is not copied.
    pub(crate) fn name(&self) -> Option<u32> {
        self.borrowed.as_ref().map(|borrowed| borrowed.1)
    }

    /// What its operations need, if it has any.
    pub(crate) fn operands(&self) -> Option<&Operands> {
        self.operands.as_deref()
    }

    fn lock(&self) -> MutexGuard<'_, Frames> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a frame with these bytes of the message, to be sent over a device; `None` if it is being
    /// sent.
    pub(crate) fn take(&self, range: Range<u32>, device: &Device) -> verbs::Result<Option<Frame>> {
        let (start, end) = (range.start as usize, range.end as usize);
        if let Some((memory, _)) = self.borrowed.as_deref() {
            let part = memory.slice(start..end);
            if part.pd() == &device.pd {
                let slot = device.slot(0)?;
                let rest = Some(part);
                return Ok(Some(Frame { slot, rest }));
            }
            let mut slot = device.slot(end - start)?;
            part.read(0, &mut slot[Header::SIZE..]);
            return Ok(Some(Frame { slot, rest: None }));
        }
        let index = (range.start / FRAGMENT) as usize;
        let mut frames = self.lock();
        let Some(place) = frames.get_mut(index) else {
            return Ok(None);
        };
        let is_here = |slot: &PoolBuf| slot.pool().pd() == &device.pd;
        let slot = take_from(place, is_here, |len| device.slot(len))?;
        Ok(slot.map(|slot| Frame { slot, rest: None }))
    }

    /// Gives a frame back.
    pub(crate) fn give_back(&self, at: u32, slot: PoolBuf) {
        let index = (at / FRAGMENT) as usize;
        if let Some(place) = self.lock().get_mut(index) {
            *place = Some(Body::Slot(slot));
        }
    }

    /// Copies the bytes of a message that is not sent yet out of the memory of a device other than these.
    pub(crate) fn keep_to(&self, devices: &[Arc<Device>]) {
        // They have been copied for one device, all of them.
        let pd = match self.lock().first() {
            Some(Some(Body::Slot(slot))) => slot.pool().pd().clone(),
            _ => return,
        };
        if !devices.iter().any(|device| device.pd == pd) {
            self.leave(&pd);
        }
    }

    /// Copies the bytes out of the memory of a device that is gone, and has let go of them.
    pub(crate) fn leave(&self, pd: &ProtectionDomain) {
        for body in self.lock().iter_mut().flatten() {
            body.leave(pd);
        }
    }

    /// Whether some of its bytes are with a device.
    pub(crate) fn is_lent(&self) -> bool {
        self.lock().iter().any(Option::is_none)
    }

    /// Whether its operations need memory of a device.
    pub(crate) fn needs(&self, pd: &ProtectionDomain) -> bool {
        self.operands().is_some_and(|operands| {
            let mut memory = operands.rdma.iter().chain(&operands.atomic);
            memory.any(|region| region.pd() == pd)
        })
    }

    /// Takes all bytes, for a receiver in this process.
    pub(crate) fn bodies(&self) -> Bodies<Body> {
        if let Some((memory, _)) = self.borrowed.as_deref() {
            let mut bytes = vec![0; memory.len()].into_boxed_slice();
            memory.read(0, &mut bytes);
            return Bodies::One(Body::Heap(bytes));
        }
        let mut bodies: Vec<Body> = self.lock().iter_mut().filter_map(Option::take).collect();
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

/// Takes a body out of its place, or a copy of it into a `slot`, if it is in none that `is_here`. It stays
/// if there is no slot.
fn take_from(
    place: &mut Option<Body>,
    is_here: impl FnOnce(&PoolBuf) -> bool,
    slot: impl FnOnce(usize) -> verbs::Result<PoolBuf>,
) -> verbs::Result<Option<PoolBuf>> {
    match place.take() {
        None => Ok(None),
        Some(Body::Slot(slot)) if is_here(&slot) => Ok(Some(slot)),
        // Another device had it, or none.
        Some(body) => {
            let bytes = body.as_ref();
            match slot(bytes.len()) {
                Ok(mut slot) => {
                    slot[Header::SIZE..].copy_from_slice(bytes);
                    Ok(Some(slot))
                }
                Err(err) => {
                    *place = Some(body);
                    Err(err)
                }
            }
        }
    }
}

/// Bytes from several places, one after the other.
struct Source<'a> {
    bufs: &'a [IoSlice<'a>],
    at: usize,
}

impl<'a> Source<'a> {
    fn new(bufs: &'a [IoSlice<'a>]) -> Self {
        Self { bufs, at: 0 }
    }

    /// The next bytes, where the device can send them from, or, without one, anywhere.
    fn body(&mut self, len: usize, device: Option<&Device>) -> verbs::Result<Body> {
        let Some(device) = device else {
            let mut bytes = vec![0; len].into_boxed_slice();
            self.fill(&mut bytes);
            return Ok(Body::Heap(bytes));
        };
        let mut slot = device.slot(len)?;
        self.fill(&mut slot[Header::SIZE..]);
        Ok(Body::Slot(slot))
    }

    /// Fills `to`; there are as many bytes.
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

    #[test]
    fn pieces_become_frames() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|i| i.to_le_bytes()[0]).collect();
        let (a, rest) = bytes.split_at(1);
        let (b, c) = rest.split_at(5000);
        let bufs = [a, &[], b, c].map(IoSlice::new);
        let outbound = Outbound::copy(&bufs, None).unwrap();
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
    fn what_finds_no_memory_stays() {
        let mut place = Some(Body::Heap(b"hello".as_slice().into()));
        let none = |len| {
            assert_eq!(len, 5);
            Err(verbs::Error::from_errno("ibv_reg_mr", 12))
        };
        for _ in 0..2 {
            take_from(&mut place, |_| true, none).unwrap_err();
            assert_eq!(place.as_ref().map(Body::as_ref), Some(b"hello".as_slice()));
        }
        let nothing = take_from(&mut None, |_| true, none).unwrap();
        assert!(nothing.is_none());
    }

    #[test]
    fn a_short_message_has_one_frame_and_an_empty_one_none() {
        let short = Outbound::copy(&[IoSlice::new(b"hi")], None).unwrap();
        assert!(matches!(short.bodies(), Bodies::One(body) if body.as_ref() == b"hi"));
        let empty = Outbound::copy(&[], None).unwrap();
        assert!(matches!(empty.bodies(), Bodies::Many(bodies) if bodies.is_empty()));
    }
}
