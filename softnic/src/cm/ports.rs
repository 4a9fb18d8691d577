//! Port bindings of identifiers.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use super::{claims::Claims, error::CmError, id::IdNum, port_space::PortSpace};

/// Range of automatically chosen ports, the default of Linux.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32768..=60999;

/// An identifier bound to a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    pub(super) id: IdNum,
    pub(super) addr: IpAddr,
    pub(super) reuse_addr: bool,
    pub(super) af_only: bool,
}

impl Owner {
    /// Whether two identifiers conflict on one port. As on Linux, different addresses can share a port, but a wildcard
    /// conflicts with all addresses, except between single-family (`af_only`) identifiers of different families. Two
    /// identifiers with `reuse_addr` share any address if `honours_reuse`.
    fn conflicts(&self, other: &Self, honours_reuse: bool) -> bool {
        if self.id == other.id || honours_reuse && self.reuse_addr && other.reuse_addr {
            return false;
        }
        if self.af_only && other.af_only && self.addr.is_ipv4() != other.addr.is_ipv4() {
            return false;
        }
        self.addr.is_unspecified() || other.addr.is_unspecified() || self.addr == other.addr
    }

    /// Whether requests to an address belong to this owner.
    pub(super) fn takes(&self, addr: IpAddr) -> bool {
        if !self.addr.is_unspecified() {
            return self.addr == addr;
        }
        self.addr.is_ipv4() == addr.is_ipv4() || self.addr.is_ipv6() && !self.af_only
    }
}

/// The owners of ports.
#[derive(Debug, Default)]
pub(super) struct Ports {
    owners: HashMap<(PortSpace, u16), Vec<Owner>>,
    /// The last automatically chosen port.
    last: u16,
    /// Ports of other managers at the address, if any.
    claims: Option<Arc<dyn Claims>>,
}

impl Ports {
    /// Binds ports only after a claim from now on.
    pub(super) fn share(&mut self, claims: Arc<dyn Claims>) {
        self.claims = Some(claims);
    }

    /// Whether no other manager has a port, or all owners share it.
    fn is_granted(&self, space: PortSpace, port: u16, is_shared: bool) -> bool {
        let service = space.service_id(port);
        let claims = self.claims.as_ref();
        claims.is_none_or(|claims| claims.claim(service, is_shared))
    }

    /// Binds an identifier, and returns the port.
    pub(super) fn bind(
        &mut self,
        space: PortSpace,
        port: u16,
        owner: Owner,
    ) -> Result<u16, CmError> {
        let port = match port {
            0 => self.unused(space, owner.addr)?,
            port => port,
        };
        let owners = self.at(space, port);
        let in_conflict = owners.iter().any(|other| owner.conflicts(other, true));
        let is_shared = owner.reuse_addr && owners.iter().all(|other| other.reuse_addr);
        if in_conflict || !self.is_granted(space, port, is_shared) {
            return Err(CmError::AddressInUse(SocketAddr::new(owner.addr, port)));
        }
        self.owners.entry((space, port)).or_default().push(owner);
        Ok(port)
    }

    fn unused(&mut self, space: PortSpace, addr: IpAddr) -> Result<u16, CmError> {
        for _ in EPHEMERAL {
            self.last = match self.last.checked_add(1) {
                Some(port) if EPHEMERAL.contains(&port) => port,
                _ => *EPHEMERAL.start(),
            };
            let is_unused = !self.owners.contains_key(&(space, self.last));
            if is_unused && self.is_granted(space, self.last, false) {
                return Ok(self.last);
            }
        }
        Err(CmError::AddressNotAvailable(SocketAddr::new(addr, 0)))
    }

    /// Whether an identifier may listen: for listeners, `reuse_addr` does not lift conflicts.
    pub(super) fn may_listen(&self, space: PortSpace, port: u16, id: IdNum) -> bool {
        let owners = self.at(space, port);
        let Some(owner) = owners.iter().find(|owner| owner.id == id) else {
            return true;
        };
        let in_conflict = owners.iter().any(|other| owner.conflicts(other, false));
        !in_conflict && self.is_granted(space, port, false)
    }

    /// The owners of a port.
    pub(super) fn at(&self, space: PortSpace, port: u16) -> &[Owner] {
        self.owners
            .get(&(space, port))
            .map_or(&[], |owners| owners.as_slice())
    }

    /// Changes the address of an owner from a wildcard to the device's address.
    pub(super) fn set_addr(&mut self, space: PortSpace, port: u16, id: IdNum, addr: IpAddr) {
        let owners = self.owners.entry((space, port)).or_default();
        for owner in owners.iter_mut().filter(|owner| owner.id == id) {
            owner.addr = addr;
        }
    }

    pub(super) fn release(&mut self, space: PortSpace, port: u16, id: IdNum) {
        if let Some(owners) = self.owners.get_mut(&(space, port)) {
            owners.retain(|owner| owner.id != id);
            if owners.is_empty() {
                self.owners.remove(&(space, port));
                if let Some(claims) = &self.claims {
                    claims.release(space.service_id(port));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn owner(id: u32, addr: &str) -> Owner {
        Owner {
            id: IdNum(id),
            addr: addr.parse().unwrap(),
            reuse_addr: false,
            af_only: false,
        }
    }

    #[test]
    fn wildcards_exclude_all_and_addresses_only_themselves() {
        let mut ports = Ports::default();
        let mut bind = |owner| ports.bind(PortSpace::Tcp, 7, owner).is_ok();
        assert!(bind(owner(1, "10.0.0.1")));
        assert!(!bind(owner(2, "10.0.0.1")));
        assert!(bind(owner(3, "10.0.0.2")));
        assert!(!bind(owner(4, "0.0.0.0")));
        assert!(!bind(owner(5, "::")));
        assert!(ports.bind(PortSpace::Udp, 7, owner(6, "0.0.0.0")).is_ok());
        ports.release(PortSpace::Tcp, 7, IdNum(1));
        assert!(ports.bind(PortSpace::Tcp, 7, owner(2, "10.0.0.1")).is_ok());
    }

    #[test]
    fn shared_addresses_are_bound_by_all_and_listened_at_by_the_last() {
        let mut ports = Ports::default();
        let shared = |id| Owner {
            reuse_addr: true,
            ..owner(id, "10.0.0.1")
        };
        ports.bind(PortSpace::Tcp, 7, shared(1)).unwrap();
        ports.bind(PortSpace::Tcp, 7, shared(2)).unwrap();
        assert!(!ports.may_listen(PortSpace::Tcp, 7, IdNum(2)));
        ports.release(PortSpace::Tcp, 7, IdNum(1));
        assert!(ports.may_listen(PortSpace::Tcp, 7, IdNum(2)));
    }

    #[test]
    fn wildcards_of_one_family_leave_the_other_alone() {
        let v6 = Owner {
            af_only: true,
            ..owner(1, "::")
        };
        let v4 = Owner {
            af_only: true,
            ..owner(2, "0.0.0.0")
        };
        let mut ports = Ports::default();
        ports.bind(PortSpace::Tcp, 7, v6).unwrap();
        ports.bind(PortSpace::Tcp, 7, v4).unwrap();
        let takes = |owner: Owner, addr: &str| owner.takes(addr.parse().unwrap());
        assert!(takes(v6, "fd00::1") && !takes(v6, "10.0.0.1"));
        assert!(takes(v4, "10.0.0.1") && !takes(v4, "fd00::1"));
        assert!(takes(owner(3, "::"), "10.0.0.1"));
        assert!(!takes(owner(3, "10.0.0.2"), "10.0.0.1"));
    }

    /// Ports of one other manager.
    #[derive(Debug)]
    struct Other(HashSet<u64>);

    impl Claims for Other {
        fn claim(&self, service: u64, is_shared: bool) -> bool {
            is_shared || !self.0.contains(&service)
        }

        fn release(&self, _service: u64) {}
    }

    #[test]
    fn ports_of_other_managers_are_neither_bound_nor_chosen() {
        let mut ports = Ports::default();
        let taken = [7, *EPHEMERAL.start(), EPHEMERAL.start() + 1];
        let taken = taken.map(|port| PortSpace::Tcp.service_id(port));
        ports.share(Arc::new(Other(taken.into())));
        let own = |id| owner(id, "10.0.0.1");
        let refused = ports.bind(PortSpace::Tcp, 7, own(1));
        assert!(matches!(refused, Err(CmError::AddressInUse(_))));
        assert_eq!(ports.at(PortSpace::Tcp, 7).len(), 0);
        let chosen = ports.bind(PortSpace::Tcp, 0, own(1)).unwrap();
        assert_eq!(chosen, EPHEMERAL.start() + 2);
        let shared = Owner {
            reuse_addr: true,
            ..own(2)
        };
        ports.bind(PortSpace::Tcp, 7, shared).unwrap();
        assert!(!ports.may_listen(PortSpace::Tcp, 7, IdNum(2)));
    }

    #[test]
    fn chosen_ports_differ_until_all_are_taken() {
        let mut ports = Ports::default();
        let count = u32::try_from(EPHEMERAL.count()).unwrap();
        for id in 0..count {
            ports
                .bind(PortSpace::Tcp, 0, owner(id, "10.0.0.1"))
                .unwrap();
        }
        let full = ports.bind(PortSpace::Tcp, 0, owner(count, "10.0.0.1"));
        assert!(matches!(full, Err(CmError::AddressNotAvailable(_))));
    }
}
