//! Payloads of control messages and socket options, in the layouts of `linux/rds.h`, in host byte
//! order.

use std::fmt;

use super::{
    connection::{AtomicOp, Direction, Status},
    wire::{Cookie, MAX_MESSAGE, Reader},
};

/// Socket option and control message level `SOL_RDS`.
pub const LEVEL: i32 = 276;

/// Type of a control message: `cmsg_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(i32)]
pub enum Kind {
    /// RDMA read or write of the peer's memory: [`RdmaArgs`].
    RdmaArgs = 1,
    /// Memory exported to the receiver: a [`Cookie`], 8 bytes.
    RdmaDestination = 2,
    /// Memory to register and export to the receiver: [`GetMrArgs`].
    RdmaMap = 3,
    /// Completion of an operation: [`RdmaStatus`].
    RdmaStatus = 4,
    /// Ports no longer congested: a bit mask of 8 bytes.
    CongestionUpdate = 5,
    /// Atomic fetch-and-add: [`AtomicArgs`].
    AtomicFetchAdd = 6,
    /// Atomic compare-and-swap: [`AtomicArgs`].
    AtomicCompareSwap = 7,
    /// Masked fetch-and-add, with carries confined to fields: [`AtomicArgs`].
    MaskedAtomicFetchAdd = 8,
    /// Masked compare-and-swap of selected bits: [`AtomicArgs`].
    MaskedAtomicCompareSwap = 9,
    /// Latency of the receive path: see [`LatencyPoints`].
    RxPathLatency = 11,
    /// Cookie of a zero-copy message, 4 bytes.
    ZcopyCookie = 12,
    /// Completion of zero-copy messages: [`ZcopyCompletion`].
    ZcopyCompletion = 13,
}

/// `READWRITE`: grants write access, or selects an RDMA write.
pub const READWRITE: u64 = 0x01;
/// `FENCE`: the message waits for the completion of the operation.
pub const FENCE: u64 = 0x02;
/// `INVALIDATE`: access ends immediately.
pub const INVALIDATE: u64 = 0x04;
/// `USE_ONCE`: access ends after one use.
pub const USE_ONCE: u64 = 0x08;
/// `DONTWAIT`.
pub const DONTWAIT: u64 = 0x10;
/// `NOTIFY_ME`: requests a notification for the operation.
pub const NOTIFY_ME: u64 = 0x20;
/// `SILENT`: an empty message is not sent after its operations.
pub const SILENT: u64 = 0x40;
/// `REMOTE_COMPLETE`: success is notified after the peer's acknowledgement.
pub const REMOTE_COMPLETE: u64 = 0x80;

/// Why a payload is rejected, with the `errno` of the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadControl {
    /// The payload has the wrong size: `EINVAL`.
    Len(usize),
    /// Zero bytes, zero pieces, or a range beyond the address space: `EINVAL`.
    Empty,
    /// Too many bytes or pieces: `EMSGSIZE`.
    TooLong(u64),
    /// An address is not a multiple of 8: `EFAULT`.
    Unaligned(u64),
    /// The masks require masked atomics, unsupported by devices: `EOPNOTSUPP`.
    Masks,
    /// An unknown measuring point, or too many of them: `EFAULT`.
    Points(u8),
}

impl fmt::Display for BadControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Len(len) => write!(
                f,
                "a payload of {len} bytes has the wrong size for this control message"
            ),
            Self::Empty => write!(f, "the memory range is empty or beyond the address space"),
            Self::TooLong(len) => write!(f, "{len} bytes or pieces exceed the limit"),
            Self::Unaligned(addr) => write!(f, "address {addr:#x} is not a multiple of 8"),
            Self::Masks => write!(
                f,
                "masked atomic operations are not supported; use masks without effect"
            ),
            Self::Points(point) => write!(
                f,
                "{point} is not a measuring point; use 0 to 2, at most 3 of them"
            ),
        }
    }
}

/// Reads as [`Display`](fmt::Display): `unwrap` and `fn main() -> Result` print it.
impl fmt::Debug for BadControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for BadControl {}

/// Reads `N` integers of 8 bytes.
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

/// Memory to export: `struct rds_get_mr_args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetMrArgs {
    /// Start address.
    pub addr: u64,
    /// Length in bytes, at most 1 MiB and a page, rounded to pages.
    pub len: u64,
    /// Address for the resulting cookie, or 0.
    pub cookie_addr: u64,
    /// Flags. Unknown ones are ignored.
    pub flags: u64,
}

impl GetMrArgs {
    /// Size in bytes.
    pub const SIZE: usize = 32;

    /// Maximum length, rounded to pages: a message may start in the middle of a page.
    const MAX: u64 = MAX_MESSAGE as u64 + 4096;

    /// Decodes the payload.
    ///
    /// # Errors
    /// The size is wrong, or the range is empty, too long or beyond the address space.
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

/// An RDMA operation: `struct rds_rdma_args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaArgs {
    /// Cookie of the peer's memory.
    pub cookie: Cookie,
    /// Offset in the peer's memory.
    pub remote_addr: u64,
    /// Length in bytes.
    pub remote_len: u64,
    /// Address of the list of local pieces.
    pub local: u64,
    /// Number of local pieces.
    pub local_count: u64,
    /// Flags.
    pub flags: u64,
    /// User token, returned in the notification.
    pub token: u64,
}

impl RdmaArgs {
    /// Size in bytes.
    pub const SIZE: usize = 56;

    /// Maximum number of local pieces.
    pub const MAX_LOCAL: u64 = 1024;

    /// Decodes the payload.
    ///
    /// # Errors
    /// The size is wrong, or the operation has no piece, too many pieces or too many bytes.
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

    /// Direction of the transfer.
    pub fn direction(&self) -> Direction {
        if self.flags & READWRITE == 0 {
            Direction::Read
        } else {
            Direction::Write
        }
    }

    /// Target address of the operation.
    pub fn addr(&self) -> u64 {
        self.remote_addr.wrapping_add(self.cookie.offset.into())
    }
}

/// An atomic operation: `struct rds_atomic_args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicArgs {
    /// Cookie of the peer's memory.
    pub cookie: Cookie,
    /// Address for the previous value.
    pub local_addr: u64,
    /// Offset in the peer's memory.
    pub remote_addr: u64,
    /// Operation and operands.
    pub op: AtomicOp,
    /// Flags.
    pub flags: u64,
    /// User token, returned in the notification.
    pub token: u64,
}

impl AtomicArgs {
    /// Size in bytes.
    pub const SIZE: usize = 72;

    /// Decodes the payload of one of the four atomic kinds. Masked kinds are accepted only if the
    /// masks have no effect, because devices do not support masked atomics.
    ///
    /// # Errors
    /// The size or the kind is wrong, or an address is not a multiple of 8.
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

    /// Target address of the operation.
    pub fn addr(&self) -> u64 {
        self.remote_addr.wrapping_add(self.cookie.offset.into())
    }
}

/// Completion of an operation: `struct rds_rdma_notify`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaStatus {
    /// User token of the operation.
    pub token: u64,
    /// Status of the operation.
    pub status: Status,
}

impl RdmaStatus {
    /// Size in bytes.
    pub const SIZE: usize = 16;

    /// Encodes the payload.
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut payload = [0; Self::SIZE];
        payload[..8].copy_from_slice(&self.token.to_ne_bytes());
        payload[8..12].copy_from_slice(&(self.status as i32).to_ne_bytes());
        payload
    }
}

/// Memory to take back: `struct rds_free_mr_args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeMrArgs {
    /// Cookie of the memory; `None` for all unused memory.
    pub cookie: Option<Cookie>,
    /// Flags.
    pub flags: u64,
}

impl FreeMrArgs {
    /// Size in bytes.
    pub const SIZE: usize = 16;

    /// Decodes the payload.
    ///
    /// # Errors
    /// The size is wrong.
    pub fn decode(payload: &[u8]) -> Result<Self, BadControl> {
        let [cookie, flags] = numbers(payload)?;
        Ok(Self {
            cookie: (cookie != 0).then(|| Cookie::from_u64(cookie)),
            flags,
        })
    }
}

/// Measuring points of the receive path, in the order requested: `struct rds_rx_trace_so`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyPoints {
    points: [u8; 3],
    count: u8,
}

impl LatencyPoints {
    /// Size in bytes.
    pub const SIZE: usize = 4;

    /// Size of the encoded report in bytes.
    pub const REPORT_SIZE: usize = 32;

    /// Decodes the payload.
    ///
    /// # Errors
    /// The size is wrong, or the payload names too many or unknown points.
    pub fn decode(payload: &[u8]) -> Result<Self, BadControl> {
        let &[count, a, b, c] = payload else {
            return Err(BadControl::Len(payload.len()));
        };
        let points = [a, b, c];
        if count > 3 {
            return Err(BadControl::Points(count));
        }
        let requested = points.iter().take(count.into());
        if let Some(&point) = requested.clone().find(|&&point| point > 2) {
            return Err(BadControl::Points(point));
        }
        Ok(Self { points, count })
    }

    /// Encodes the control message, `struct rds_cmsg_rx_trace`, from the three latencies in
    /// nanoseconds: start of reassembly, reassembly, and receive queue.
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

/// Completion of zero-copy messages: `struct rds_zcopy_cookies`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZcopyCompletion<'a>(&'a [u32]);

impl<'a> ZcopyCompletion<'a> {
    /// Size in bytes.
    pub const SIZE: usize = ZCOPY_SIZE;

    /// Maximum number of cookies.
    pub const MAX: usize = 8;

    /// Takes up to [`MAX`](Self::MAX) cookies from the front; returns the rest, too.
    pub fn split(cookies: &'a [u32]) -> (Self, &'a [u32]) {
        let (first, rest) = cookies.split_at(cookies.len().min(Self::MAX));
        (Self(first), rest)
    }

    /// Encodes the payload.
    pub fn encode(&self) -> [u8; ZCOPY_SIZE] {
        let mut payload = [0; ZCOPY_SIZE];
        let (count, slots) = payload.split_at_mut(4);
        // At most eight.
        let len = u32::try_from(self.0.len()).unwrap_or_default();
        count.copy_from_slice(&len.to_ne_bytes());
        for (slot, cookie) in slots.chunks_exact_mut(4).zip(self.0) {
            slot.copy_from_slice(&cookie.to_ne_bytes());
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

    /// Other sizes are rejected.
    #[test]
    fn control_payloads_have_fixed_sizes() {
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

    #[test]
    fn get_mr_args_reject_empty_and_long_ranges() {
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

    #[test]
    fn rdma_args_limit_pieces_and_length() {
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

    #[test]
    fn atomic_args_accept_only_trivial_masks() {
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

    #[test]
    fn latency_report_keeps_requested_order() {
        let points = LatencyPoints::decode(&[2, 2, 0, 9]).unwrap();
        let encoded = points.encode([10, 20, 30]);
        assert_eq!(encoded[..8], [2, 2, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encoded[8..], payload(&[30, 10, 0]));
        let bad = LatencyPoints::decode(&[1, 3, 0, 0]);
        assert_eq!(bad, Err(BadControl::Points(3)));
        let bad = LatencyPoints::decode(&[4, 0, 0, 0]);
        assert_eq!(bad, Err(BadControl::Points(4)));
        assert_eq!(LatencyPoints::decode(&[0; 5]), Err(BadControl::Len(5)));
    }

    #[test]
    fn zcopy_completion_holds_eight_cookies() {
        let cookies = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        let (first, rest) = ZcopyCompletion::split(&cookies);
        let encoded = first.encode();
        assert_eq!(
            encoded[..8],
            [8_u32.to_ne_bytes(), 1_u32.to_ne_bytes()].concat()
        );
        assert_eq!(encoded[32..], 8_u32.to_ne_bytes());
        assert_eq!(rest, [9]);
        let (second, rest) = ZcopyCompletion::split(rest);
        assert_eq!(second.encode()[..4], 1_u32.to_ne_bytes());
        assert!(rest.is_empty());
    }

    #[test]
    fn rdma_status_encodes_token_and_status() {
        let status = RdmaStatus {
            token: 0x1_0000_0002,
            status: Status::Dropped,
        };
        let encoded = status.encode();
        assert_eq!(encoded[..8], 0x1_0000_0002_u64.to_ne_bytes());
        assert_eq!(encoded[8..], [3_i32.to_ne_bytes(), [0; 4]].concat());
        let free = |cookie| FreeMrArgs::decode(&payload(&[cookie, 4])).unwrap().cookie;
        assert_eq!((free(0), free(5)), (None, Some(Cookie::from_u64(5))));
    }
}
