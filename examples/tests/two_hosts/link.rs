//! Link cuts as if in the network: no device and no address of a host changes state, but the host drops all
//! incoming packets.

/// Preparation on each host: moves the lookup of local addresses behind other routing rules.
pub(crate) const PREPARE: &str = "ip rule add pref 2 lookup local && ip rule del pref 0";
/// Cuts the link.
pub(crate) const CUT: &str = "ip rule add pref 1 iif eth0 blackhole";
/// Restores it.
pub(crate) const RESTORE: &str = "ip rule del pref 1";
/// TCP ports exempt from cuts after [`SPARE`], for synchronization of both hosts before, during and after a cut.
pub(crate) const SPARED_PORTS: [u16; 3] = [7600, 7601, 7602];
/// Preparation on each host after [`PREPARE`], to exempt [`SPARED_PORTS`] from cuts.
pub(crate) const SPARE: &str = "ip rule add pref 0 iif eth0 ipproto tcp dport 7600-7602 lookup local && \
                                ip rule add pref 0 iif eth0 ipproto tcp sport 7600-7602 lookup local";
