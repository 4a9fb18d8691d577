//! What programs and sockets tell each other beside messages: the payloads of control messages and
//! of socket options, as `linux/rds.h` lays them out, in the byte order of the host.

use std::fmt;

use super::{
    connection::{AtomicOp, Direction, Status},
    wire::{Cookie, MAX_MESSAGE, Reader},
};

/// The level of all of them: `SOL_RDS`.
pub const LEVEL: i32 = 276;

/// What a control message is about: `cmsg_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(i32)]
pub enum Kind {
    /// Reads or writes the peer's memory: [`RdmaArgs`].
    RdmaArgs = 1,
    /// Memory that the receiver may use: a [`Cookie`], of 8 bytes.
    RdmaDestination = 2,
    /// Memory that the receiver may use, and that is to be registered for it: [`GetMrArgs`].
    RdmaMap = 3,
    /// An operation has ended: [`RdmaStatus`].
    RdmaStatus = 4,
    /// Ports are congested no more: a bit for each, 8 bytes.
    CongestionUpdate = 5,
    /// Adds to a number of the peer's: [`AtomicArgs`].
    AtomicFetchAdd = 6,
    /// Compares a number of the peer's, and swaps it: [`AtomicArgs`].
    AtomicCompareSwap = 7,
    /// The same as adding, field by field: [`AtomicArgs`].
    MaskedAtomicFetchAdd = 8,
    /// The same as swapping, of some bits: [`AtomicArgs`].
    MaskedAtomicCompareSwap = 9,
    /// How long a message took inside the host: see [`LatencyPoints`].
    RxPathLatency = 11,
    /// What the sender calls memory that is sent without a copy, 4 bytes.
    ZcopyCookie = 12,
    /// Memory that was sent without a copy is free: [`ZcopyCompletion`].
    ZcopyCompletion = 13,
}

/// `READWRITE`: the peer's memory is written, or may be.
pub const READWRITE: u64 = 0x01;
/// `FENCE`: the message follows when the operation is over.
pub const FENCE: u64 = 0x02;
/// `INVALIDATE`: memory is taken away at once.
pub const INVALIDATE: u64 = 0x04;
/// `USE_ONCE`: memory is taken away when it has been used.
pub const USE_ONCE: u64 = 0x08;
/// `DONTWAIT`.
pub const DONTWAIT: u64 = 0x10;
/// `NOTIFY_ME`: the end of the operation is told.
pub const NOTIFY_ME: u64 = 0x20;
/// `SILENT`: a message with nothing but operations is not sent itself.
pub const SILENT: u64 = 0x40;
/// `REMOTE_COMPLETE`: the end is told when the peer has acknowledged the message.
pub const REMOTE_COMPLETE: u64 = 0x80;

/// Why a payload is refused. Each has the number that the kernel gives for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadControl {
    /// It has another number of bytes than it must have: `EINVAL`.
    Len(usize),
    /// It is about no bytes, or no pieces of memory, or ends beyond all addresses: `EINVAL`.
    Empty,
    /// It is about too many bytes, or pieces: `EMSGSIZE`.
    TooLong(u64),
    /// An address is no multiple of 8: `EFAULT`.
    Unaligned(u64),
    /// No device does it: `EOPNOTSUPP`.
    Masks,
    /// What is to be measured does not exist: `EFAULT`.
    Points(u8),
}

impl fmt::Display for BadControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Len(len) => write!(f, "{len} bytes are no payload of this kind"),
            Self::Empty => write!(f, "there is no memory in it"),
            Self::TooLong(len) => write!(f, "{len} are too many"),
            Self::Unaligned(addr) => write!(f, "{addr:#x} is no multiple of 8"),
            Self::Masks => write!(f, "no device changes some bits only"),
            Self::Points(point) => write!(f, "{point} is no point of measurement"),
        }
    }
}

impl std::error::Error for BadControl {}

/// Numbers in the order in which the payload has them.
fn numbers<const N: usize>(payload: &[u8]) -> Result<[u64; N], BadControl> {
    let mut reader = Reader::new(payload);
    let mut numbers = [0; N];
    for number in &mut numbers {
        let bytes = reader.bytes().ok_or(BadControl::Len(payload.len()))?;
        *number = u64::from_ne_bytes(bytes);
    }
    if payload.len() != 8 * N {
        return Err(BadControl::Len(payload.len()));
    }
    Ok(numbers)
}

/// Memory of the program's that a peer may use: `struct rds_get_mr_args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetMrArgs {
    /// Its address.
    pub addr: u64,
    /// The number of bytes: not more than a message has, and a page.
    pub len: u64,
    /// Where the program wants its cookie written, or 0.
    pub cookie_addr: u64,
    /// The flags, of which unknown ones mean nothing.
    pub flags: u64,
}

impl GetMrArgs {
    /// The number of bytes.
    pub const SIZE: usize = 32;

    /// The most bytes of memory, where it begins in the middle of a page.
    const MAX: u64 = MAX_MESSAGE as u64 + 4096;

    /// Reads the payload.
    ///
    /// # Errors
    /// It is not as long, or the memory cannot be.
    pub fn decode(payload: &[u8]) -> Result<Self, BadControl> {
        let [addr, len, cookie_addr, flags] = numbers(payload)?;
        if len == 0 || len > u32::MAX.into() || addr.checked_add(len).is_none() {
            return Err(BadControl::Empty);
        }
        let pages = (addr % 4096 + len).div_ceil(4096) * 4096;
        if pages > Self::MAX {
            return Err(BadControl::TooLong(len));
        }
        Ok(Self {
            addr,
            len,
            cookie_addr,
            flags,
        })
    }
}

/// An operation on the peer's memory: `struct rds_rdma_args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaArgs {
    /// Which memory.
    pub cookie: Cookie,
    /// How far in it.
    pub remote_addr: u64,
    /// How many bytes.
    pub remote_len: u64,
    /// Where the program's pieces of memory are listed.
    pub local: u64,
    /// How many they are.
    pub local_count: u64,
    /// The flags.
    pub flags: u64,
    /// What the program calls the operation.
    pub token: u64,
}

impl RdmaArgs {
    /// The number of bytes.
    pub const SIZE: usize = 56;

    /// The most pieces of memory.
    pub const MAX_LOCAL: u64 = 1024;

    /// Reads the payload.
    ///
    /// # Errors
    /// It is not as long, or names no memory or too much.
    pub fn decode(payload: &[u8]) -> Result<Self, BadControl> {
        let [
            cookie,
            remote_addr,
            remote_len,
            local,
            local_count,
            flags,
            token,
        ] = numbers(payload)?;
        if local_count == 0 {
            return Err(BadControl::Empty);
        }
        if local_count > Self::MAX_LOCAL {
            return Err(BadControl::TooLong(local_count));
        }
        if remote_len > MAX_MESSAGE.into() {
            return Err(BadControl::TooLong(remote_len));
        }
        Ok(Self {
            cookie: Cookie::from_u64(cookie),
            remote_addr,
            remote_len,
            local,
            local_count,
            flags,
            token,
        })
    }

    /// Which way the bytes go.
    pub fn direction(&self) -> Direction {
        if self.flags & READWRITE == 0 {
            Direction::Read
        } else {
            Direction::Write
        }
    }

    /// The address that the operation has at the peer.
    pub fn addr(&self) -> u64 {
        self.remote_addr.wrapping_add(self.cookie.offset.into())
    }
}

/// An atomic operation on a number of the peer's: `struct rds_atomic_args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicArgs {
    /// Which memory.
    pub cookie: Cookie,
    /// Where the number is to be put that was there before.
    pub local_addr: u64,
    /// How far in the peer's memory.
    pub remote_addr: u64,
    /// What is done.
    pub op: AtomicOp,
    /// The flags.
    pub flags: u64,
    /// What the program calls the operation.
    pub token: u64,
}

impl AtomicArgs {
    /// The number of bytes.
    pub const SIZE: usize = 72;

    /// Reads the payload of one of the four kinds. Masks are taken that change nothing: no device
    /// has others.
    ///
    /// # Errors
    /// It is not as long, is of another kind, or an address is no multiple of 8.
    pub fn decode(payload: &[u8], kind: Kind) -> Result<Self, BadControl> {
        let [cookie, local_addr, remote_addr, a, b, c, d, flags, token] = numbers(payload)?;
        let op = match (kind, c, d) {
            (Kind::AtomicCompareSwap, ..) | (Kind::MaskedAtomicCompareSwap, u64::MAX, u64::MAX) => {
                AtomicOp::CompareSwap(a, b)
            }
            (Kind::AtomicFetchAdd, ..) => AtomicOp::FetchAdd(a),
            (Kind::MaskedAtomicFetchAdd, ..) if b == 0 => AtomicOp::FetchAdd(a),
            _ => return Err(BadControl::Masks),
        };
        let args = Self {
            cookie: Cookie::from_u64(cookie),
            local_addr,
            remote_addr,
            op,
            flags,
            token,
        };
        for addr in [local_addr, args.addr()] {
            if addr % 8 != 0 {
                return Err(BadControl::Unaligned(addr));
            }
        }
        Ok(args)
    }

    /// The address that the number has at the peer.
    pub fn addr(&self) -> u64 {
        self.remote_addr.wrapping_add(self.cookie.offset.into())
    }
}

/// An operation has ended: `struct rds_rdma_notify`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaStatus {
    /// What the program calls the operation.
    pub token: u64,
    /// How it ended.
    pub status: Status,
}

impl RdmaStatus {
    /// The number of bytes.
    pub const SIZE: usize = 16;

    /// The payload.
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut payload = [0; Self::SIZE];
        payload[..8].copy_from_slice(&self.token.to_ne_bytes());
        payload[8..12].copy_from_slice(&(self.status as i32).to_ne_bytes());
        payload
    }
}

/// Memory that peers may use no more: `struct rds_free_mr_args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeMrArgs {
    /// Which; `None` for all that nobody uses.
    pub cookie: Option<Cookie>,
    /// The flags.
    pub flags: u64,
}

impl FreeMrArgs {
    /// The number of bytes.
    pub const SIZE: usize = 16;

    /// Reads the payload.
    ///
    /// # Errors
    /// It is not as long.
    pub fn decode(payload: &[u8]) -> Result<Self, BadControl> {
        let [cookie, flags] = numbers(payload)?;
        Ok(Self {
            cookie: (cookie != 0).then(|| Cookie::from_u64(cookie)),
            flags,
        })
    }
}

/// Which times of a message's way through the host are wanted, in which order:
/// `struct rds_rx_trace_so`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyPoints {
    points: [u8; 3],
    count: u8,
}

impl LatencyPoints {
    /// The number of bytes.
    pub const SIZE: usize = 4;

    /// The number of bytes that the answer has.
    pub const REPORT_SIZE: usize = 32;

    /// Reads the payload.
    ///
    /// # Errors
    /// It is not as long, or names more or other points than there are.
    pub fn decode(payload: &[u8]) -> Result<Self, BadControl> {
        let &[count, a, b, c] = payload else {
            return Err(BadControl::Len(payload.len()));
        };
        let points = [a, b, c];
        if count > 3 {
            return Err(BadControl::Points(count));
        }
        let wanted = points.iter().take(count.into());
        if let Some(&point) = wanted.clone().find(|&&point| point > 2) {
            return Err(BadControl::Points(point));
        }
        Ok(Self { points, count })
    }

    /// The payload of the control message, `struct rds_cmsg_rx_trace`, given the three times in
    /// nanoseconds: until the message began, until it was whole, and until it was received.
    pub fn encode(&self, nanos: [u64; 3]) -> [u8; Self::REPORT_SIZE] {
        let mut payload = [0; Self::REPORT_SIZE];
        payload[0] = self.count;
        for (i, &point) in self.points.iter().take(self.count.into()).enumerate() {
            payload[1 + i] = point;
            let nanos = nanos.get(usize::from(point)).copied().unwrap_or_default();
            payload[8 + 8 * i..16 + 8 * i].copy_from_slice(&nanos.to_ne_bytes());
        }
        payload
    }
}

const ZCOPY_SIZE: usize = 36;

/// Memory that was sent without a copy is free: `struct rds_zcopy_cookies`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZcopyCompletion<'a>(&'a [u32]);

impl<'a> ZcopyCompletion<'a> {
    /// The number of bytes.
    pub const SIZE: usize = ZCOPY_SIZE;

    /// The most cookies in one.
    pub const MAX: usize = 8;

    /// Takes the first cookies, as many as fit; returns the rest as well.
    pub fn split(cookies: &'a [u32]) -> (Self, &'a [u32]) {
        let (first, rest) = cookies.split_at(cookies.len().min(Self::MAX));
        (Self(first), rest)
    }

    /// The payload.
    pub fn encode(&self) -> [u8; ZCOPY_SIZE] {
        let mut payload = [0; ZCOPY_SIZE];
        let (count, places) = payload.split_at_mut(4);
        // There are eight at most.
        let len = u32::try_from(self.0.len()).unwrap_or_default();
        count.copy_from_slice(&len.to_ne_bytes());
        for (place, cookie) in places.chunks_exact_mut(4).zip(self.0) {
            place.copy_from_slice(&cookie.to_ne_bytes());
        }
        payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(numbers: &[u64]) -> Vec<u8> {
        numbers
            .iter()
            .flat_map(|number| number.to_ne_bytes())
            .collect()
    }

    /// U-W13: no other number of bytes is taken.
    #[test]
    fn every_payload_has_its_size() {
        let all = payload(&[8; 12]);
        for len in 0..all.len() {
            let bytes = &all[..len];
            assert_eq!(GetMrArgs::decode(bytes).is_ok(), len == 32);
            assert_eq!(RdmaArgs::decode(bytes).is_ok(), len == 56);
            let atomic = AtomicArgs::decode(bytes, Kind::AtomicFetchAdd);
            assert_eq!(atomic.is_ok(), len == 72);
            assert_eq!(FreeMrArgs::decode(bytes).is_ok(), len == 16);
        }
        assert_eq!([RdmaStatus::SIZE, LatencyPoints::REPORT_SIZE], [16, 32]);
        assert_eq!(GetMrArgs::decode(&all[..31]), Err(BadControl::Len(31)));
    }

    /// L-R11
    #[test]
    fn memory_is_not_empty_and_not_too_long() {
        let decode = |addr, len| GetMrArgs::decode(&payload(&[addr, len, 7, 9]));
        let page = 4096;
        assert_eq!(decode(page, 0), Err(BadControl::Empty));
        assert_eq!(decode(page, 1 << 32), Err(BadControl::Empty));
        assert_eq!(decode(u64::MAX, 2), Err(BadControl::Empty));
        let long = (1 << 20) + page;
        assert!(decode(page, long).is_ok() && decode(page + 1, 1 << 20).is_ok());
        assert_eq!(decode(page, long + 1), Err(BadControl::TooLong(long + 1)));
        assert_eq!(decode(page + 1, long), Err(BadControl::TooLong(long)));
        let args = decode(1, 2).unwrap();
        assert_eq!((args.cookie_addr, args.flags), (7, 9));
    }

    /// L-R05
    #[test]
    fn an_operation_has_pieces_of_memory() {
        let decode =
            |len, count| RdmaArgs::decode(&payload(&[0x100_0000_0300, 5, len, 1, count, 3, 9]));
        assert_eq!(decode(8, 0), Err(BadControl::Empty));
        assert_eq!(decode(8, 1025), Err(BadControl::TooLong(1025)));
        let long = (1 << 20) + 1;
        assert_eq!(decode(long, 1), Err(BadControl::TooLong(long)));
        let args = decode(1 << 20, 1024).unwrap();
        assert_eq!((args.cookie.rkey, args.addr()), (0x300, 0x105));
        assert_eq!((args.direction(), args.token), (Direction::Write, 9));
    }

    /// L-R12
    #[test]
    fn masks_are_taken_that_change_nothing() {
        let decode = |kind, operands: [u64; 4], local, remote| {
            let [a, b, c, d] = operands;
            AtomicArgs::decode(&payload(&[0x300, local, remote, a, b, c, d, 0, 0]), kind)
        };
        let op = |kind, operands| decode(kind, operands, 8, 16).map(|args| args.op);
        let all = u64::MAX;
        let swap = Ok(AtomicOp::CompareSwap(1, 2));
        let add = Ok(AtomicOp::FetchAdd(1));
        assert_eq!(op(Kind::AtomicCompareSwap, [1, 2, 3, 4]), swap);
        assert_eq!(op(Kind::MaskedAtomicCompareSwap, [1, 2, all, all]), swap);
        assert_eq!(op(Kind::AtomicFetchAdd, [1, 2, 3, 4]), add);
        assert_eq!(op(Kind::MaskedAtomicFetchAdd, [1, 0, 3, 4]), add);
        let masks = Err(BadControl::Masks);
        assert_eq!(op(Kind::MaskedAtomicCompareSwap, [1, 2, all, 1]), masks);
        assert_eq!(op(Kind::MaskedAtomicFetchAdd, [1, 1, 0, 0]), masks);
        assert_eq!(op(Kind::RdmaArgs, [1, 2, 3, 4]), masks);
        for (local, remote, bad) in [(9, 16, 9), (8, 17, 17)] {
            let args = decode(Kind::AtomicFetchAdd, [0; 4], local, remote);
            assert_eq!(args, Err(BadControl::Unaligned(bad)));
        }
    }

    /// L-S17
    #[test]
    fn times_are_told_in_the_order_they_were_asked_for() {
        let points = LatencyPoints::decode(&[2, 2, 0, 9]).unwrap();
        let told = points.encode([10, 20, 30]);
        assert_eq!(told[..8], [2, 2, 0, 0, 0, 0, 0, 0]);
        assert_eq!(told[8..], payload(&[30, 10, 0]));
        let bad = LatencyPoints::decode(&[1, 3, 0, 0]);
        assert_eq!(bad, Err(BadControl::Points(3)));
        let bad = LatencyPoints::decode(&[4, 0, 0, 0]);
        assert_eq!(bad, Err(BadControl::Points(4)));
        assert_eq!(LatencyPoints::decode(&[0; 5]), Err(BadControl::Len(5)));
    }

    /// L-S19
    #[test]
    fn eight_cookies_are_told_at_a_time() {
        let cookies = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        let (first, rest) = ZcopyCompletion::split(&cookies);
        let told = first.encode();
        assert_eq!(
            told[..8],
            [8_u32.to_ne_bytes(), 1_u32.to_ne_bytes()].concat()
        );
        assert_eq!(told[32..], 8_u32.to_ne_bytes());
        assert_eq!(rest, [9]);
        let (second, rest) = ZcopyCompletion::split(rest);
        assert_eq!(second.encode()[..4], 1_u32.to_ne_bytes());
        assert!(rest.is_empty());
    }

    #[test]
    fn the_end_of_an_operation_has_token_and_status() {
        let status = RdmaStatus {
            token: 0x1_0000_0002,
            status: Status::Dropped,
        };
        let told = status.encode();
        assert_eq!(told[..8], 0x1_0000_0002_u64.to_ne_bytes());
        assert_eq!(told[8..], [3_i32.to_ne_bytes(), [0; 4]].concat());
        let free = |cookie| FreeMrArgs::decode(&payload(&[cookie, 4])).unwrap().cookie;
        assert_eq!((free(0), free(5)), (None, Some(Cookie::from_u64(5))));
    }
}
