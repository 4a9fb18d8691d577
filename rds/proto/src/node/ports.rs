//! Bound addresses.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use fastrand::Rng;

use super::error::SocketError;
use crate::{Host, SocketId};

const FIRST_PORT: u16 = 2;

/// Sockets by bound address.
#[derive(Debug, Default)]
pub(super) struct Ports {
    sockets: BTreeMap<(Host, u16), SocketId>,
    /// Number of sockets per host address.
    counts: BTreeMap<Host, usize>,
    /// Counts binds and unbinds.
    changes: u64,
}

impl Ports {
    pub(super) fn find(&self, ip: IpAddr, port: u16) -> Option<SocketId> {
        self.sockets.get(&(ip.into(), port)).copied()
    }

    /// Whether a socket is bound to the host address.
    pub(super) fn has(&self, ip: IpAddr) -> bool {
        self.counts.contains_key(&ip.into())
    }

    /// Counter of binds and unbinds, to validate cached routes.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Binds a socket; port 0 selects a free port.
    pub(super) fn bind(
        &mut self,
        id: SocketId,
        mut addr: SocketAddr,
        rng: &mut Rng,
    ) -> Result<SocketAddr, SocketError> {
        let host = Host::from(addr.ip());
        let free = |port: &u16| !self.sockets.contains_key(&(host, *port));
        match addr.port() {
            0 => {
                let start = rng.u16(FIRST_PORT..);
                let mut ports = (start..=u16::MAX).chain(FIRST_PORT..start);
                addr.set_port(ports.find(free).ok_or(SocketError::InUse(addr))?);
            }
            1 => return Err(SocketError::Port(1)),
            port if free(&port) => {}
            _ => return Err(SocketError::InUse(addr)),
        }
        self.changes += 1;
        self.sockets.insert((host, addr.port()), id);
        *self.counts.entry(host).or_default() += 1;
        Ok(addr)
    }

    pub(super) fn unbind(&mut self, addr: SocketAddr) {
        let host = Host::from(addr.ip());
        if self.sockets.remove(&(host, addr.port())).is_none() {
            return;
        }
        self.changes += 1;
        if let Some(count) = self.counts.get_mut(&host) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Port 0 selects any port but 0 and 1.
    #[test]
    fn bind_assigns_every_port_but_two() {
        let mut ports = Ports::default();
        let mut rng = Rng::with_seed(1);
        let any = SocketAddr::from(([10, 9, 0, 1], 0));
        for i in 2..=u16::MAX {
            let bound = ports.bind(SocketId(i.into()), any, &mut rng).unwrap();
            assert!(bound.port() >= 2);
        }
        let full = ports.bind(SocketId(0), any, &mut rng);
        assert_eq!(full, Err(SocketError::InUse(any)));
        let other = SocketAddr::from(([10, 9, 0, 2], 1));
        assert_eq!(
            ports.bind(SocketId(0), other, &mut rng),
            Err(SocketError::Port(1))
        );
        assert!(ports.has(any.ip()) && !ports.has(other.ip()));
        for port in 2..=u16::MAX {
            assert!(ports.find(any.ip(), port).is_some());
            ports.unbind(SocketAddr::new(any.ip(), port));
        }
        assert!(!ports.has(any.ip()));
    }
}
