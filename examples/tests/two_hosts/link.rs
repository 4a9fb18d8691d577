//! A link that is cut as if somewhere on the way: no device and no address of a host changes state,
//! but the host drops whatever arrives.

/// What a host does once, before the first cut: what arrives is looked up in other tables before
/// that of local addresses.
pub(crate) const PREPARE: &str = "ip rule add pref 2 lookup local && ip rule del pref 0";
/// Cuts the link.
pub(crate) const CUT: &str = "ip rule add pref 1 iif eth0 blackhole";
/// Restores it.
pub(crate) const RESTORE: &str = "ip rule del pref 1";
/// TCP port that a cut spares after [`SPARE`], so that both hosts can say over it that their link is cut.
pub(crate) const SPARED_PORT: u16 = 7600;
/// What a host does once after [`PREPARE`], if [`SPARED_PORT`] is to get through a cut.
pub(crate) const SPARE: &str = "ip rule add pref 0 iif eth0 ipproto tcp dport 7600 lookup local && \
                                ip rule add pref 0 iif eth0 ipproto tcp sport 7600 lookup local";
