//! A link that is cut as if somewhere on the way: no device and no address of a host changes state,
//! but the host drops whatever arrives.

/// What a host does once, before the first cut: what arrives is looked up in other tables before
/// that of local addresses.
pub(crate) const PREPARE: &str = "ip rule add pref 2 lookup local && ip rule del pref 0";
/// Cuts the link.
pub(crate) const CUT: &str = "ip rule add pref 1 iif eth0 blackhole";
/// Restores it.
pub(crate) const RESTORE: &str = "ip rule del pref 1";
