//! Automatic path migration: an alternate path to the peer, used after a failure of the first.

use ibverbs_sys::ibv_mig_state;

use crate::{ah::AddressVector, bounded::AckTimeout, named::named};

/// A second path to the peer, for automatic migration of a connection.
///
/// # References
/// [ibv_modify_qp(3)](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlternatePath {
    /// The address vector, with the local port.
    pub vector: AddressVector,
    /// The entry of the port's P_Key table.
    pub pkey_index: u16,
    /// Timeout for an acknowledgement on this path.
    pub timeout: AckTimeout,
}

named! {
    /// `ibv_mig_state`—The progress of a connection's migration to its [`AlternatePath`].
    #[doc(alias = "ibv_mig_state")]
    MigState(u32) {
        /// Migrated, or without another path. Setting this state makes the connection migrate.
        #[doc(alias = "IBV_MIG_MIGRATED")]
        MIGRATED = ibv_mig_state::IBV_MIG_MIGRATED.0;
        /// Asks the peer to get ready for migration.
        #[doc(alias = "IBV_MIG_REARM")]
        REARM = ibv_mig_state::IBV_MIG_REARM.0;
        /// Both sides are ready: a failure of the path triggers migration.
        #[doc(alias = "IBV_MIG_ARMED")]
        ARMED = ibv_mig_state::IBV_MIG_ARMED.0;
    }
}
