//! Automatic path migration: a second way to the peer, for when the first one fails.

use ibverbs_sys::ibv_mig_state;

use crate::{ah::AddressVector, bounded::AckTimeout, named::named};

/// A second way to the peer, which a connection can migrate to by itself.
///
/// # References
/// [ibv_modify_qp(3)](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlternatePath {
    /// The way, and the port it begins at.
    pub vector: AddressVector,
    /// The entry of the port's P_Key table.
    pub pkey_index: u16,
    /// How long to wait for an acknowledgement on it.
    pub timeout: AckTimeout,
}

named! {
    /// `ibv_mig_state`—How far a connection is with migrating to its [`AlternatePath`].
    #[doc(alias = "ibv_mig_state")]
    MigState(u32) {
        /// It has migrated, or there is no other path. Setting it makes the connection migrate.
        MIGRATED = ibv_mig_state::IBV_MIG_MIGRATED.0;
        /// It asks the peer to be ready to migrate.
        REARM = ibv_mig_state::IBV_MIG_REARM.0;
        /// Both sides are ready: it migrates when the path fails.
        ARMED = ibv_mig_state::IBV_MIG_ARMED.0;
    }
}
