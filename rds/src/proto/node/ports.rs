//! Which socket has which address.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use fastrand::Rng;

use super::error::SocketError;
use crate::proto::SocketId;

const FIRST: u16 = 2;

/// Which socket has which address.
#[derive(Debug, Default)]
pub(super) struct Ports {
    sockets: BTreeMap<(IpAddr, u16), SocketId>,
    /// How many sockets an address has.
    counts: BTreeMap<IpAddr, usize>,
}

impl Ports {
    pub(super) fn find(&self, ip: IpAddr, port: u16) -> Option<SocketId> {
        self.sockets.get(&(ip, port)).copied()
    }

    /// Whether a socket has an address here.
    pub(super) fn has(&self, ip: IpAddr) -> bool {
        self.counts.contains_key(&ip)
    }

    /// Gives an address to a socket; port 0 stands for any that is free.
    pub(super) fn bind(
        &mut self,
        id: SocketId,
        mut addr: SocketAddr,
        rng: &mut Rng,
    ) -> Result<SocketAddr, SocketError> {
        let ip = addr.ip();
        let free = |port: &u16| !self.sockets.contains_key(&(ip, *port));
        match addr.port() {
            0 => {
                let start = rng.u16(FIRST..);
                let mut ports = (start..=u16::MAX).chain(FIRST..start);
                addr.set_port(ports.find(free).ok_or(SocketError::InUse(addr))?);
            }
            1 => return Err(SocketError::Port(1)),
            port if free(&port) => {}
            _ => return Err(SocketError::InUse(addr)),
        }
        self.sockets.insert((ip, addr.port()), id);
        *self.counts.entry(ip).or_default() += 1;
        Ok(addr)
    }

    pub(super) fn unbind(&mut self, addr: SocketAddr) {
        if self.sockets.remove(&(addr.ip(), addr.port())).is_none() {
            return;
        }
        if let Some(count) = self.counts.get_mut(&addr.ip()) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&addr.ip());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L-S01: port 0 stands for any, but never for 0 or 1.
    #[test]
    fn every_port_but_two_can_be_had() {
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
