//! Received messages and events.

use std::{
    io::IoSliceMut,
    net::SocketAddr,
    time::{Duration, Instant, SystemTime},
};

use crate::{
    proto::{
        connection::{Bodies, Status},
        wire::Cookie,
    },
    slots::FrameBody,
};

/// A received message or event. Earlier variants have priority.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// An RDMA or atomic operation has ended.
    Operation(Notification),
    /// The [zero-copy](crate::Socket::send_zerocopy) message with this cookie has finished, and its
    /// memory can be reused.
    ZeroCopyDone(u32),
    /// Ports with a blocked send were released: bit `port % 64`. Only with
    /// [`set_congestion_monitor`](crate::Socket::set_congestion_monitor).
    Congestion(u64),
    /// A message.
    Message(Message),
}

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Notification {
    /// User token of the operation.
    pub token: u64,
    /// Status of the operation.
    pub status: Status,
}

/// Lengths and sender of a message copied by [`Socket::peek_msg`](crate::Socket::peek_msg).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RecvMeta {
    /// Number of bytes copied to the buffers.
    pub len: usize,
    /// Length of the message in bytes.
    pub full_len: usize,
    /// Address of the sender.
    pub source: SocketAddr,
}

/// Latency of the receive path of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Latency {
    /// From the first frame to the start of reassembly: always zero.
    pub start: Duration,
    /// Time of reassembly.
    pub assembly: Duration,
    /// Time in the receive queue.
    pub queue: Duration,
}

impl Latency {
    /// The latencies in nanoseconds, for
    /// [`LatencyPoints::encode`](crate::proto::control::LatencyPoints::encode).
    pub fn as_nanos(&self) -> [u64; 3] {
        [self.start, self.assembly, self.queue].map(nanos)
    }
}

/// Saturating conversion to nanoseconds.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Times of the receive path, in nanoseconds to keep [`Message`] small: a message is moved several
/// times, and moving more than 128 bytes calls `memcpy`.
#[derive(Clone, Copy, Debug)]
pub(super) struct RxTimestamps {
    /// Zero of the engine's clock.
    epoch: Instant,
    /// Time of the last frame.
    last_frame: u64,
    assembly: u64,
    queue: u64,
}

impl RxTimestamps {
    /// Times on a clock starting at `epoch`: first frame, last frame, and receive call.
    #[inline]
    pub(super) fn new(
        epoch: Instant,
        began: Duration,
        last_frame: Duration,
        now: Duration,
    ) -> Self {
        let (began, last_frame, now) = (nanos(began), nanos(last_frame), nanos(now));
        Self {
            epoch,
            last_frame,
            assembly: last_frame.saturating_sub(began),
            queue: now.saturating_sub(last_frame),
        }
    }
}

/// Maximum time between two clock reads for an accurate conversion.
const MAX_CLOCK_SKEW: Duration = Duration::from_micros(100);
const MAX_CLOCK_READS: u32 = 8;

/// Converts to wall-clock time. `look` reads the wall clock between two reads of the monotonic
/// clock; up to [`MAX_CLOCK_READS`] tries.
fn wall_time(at: Instant, mut look: impl FnMut() -> (Instant, SystemTime, Instant)) -> SystemTime {
    let (mut before, mut wall, after) = look();
    let mut skew = after.saturating_duration_since(before);
    for _ in 1..MAX_CLOCK_READS {
        if skew <= MAX_CLOCK_SKEW {
            break;
        }
        let (begin, time, end) = look();
        let shorter = end.saturating_duration_since(begin);
        if shorter < skew {
            (before, wall, skew) = (begin, time, shorter);
        }
    }
    // Not later than now.
    let since = before.saturating_duration_since(at);
    wall.checked_sub(since).unwrap_or(wall)
}

/// A received message. Owns its bytes; long messages are not copied.
#[derive(Debug)]
pub struct Message {
    pub(super) from: SocketAddr,
    pub(super) timestamps: RxTimestamps,
    pub(super) len: u32,
    pub(super) bodies: Bodies<FrameBody>,
    pub(super) cookie: Option<Cookie>,
}

impl Message {
    /// The sender.
    pub fn from(&self) -> SocketAddr {
        self.from
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the message is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `RDS_CMSG_RXPATH_LATENCY`—Latency of the receive path.
    #[doc(alias = "RDS_CMSG_RXPATH_LATENCY")]
    #[doc(alias = "SO_RDS_MSG_RXPATH_LATENCY")]
    pub fn latency(&self) -> Latency {
        Latency {
            start: Duration::ZERO,
            assembly: Duration::from_nanos(self.timestamps.assembly),
            queue: Duration::from_nanos(self.timestamps.queue),
        }
    }

    /// `SO_TIMESTAMP`—Arrival of the last frame.
    #[doc(alias = "SO_TIMESTAMP")]
    pub fn timestamp(&self) -> SystemTime {
        let last_frame = Duration::from_nanos(self.timestamps.last_frame);
        wall_time(self.timestamps.epoch + last_frame, || {
            (Instant::now(), SystemTime::now(), Instant::now())
        })
    }

    /// Memory exported by the sender.
    pub fn cookie(&self) -> Option<Cookie> {
        self.cookie
    }

    /// The bytes in pieces.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        pieces(&self.bodies)
    }

    /// Copies the bytes to a vector.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.pieces()
            .for_each(|piece| bytes.extend_from_slice(piece));
        bytes
    }

    /// Copies up to the capacity of `bufs`; returns the number of bytes.
    pub fn copy_to(&self, bufs: &mut [IoSliceMut<'_>]) -> usize {
        copy(&self.bodies, bufs)
    }
}

fn pieces(bodies: &Bodies<FrameBody>) -> impl Iterator<Item = &[u8]> {
    let pieces = bodies.as_slice().iter().map(AsRef::as_ref);
    pieces.filter(|piece| !piece.is_empty())
}

/// Copies up to the capacity of `bufs`; returns the number of bytes.
pub(super) fn copy(bodies: &Bodies<FrameBody>, bufs: &mut [IoSliceMut<'_>]) -> usize {
    let mut copied = 0;
    let mut rest = bufs.iter_mut().map(|buf| &mut **buf);
    let mut buffer: &mut [u8] = &mut [];
    for mut piece in pieces(bodies) {
        while !piece.is_empty() {
            while buffer.is_empty() {
                match rest.next() {
                    Some(next) => buffer = next,
                    None => return copied,
                }
            }
            let len = piece.len().min(buffer.len());
            let (now, later) = std::mem::take(&mut buffer).split_at_mut(len);
            now.copy_from_slice(&piece[..len]);
            copied += len;
            buffer = later;
            piece = &piece[len..];
        }
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(pieces: &[&[u8]]) -> Message {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        let bodies = pieces.iter().map(|&piece| FrameBody::Heap(piece.into()));
        Message {
            from: ([10, 9, 0, 1], 4000).into(),
            timestamps: RxTimestamps::new(
                Instant::now(),
                Duration::ZERO,
                Duration::ZERO,
                Duration::ZERO,
            ),
            len: u32::try_from(len).unwrap(),
            bodies: Bodies::Many(bodies.collect()),
            cookie: None,
        }
    }

    /// Converts with `pauses` in milliseconds between clock reads. Returns the result, and the
    /// number of unused pauses.
    fn at_a_second(pauses: &[u64]) -> (SystemTime, usize) {
        let (begin, epoch) = (Instant::now(), SystemTime::UNIX_EPOCH);
        let at = begin + Duration::from_secs(1);
        let mut time = Duration::from_secs(10);
        let mut pauses_left = pauses.iter();
        let found = wall_time(at, || {
            let before = begin + time;
            time += Duration::from_millis(*pauses_left.next().unwrap());
            (before, epoch + time, begin + time)
        });
        (found, pauses_left.len())
    }

    #[test]
    fn timestamp_rereads_clocks_after_interruption() {
        let after = |millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        assert_eq!(at_a_second(&[0, 5]), (after(1000), 1));
        assert_eq!(at_a_second(&[500, 0, 5]), (after(1000), 1));
        let busy = [9, 8, 7, 3, 4, 5, 6, 7, 0];
        assert_eq!(at_a_second(&busy), (after(1003), 1));
    }

    #[test]
    fn event_fits_into_128_bytes() {
        assert!(size_of::<std::io::Result<Option<Event>>>() <= 128);
    }

    #[test]
    fn message_copies_between_scattered_buffers() {
        let message = message(&[b"he", b"", b"llo, ", b"world"]);
        assert_eq!(
            (message.len(), message.to_vec()),
            (12, b"hello, world".to_vec())
        );
        let (mut a, mut b, mut c) = ([0; 3], [0; 0], [0; 20]);
        let mut bufs = [&mut a[..], &mut b, &mut c].map(IoSliceMut::new);
        assert_eq!(message.copy_to(&mut bufs), 12);
        assert_eq!((&a, &c[..9]), (b"hel", &b"lo, world"[..]));
        let mut short = [0; 4];
        let copied = message.copy_to(&mut [IoSliceMut::new(&mut short)]);
        assert_eq!((copied, &short), (4, b"hell"));
        assert_eq!(message.copy_to(&mut []), 0);
    }
}
