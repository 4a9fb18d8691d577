//! Numbers of RDMA reads and atomics at once, agreed by a handshake.

use verbs::{Context, Result};

/// The numbers of one side: of the peer's operations served at once, and of its own outstanding ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Depths {
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
}

/// The device's maximum (`RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`).
pub(crate) const DEVICE_MAX: u8 = 0xff;

impl Depths {
    pub(crate) const DEVICE_MAX: Self = Self {
        responder_resources: DEVICE_MAX,
        initiator_depth: DEVICE_MAX,
    };

    /// The maximum of a device.
    pub(crate) fn of_device(ctx: &Context) -> Result<Self> {
        let attr = ctx.query_device()?;
        let count = |count: u32| u8::try_from(count).unwrap_or(DEVICE_MAX);
        Ok(Self {
            responder_resources: count(attr.max_qp_rd_atom()),
            initiator_depth: count(attr.max_qp_init_rd_atom()),
        })
    }

    /// Whether a device with this maximum supports the numbers.
    pub(crate) fn fit(self, device: Self) -> bool {
        let fits = |chosen: u8, max: u8| chosen == DEVICE_MAX || chosen <= max;
        fits(self.responder_resources, device.responder_resources)
            && fits(self.initiator_depth, device.initiator_depth)
    }

    /// The numbers in force, if this side has chosen `self`: at most those of the peer, given from this side's point
    /// of view. A choice above the device's maximum stays, and the device refuses it.
    pub(crate) fn in_force(self, peer: Self, device: Self) -> Self {
        let agreed = |chosen: u8, peer: u8, device: u8| match chosen {
            DEVICE_MAX => peer.min(device),
            chosen if chosen > device => chosen,
            chosen => chosen.min(peer),
        };
        Self {
            responder_resources: agreed(
                self.responder_resources,
                peer.responder_resources,
                device.responder_resources,
            ),
            initiator_depth: agreed(
                self.initiator_depth,
                peer.initiator_depth,
                device.initiator_depth,
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_in_force_is_the_smallest_unless_the_device_refuses_it() {
        let both = |count| Depths {
            responder_resources: count,
            initiator_depth: count,
        };
        for (chosen, peer, expected) in [
            (DEVICE_MAX, 200, 16),
            (DEVICE_MAX, 4, 4),
            (8, 4, 4),
            (4, 8, 4),
            (0, 8, 0),
            (8, 0, 0),
            (17, 4, 17),
        ] {
            let found = both(chosen).in_force(both(peer), both(16));
            assert_eq!(found, both(expected), "{chosen} {peer}");
        }
    }
}
