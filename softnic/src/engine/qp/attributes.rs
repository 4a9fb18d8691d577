//! Attributes and states of queue pairs.

use std::ops::BitOr;

use super::super::{access::Access, path::Path};
use crate::wire::Transport;

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Initial state; accepts no requests.
    Reset,
    /// Accepts receives.
    Init,
    /// Receives messages.
    Rtr,
    /// Sends messages as well.
    Rts,
    /// Starts no requests, but finishes the started ones.
    Sqd,
    /// The send queue of an unreliable queue pair has failed.
    Sqe,
    /// All requests are flushed.
    Err,
}

/// Transport service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpKind {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagrams.
    Ud,
    /// Reliable datagrams without order, in frames of softnic's own.
    Srd,
    /// Extended reliable connection, the sending end.
    XrcSend,
    /// Extended reliable connection, the receiving end, without queues.
    XrcRecv,
    /// Dynamically connected, the sending end, in frames of softnic's own.
    Dci,
    /// Dynamically connected, the receiving end of any number of initiators.
    Dct,
}

impl QpKind {
    /// Whether requests are acknowledged.
    pub(in crate::engine) fn is_reliable(self) -> bool {
        !matches!(self, Self::Uc | Self::Ud | Self::Srd)
    }

    /// Transport in opcodes.
    pub(super) fn transport(self) -> Transport {
        match self {
            Self::Rc => Transport::Rc,
            Self::Uc => Transport::Uc,
            Self::Ud => Transport::Ud,
            Self::Srd => Transport::Srd,
            Self::XrcSend | Self::XrcRecv => Transport::Xrc,
            Self::Dci | Self::Dct => Transport::Dc,
        }
    }
}

/// Attributes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttributes {
    /// Rights of the peer.
    pub access: Access,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// Port, 1.
    pub port: u8,
    /// Q_Key of datagrams.
    pub qkey: u32,
    /// Path to the peer.
    pub path: Option<Path>,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// Number of the peer's queue pair.
    pub dest_qp: u32,
    /// Sequence number of the first packet from the peer.
    pub rq_psn: u32,
    /// Sequence number of the first packet to the peer.
    pub sq_psn: u32,
    /// Acknowledgement timeout, 4.096 µs · 2^timeout; 0 disables the timer.
    pub timeout: u8,
    /// Retries after a timeout or a missing packet, 0 to 7.
    pub retry_count: u8,
    /// Retries after an RNR NAK, 0 to 6; 7 retries without limit.
    pub rnr_retry: u8,
    /// Code of the delay of a sender after an RNR NAK.
    pub min_rnr_timer: u8,
    /// Maximum number of reads and atomics in flight to the peer.
    pub max_rd_atomic: u8,
    /// Maximum number of reads and atomics in flight from the peer.
    pub max_dest_rd_atomic: u8,
    /// Whether the end of draining in [`State::Sqd`] raises an event.
    pub sqd_notify: bool,
}

/// Maximum number of reads and atomics in flight of a queue pair, in each direction.
pub const MAX_RD_ATOMIC: u8 = 128;

impl QpAttributes {
    /// The attributes of a new queue pair. Datagrams have no MTU of a path.
    pub(super) fn new(kind: QpKind, port_mtu: u32) -> Self {
        let new = Self::default();
        match kind {
            QpKind::Ud => Self {
                mtu: port_mtu,
                ..new
            },
            // Regions alone have rights, and a receiver that is not ready is asked again without limit.
            QpKind::Srd => Self {
                mtu: port_mtu,
                access: Access::REMOTE_READ | Access::REMOTE_WRITE,
                rnr_retry: 7,
                ..new
            },
            // No attribute of a target limits the reads of its initiators.
            QpKind::Dct => Self {
                max_dest_rd_atomic: MAX_RD_ATOMIC,
                ..new
            },
            _ => new,
        }
    }
}

impl Default for QpAttributes {
    fn default() -> Self {
        Self {
            access: Access::default(),
            pkey_index: 0,
            port: 1,
            qkey: 0,
            path: None,
            mtu: 1024,
            dest_qp: 0,
            rq_psn: 0,
            sq_psn: 0,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            min_rnr_timer: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            sqd_notify: false,
        }
    }
}

/// Set of attributes; the values of `ibv_qp_attr_mask`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeMask(
    /// The flags.
    pub u32,
);

impl AttributeMask {
    /// The state.
    pub const STATE: Self = Self(1);
    /// The state assumed by the caller, which compares it with the state of the queue pair.
    pub const CUR_STATE: Self = Self(1 << 1);
    /// [`QpAttributes::sqd_notify`].
    pub const SQD_NOTIFY: Self = Self(1 << 2);
    /// [`QpAttributes::access`].
    pub const ACCESS: Self = Self(1 << 3);
    /// [`QpAttributes::pkey_index`].
    pub const PKEY_INDEX: Self = Self(1 << 4);
    /// [`QpAttributes::port`].
    pub const PORT: Self = Self(1 << 5);
    /// [`QpAttributes::qkey`].
    pub const QKEY: Self = Self(1 << 6);
    /// [`QpAttributes::path`].
    pub const PATH: Self = Self(1 << 7);
    /// [`QpAttributes::mtu`].
    pub const MTU: Self = Self(1 << 8);
    /// [`QpAttributes::timeout`].
    pub const TIMEOUT: Self = Self(1 << 9);
    /// [`QpAttributes::retry_count`].
    pub const RETRY_COUNT: Self = Self(1 << 10);
    /// [`QpAttributes::rnr_retry`].
    pub const RNR_RETRY: Self = Self(1 << 11);
    /// [`QpAttributes::rq_psn`].
    pub const RQ_PSN: Self = Self(1 << 12);
    /// [`QpAttributes::max_rd_atomic`].
    pub const MAX_RD_ATOMIC: Self = Self(1 << 13);
    /// [`QpAttributes::min_rnr_timer`].
    pub const MIN_RNR_TIMER: Self = Self(1 << 15);
    /// [`QpAttributes::sq_psn`].
    pub const SQ_PSN: Self = Self(1 << 16);
    /// [`QpAttributes::max_dest_rd_atomic`].
    pub const MAX_DEST_RD_ATOMIC: Self = Self(1 << 17);
    /// [`QpAttributes::dest_qp`].
    pub const DEST_QP: Self = Self(1 << 20);

    /// Whether all of `other`'s attributes are in the set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for AttributeMask {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl QpAttributes {
    /// Copies the attributes of a set.
    pub(super) fn merge(&mut self, from: &Self, mask: AttributeMask) {
        macro_rules! take {
            ($($flag:ident: $field:ident;)*) => {$(
                if mask.contains(AttributeMask::$flag) {
                    self.$field = from.$field;
                }
            )*};
        }
        take! {
            SQD_NOTIFY: sqd_notify;
            ACCESS: access;
            PKEY_INDEX: pkey_index;
            PORT: port;
            QKEY: qkey;
            PATH: path;
            MTU: mtu;
            TIMEOUT: timeout;
            RETRY_COUNT: retry_count;
            RNR_RETRY: rnr_retry;
            RQ_PSN: rq_psn;
            MAX_RD_ATOMIC: max_rd_atomic;
            MIN_RNR_TIMER: min_rnr_timer;
            SQ_PSN: sq_psn;
            MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            DEST_QP: dest_qp;
        }
    }

    /// Describes the first attribute in `mask` with an invalid value.
    pub(super) fn fault(&self, mask: AttributeMask) -> Option<&'static str> {
        let has = |flag| mask.contains(flag);
        let mtu_is_known = matches!(self.mtu, 256 | 512 | 1024 | 2048 | 4096);
        let path_is_usable = self.path.is_some_and(|path| path.header().is_ok());
        match () {
            () if has(AttributeMask::PORT) && self.port != 1 => Some("the only port is 1"),
            () if has(AttributeMask::PKEY_INDEX) && self.pkey_index != 0 => {
                Some("the only partition key has index 0")
            }
            () if has(AttributeMask::MTU) && !mtu_is_known => {
                Some("the MTU is not 256, 512, 1024, 2048 or 4096")
            }
            () if has(AttributeMask::PATH) && !path_is_usable => {
                Some("the path has no address, or two of different families")
            }
            () if has(AttributeMask::TIMEOUT) && self.timeout > 31 => {
                Some("the code of the timeout exceeds 31")
            }
            () if has(AttributeMask::RETRY_COUNT) && self.retry_count > 7 => {
                Some("the retry count exceeds 7")
            }
            () if has(AttributeMask::RNR_RETRY) && self.rnr_retry > 7 => {
                Some("the RNR retry count exceeds 7")
            }
            () if has(AttributeMask::MIN_RNR_TIMER) && self.min_rnr_timer > 31 => {
                Some("the code of the RNR timer exceeds 31")
            }
            () if has(AttributeMask::MAX_RD_ATOMIC) && self.max_rd_atomic > MAX_RD_ATOMIC => {
                Some("the number of reads and atomics to the peer exceeds 128")
            }
            () if has(AttributeMask::MAX_DEST_RD_ATOMIC)
                && self.max_dest_rd_atomic > MAX_RD_ATOMIC =>
            {
                Some("the number of reads and atomics from the peer exceeds 128")
            }
            () if has(AttributeMask::ACCESS) && !Access::ALL.contains(self.access) => {
                Some("the rights contain an unknown one")
            }
            () => None,
        }
    }
}
