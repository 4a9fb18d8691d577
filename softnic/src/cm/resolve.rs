//! Resolving addresses and routes.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::{
    error::CmError,
    event::Occurrence,
    id::{IdNum, IdState},
    manager::Manager,
};
use crate::engine::Path;

/// Reachability of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The address of a host, or of a multicast group.
    Known,
    /// An address in a network of the host, without a host.
    OnLink,
    /// An address outside of the host's networks.
    Nowhere,
}

/// Maximum time of resolving an address without a host.
const ASKED: Duration = Duration::from_secs(3);

/// Status of a failed resolution: `EHOSTUNREACH` after `ASKED`, or `ETIMEDOUT` after a shorter timeout of the caller.
const EHOSTUNREACH: i32 = 113;
const ETIMEDOUT: i32 = super::connection::ETIMEDOUT;

impl Manager {
    /// Resolves a peer's address, and binds the identifier to the device. An `Occurrence::AddrResolved` or
    /// `Occurrence::AddrError` event follows.
    ///
    /// # Errors
    /// - [`CmError::Unreachable`]: no network of the host contains the address.
    /// - [`CmError::AddressNotAvailable`]: the source is not an address of the host, or the host has no address of the
    ///   family.
    /// - [`CmError::Invalid`]: the identifier is in use.
    pub fn resolve_addr(
        &mut self,
        num: IdNum,
        (source, peer): (Option<SocketAddr>, SocketAddr),
        reach: Reach,
        timeout: Duration,
        now: Duration,
    ) -> Result<(), CmError> {
        if self.is_removed {
            return Err(CmError::DeviceRemoved);
        }
        if matches!(self.id(num)?.state, IdState::Idle) {
            let any = SocketAddr::new(unspecified(peer), 0);
            self.bind(num, source.unwrap_or(any))?;
        }
        if reach == Reach::Nowhere {
            return Err(CmError::Unreachable(peer));
        }
        let is_usable = |addr: &&IpAddr| addr.is_ipv4() == peer.is_ipv4();
        let first = self.local_addrs.iter().find(is_usable).copied();
        let id = self.ids.get_mut(&num).ok_or(CmError::NotFound(num))?;
        let (IdState::Bound, Some(bound)) = (&id.state, id.local) else {
            return Err(CmError::Invalid("the identifier is in use"));
        };
        let specific = Some(bound.ip()).filter(|addr| !addr.is_unspecified());
        let local = specific
            .or(first)
            .ok_or(CmError::AddressNotAvailable(peer))?;
        if local.is_ipv4() != peer.is_ipv4() {
            return Err(CmError::Invalid("the addresses are of different families"));
        }
        self.ports.set_addr(id.space, bound.port(), num, local);
        id.local = Some(SocketAddr::new(local, bound.port()));
        id.peer = Some(peer);
        if reach == Reach::Known {
            id.state = IdState::AddrResolved;
            self.push(num, Occurrence::AddrResolved);
        } else {
            let (until, errno) = if timeout < ASKED {
                (now + timeout, ETIMEDOUT)
            } else {
                (now + ASKED, EHOSTUNREACH)
            };
            id.state = IdState::ResolvingAddr { until, errno };
            self.arm(num);
        }
        Ok(())
    }

    /// Resolves the route to the peer. An `Occurrence::RouteResolved` event follows.
    ///
    /// # Errors
    /// - [`CmError::Invalid`]: the address is not resolved, or the route already is.
    pub fn resolve_route(&mut self, num: IdNum) -> Result<(), CmError> {
        let id = self.id(num)?;
        if !matches!(id.state, IdState::AddrResolved) {
            return Err(CmError::Invalid("the address is not resolved"));
        }
        id.state = IdState::RouteResolved;
        self.push(num, Occurrence::RouteResolved);
        Ok(())
    }

    /// The path to the peer of an identifier.
    pub fn path(&self, num: IdNum) -> Option<Path> {
        let id = self.ids.get(&num)?;
        match &id.state {
            IdState::Connection(connection) => Some(connection.path),
            IdState::Service(service) => Some(service.path),
            _ => Some(Path {
                traffic_class: id.options.tos,
                ..Path::new(id.local?.ip(), id.peer?.ip())
            }),
        }
    }
}

fn unspecified(peer: SocketAddr) -> IpAddr {
    match peer {
        SocketAddr::V4(_) => IpAddr::from([0; 4]),
        SocketAddr::V6(_) => IpAddr::from([0_u8; 16]),
    }
}
