//! Setters of attributes, each on the transports and in the states with the attribute.
//!
//! The table of the InfiniBand specification in the form of types; `legal.rs` has the same table as
//! data, and a test there compares the two.

use ibverbs_sys as ffi;

use super::{AlternatePath, Attributes, MigState, set};
use crate::{
    access::RemoteAccess,
    ah::AddressVector,
    bounded::{AckTimeout, RetryCount, RnrRetry, RnrTimer},
    mtu::Mtu,
    qp::{
        state::{Init, QpState, Rtr, Rts, Sqd},
        transport::{Datagram, Partitioned, RawPacket, Requester, Responder, Routed, XrcRecv},
    },
};

/// `States [any Trait] { fn name(argument: type) { BIT, field = value, … } }`, or `[only Transport]`.
macro_rules! setters {
    ($($($state:ident)+ [$which:ident $transport:ident] $body:tt)*) => {
        $($(setter! { [$which] $transport, $state $body })+)*
    };
}

macro_rules! setter {
    ([any] $transports:ident, $state:ident {
        $(#[$doc:meta])*
        fn $name:ident($arg:ident: $ty:ty) { $bit:ident, $($field:ident = $value:expr),+ }
    }) => {
        impl<T: $transports> Attributes<T, $state> {
            $(#[$doc])*
            #[must_use]
            pub fn $name(mut self, $arg: $ty) -> Self {
                set!(self, $bit, $($field = $value),+);
                self
            }
        }
    };
    ([only] $transport:ident, $state:ident {
        $(#[$doc:meta])*
        fn $name:ident($arg:ident: $ty:ty) { $bit:ident, $($field:ident = $value:expr),+ }
    }) => {
        impl Attributes<$transport, $state> {
            $(#[$doc])*
            #[must_use]
            pub fn $name(mut self, $arg: $ty) -> Self {
                set!(self, $bit, $($field = $value),+);
                self
            }
        }
    };
}

setters! {
    Init Rtr Sqd [any Partitioned] {
        /// The index of the queue pair's P_Key in the port's table; 0 if never set.
        #[doc(alias = "IBV_QP_PKEY_INDEX")]
        fn pkey_index(index: u16) { IBV_QP_PKEY_INDEX, pkey_index = index }
    }

    Init [any Partitioned] {
        /// The port of the queue pair, counting from 1.
        #[doc(alias = "IBV_QP_PORT")]
        fn port(port_num: u8) { IBV_QP_PORT, port_num = port_num }
    }

    Sqd [any Requester] {
        /// Moves the queue pair to another port, counting from 1.
        #[doc(alias = "IBV_QP_PORT")]
        fn port(port_num: u8) { IBV_QP_PORT, port_num = port_num }
    }

    Sqd [only XrcRecv] {
        /// Moves the queue pair to another port, counting from 1.
        #[doc(alias = "IBV_QP_PORT")]
        fn port(port_num: u8) { IBV_QP_PORT, port_num = port_num }
    }

    Init Rtr Rts Sqd [any Routed] {
        /// The access of the peer, to memory whose region allows the access, too.
        #[doc(alias = "IBV_QP_ACCESS_FLAGS")]
        fn access(access: RemoteAccess) { IBV_QP_ACCESS_FLAGS, qp_access_flags = access.rights() }
    }

    Init Rtr Rts Sqd [any Datagram] {
        /// The Q_Key required in received datagrams.
        #[doc(alias = "IBV_QP_QKEY")]
        fn qkey(qkey: u32) { IBV_QP_QKEY, qkey = qkey }
    }

    Rtr [any Routed] {
        /// Maximum payload of a packet; 1024 bytes if not set.
        #[doc(alias = "IBV_QP_PATH_MTU")]
        fn mtu(mtu: Mtu) { IBV_QP_PATH_MTU, path_mtu = mtu.into() }
    }

    Sqd [any Routed] {
        /// Another way to the peer. The send queue must be drained by now.
        #[doc(alias = "IBV_QP_AV")]
        fn path(vector: &AddressVector) { IBV_QP_AV, ah_attr = vector.to_raw() }
    }

    Rtr Rts Sqd [any Routed] {
        /// A second way to the peer.
        #[doc(alias = "IBV_QP_ALT_PATH")]
        fn alternate_path(path: &AlternatePath) {
            IBV_QP_ALT_PATH,
            alt_ah_attr = path.vector.to_raw(),
            alt_pkey_index = path.pkey_index,
            alt_port_num = path.vector.port_num,
            alt_timeout = path.timeout.get()
        }
    }

    Rts Sqd [any Routed] {
        /// Makes the queue pair migrate to its alternate path, or get ready to.
        #[doc(alias = "IBV_QP_PATH_MIG_STATE")]
        fn path_mig_state(state: MigState) {
            IBV_QP_PATH_MIG_STATE,
            path_mig_state = ffi::ibv_mig_state(state.0)
        }
    }

    Rtr Sqd [any Responder] {
        /// Maximum number of the peer's RDMA reads and atomics served at once; 1 if never set.
        #[doc(alias = "IBV_QP_MAX_DEST_RD_ATOMIC")]
        fn max_dest_rd_atomic(count: u8) { IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic = count }
    }

    Rtr Rts Sqd [any Responder] {
        /// Delay requested from the peer when no receive is posted (RNR NAK); code 12, 640 µs, if never
        /// set.
        #[doc(alias = "IBV_QP_MIN_RNR_TIMER")]
        fn min_rnr_timer(timer: RnrTimer) { IBV_QP_MIN_RNR_TIMER, min_rnr_timer = timer.get() }
    }

    Rts Sqd [any Requester] {
        /// Timeout for an acknowledgement; code 14, about 67 ms, if never set.
        #[doc(alias = "IBV_QP_TIMEOUT")]
        fn timeout(timeout: AckTimeout) { IBV_QP_TIMEOUT, timeout = timeout.get() }
    }

    Rts Sqd [only XrcRecv] {
        /// Timeout for an acknowledgement; code 14, about 67 ms, if never set.
        #[doc(alias = "IBV_QP_TIMEOUT")]
        fn timeout(timeout: AckTimeout) { IBV_QP_TIMEOUT, timeout = timeout.get() }
    }

    Rts Sqd [any Requester] {
        /// Maximum number of retransmissions of an unacknowledged packet; 7 if never set.
        #[doc(alias = "IBV_QP_RETRY_CNT")]
        fn retry_count(count: RetryCount) { IBV_QP_RETRY_CNT, retry_cnt = count.get() }
    }

    Rts Sqd [any Requester] {
        /// Maximum number of retries when the peer is not ready; unlimited if never set.
        #[doc(alias = "IBV_QP_RNR_RETRY")]
        fn rnr_retry(count: RnrRetry) { IBV_QP_RNR_RETRY, rnr_retry = count.get() }
    }

    Rts Sqd [any Requester] {
        /// Maximum number of outstanding RDMA reads and atomics of this side; 1 if never set.
        #[doc(alias = "IBV_QP_MAX_QP_RD_ATOMIC")]
        fn max_rd_atomic(count: u8) { IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic = count }
    }

    Rts [any Partitioned] {
        /// The expected current state: in any other state, the transition fails.
        #[doc(alias = "IBV_QP_CUR_STATE")]
        fn cur_state(state: QpState) {
            IBV_QP_CUR_STATE,
            cur_qp_state = ffi::ibv_qp_state(state.0)
        }
    }

    Rts [only RawPacket] {
        /// Maximum send rate, in kbit/s; 0 for no limit. See also
        /// [`set_rate_limit`](crate::QueuePair::set_rate_limit).
        #[doc(alias = "IBV_QP_RATE_LIMIT")]
        fn rate_limit(kbits: u32) { IBV_QP_RATE_LIMIT, rate_limit = kbits }
    }
}
