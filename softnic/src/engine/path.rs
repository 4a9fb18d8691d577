//! Paths between ports.

use std::net::IpAddr;

use crate::wire::{IpHeader, WireError};

/// Path from one port to another: addresses, and the fields of the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Address of this host.
    pub src: IpAddr,
    /// Address of the peer.
    pub dst: IpAddr,
    /// Hop limit; 0 means 64.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits; ignored for IPv4.
    pub flow_label: u32,
}

impl Path {
    /// A path with the default hop limit, and without class or label.
    pub fn new(src: IpAddr, dst: IpAddr) -> Self {
        Self {
            src,
            dst,
            hop_limit: 0,
            traffic_class: 0,
            flow_label: 0,
        }
    }

    /// IP header of a frame on the path.
    pub(super) fn header(&self) -> Result<IpHeader, WireError> {
        let mut header = IpHeader::new(self.src, self.dst)?;
        match &mut header {
            IpHeader::V4 { tos, ttl, .. } => {
                *tos = self.traffic_class;
                if self.hop_limit != 0 {
                    *ttl = self.hop_limit;
                }
            }
            IpHeader::V6 {
                traffic_class,
                flow_label,
                hop_limit,
                ..
            } => {
                *traffic_class = self.traffic_class;
                *flow_label = self.flow_label & 0xf_ffff;
                if self.hop_limit != 0 {
                    *hop_limit = self.hop_limit;
                }
            }
        }
        Ok(header)
    }
}
