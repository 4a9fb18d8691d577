//! What a socket receives.

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
    slots::Body,
};

/// What a socket receives. Where there is more than one thing, the first kinds come first.
#[derive(Debug)]
#[non_exhaustive]
pub enum Received {
    /// An RDMA or atomic operation has ended.
    Operation(Notification),
    /// Memory of this name, which was [sent without a copy](crate::Socket::send_zerocopy), is free: it
    /// has been sent, or never will be.
    ZeroCopyDone(u32),
    /// Ports that could not be sent to can be again; only with
    /// [`set_congestion_monitor`](crate::Socket::set_congestion_monitor). Bit `port % 64` for each.
    Congestion(u64),
    /// A message.
    Message(Message),
}

/// An operation has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Notification {
    /// What the program called it.
    pub token: u64,
    /// How it ended.
    pub status: Status,
}

/// How long a message took inside this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Latency {
    /// From the first frame until the message began: nothing, since that is one thing here.
    pub start: Duration,
    /// Until the message was whole.
    pub assembly: Duration,
    /// Until the program received it.
    pub queue: Duration,
}

impl Latency {
    /// The same in nanoseconds, as [`LatencyPoints`](crate::proto::control::LatencyPoints) takes it.
    pub fn as_nanos(&self) -> [u64; 3] {
        [self.start, self.assembly, self.queue].map(nanos)
    }
}

/// As many as there can be, if there are more.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// How long a message took, in nanoseconds: a message is moved several times before the program has it, and up to
/// 128 bytes are moved without a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct RxTimestamps {
    /// What is counted from.
    epoch: Instant,
    /// When it was whole.
    whole: u64,
    assembly: u64,
    queue: u64,
}

impl RxTimestamps {
    /// By a clock that counts from `epoch`: when its first frame came, and it was whole, and received.
    #[inline]
    pub(super) fn new(epoch: Instant, began: Duration, whole: Duration, now: Duration) -> Self {
        let (began, whole, now) = (nanos(began), nanos(whole), nanos(now));
        Self {
            epoch,
            whole,
            assembly: whole.saturating_sub(began),
            queue: now.saturating_sub(whole),
        }
    }
}

/// Who reads two clocks reads them within this, unless something else runs in between.
const MAX_CLOCK_SKEW: Duration = Duration::from_micros(100);
const MAX_CLOCK_READS: u32 = 8;

/// When that was by the clock on the wall. `look` reads that clock, and when it begins and ends to.
fn wall_time(at: Instant, mut look: impl FnMut() -> (Instant, SystemTime, Instant)) -> SystemTime {
    let (mut before, mut wall, after) = look();
    let mut skew = after.saturating_duration_since(before);
    for _ in 1..MAX_CLOCK_READS {
        if skew <= MAX_CLOCK_SKEW {
            break;
        }
        let (begin, time, end) = look();
        let less = end.saturating_duration_since(begin);
        if less < skew {
            (before, wall, skew) = (begin, time, less);
        }
    }
    // Never later than it is now.
    let since = before.saturating_duration_since(at);
    wall.checked_sub(since).unwrap_or(wall)
}

/// A message that has arrived. It owns its bytes, which have not been copied if they are many.
#[derive(Debug)]
pub struct Message {
    pub(super) from: SocketAddr,
    pub(super) timestamps: RxTimestamps,
    pub(super) len: u32,
    pub(super) bodies: Bodies<Body>,
    pub(super) cookie: Option<Cookie>,
}

impl Message {
    /// Who has sent it.
    pub fn from(&self) -> SocketAddr {
        self.from
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `RDS_CMSG_RXPATH_LATENCY`—How long it took inside this host, in ticks of the kernel's clock or
    /// [exactly](crate::Socket::set_exact_times).
    #[doc(alias = "RDS_CMSG_RXPATH_LATENCY")]
    #[doc(alias = "SO_RDS_MSG_RXPATH_LATENCY")]
    pub fn latency(&self) -> Latency {
        Latency {
            start: Duration::ZERO,
            assembly: Duration::from_nanos(self.timestamps.assembly),
            queue: Duration::from_nanos(self.timestamps.queue),
        }
    }

    /// `SO_TIMESTAMP`—When it was whole, by a tick of the kernel's clock or
    /// [exactly](crate::Socket::set_exact_times).
    #[doc(alias = "SO_TIMESTAMP")]
    pub fn timestamp(&self) -> SystemTime {
        let whole = Duration::from_nanos(self.timestamps.whole);
        wall_time(self.timestamps.epoch + whole, || {
            (Instant::now(), SystemTime::now(), Instant::now())
        })
    }

    /// Memory of the sender's that the receiver may read and write.
    pub fn cookie(&self) -> Option<Cookie> {
        self.cookie
    }

    /// The bytes, piece by piece.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        pieces(&self.bodies)
    }

    /// The bytes, copied to one place.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.pieces()
            .for_each(|piece| bytes.extend_from_slice(piece));
        bytes
    }

    /// Copies as many bytes as fit; returns how many.
    pub fn copy_to(&self, bufs: &mut [IoSliceMut<'_>]) -> usize {
        copy(&self.bodies, bufs)
    }
}

fn pieces(bodies: &Bodies<Body>) -> impl Iterator<Item = &[u8]> {
    let pieces = bodies.as_slice().iter().map(AsRef::as_ref);
    pieces.filter(|piece| !piece.is_empty())
}

/// Copies as many bytes as fit; returns how many.
pub(super) fn copy(bodies: &Bodies<Body>, bufs: &mut [IoSliceMut<'_>]) -> usize {
    let mut copied = 0;
    let mut places = bufs.iter_mut().map(|buf| &mut **buf);
    let mut place: &mut [u8] = &mut [];
    for mut piece in pieces(bodies) {
        while !piece.is_empty() {
            while place.is_empty() {
                match places.next() {
                    Some(next) => place = next,
                    None => return copied,
                }
            }
            let len = piece.len().min(place.len());
            let (now, later) = std::mem::take(&mut place).split_at_mut(len);
            now.copy_from_slice(&piece[..len]);
            copied += len;
            place = later;
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
        let bodies = pieces.iter().map(|&piece| Body::Heap(piece.into()));
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

    /// Two clocks that are read while something else runs for so many milliseconds in between.
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
    fn who_is_interrupted_reads_the_clocks_again() {
        let after = |millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        assert_eq!(at_a_second(&[0, 5]), (after(1000), 1));
        assert_eq!(at_a_second(&[500, 0, 5]), (after(1000), 1));
        let busy = [9, 8, 7, 3, 4, 5, 6, 7, 0];
        assert_eq!(at_a_second(&busy), (after(1003), 1));
    }

    #[test]
    fn what_is_received_is_moved_without_a_call() {
        assert!(size_of::<std::io::Result<Option<Received>>>() <= 128);
    }

    #[test]
    fn bytes_are_copied_from_and_to_several_places() {
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
