//! Address handle helpers.

use crate::IB_ROCE_UDP_ENCAP_VALID_PORT_MIN;

/// `ibv_flow_label_to_udp_sport(fl)`—The UDP source port of RoCE v2 for a flow label.
#[inline]
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    reason = "14 bits, and the port's highest two"
)]
pub const fn ibv_flow_label_to_udp_sport(fl: u32) -> u16 {
    let low = fl & 0x03fff;
    let high = fl & 0xfc000;
    ((low ^ (high >> 14)) | IB_ROCE_UDP_ENCAP_VALID_PORT_MIN) as u16
}
