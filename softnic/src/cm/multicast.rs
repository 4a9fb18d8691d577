//! Memberships in multicast groups.

use std::net::IpAddr;

use super::{
    error::CmError,
    event::{GroupId, Occurrence},
    id::{IdNum, IdState},
    manager::Manager,
};
use crate::engine::QpKind;

impl Manager {
    /// Joins a multicast group. An `Occurrence::MulticastJoined` event follows.
    ///
    /// # Errors
    /// - [`CmError::Invalid`]: the identifier is for connections, or is not bound to the device.
    /// - [`CmError::NotSupported`]: the group is an IPv6 group; Linux does not join IPv6 groups over `RoCEv2`.
    pub fn join_multicast(&mut self, num: IdNum, group: IpAddr) -> Result<GroupId, CmError> {
        let membership = GroupId(self.last_group.wrapping_add(1));
        let id = self.id(num)?;
        let is_ready = matches!(
            id.state,
            IdState::Bound | IdState::AddrResolved | IdState::RouteResolved
        );
        let local = id
            .local
            .map(|addr| addr.ip())
            .filter(|_| is_ready && id.has_device());
        let local = local.ok_or(CmError::Invalid("the identifier is not bound to a device"))?;
        if id.space.kind() != QpKind::Ud {
            return Err(CmError::Invalid("the identifier is for connections"));
        }
        if group.is_ipv6() {
            return Err(CmError::NotSupported(
                "groups of IPv6 are not joined over RoCEv2",
            ));
        }
        id.groups.push(membership);
        self.last_group = membership.0;
        let what = Occurrence::MulticastJoined {
            membership,
            group,
            local,
        };
        self.push(num, what);
        Ok(membership)
    }

    /// Ends a membership.
    ///
    /// # Errors
    /// - [`CmError::Invalid`]: the identifier is not a member.
    pub fn leave_multicast(&mut self, num: IdNum, membership: GroupId) -> Result<(), CmError> {
        let id = self.id(num)?;
        let before = id.groups.len();
        id.groups.retain(|group| *group != membership);
        if id.groups.len() == before {
            return Err(CmError::Invalid("the identifier is no member of the group"));
        }
        Ok(())
    }
}
