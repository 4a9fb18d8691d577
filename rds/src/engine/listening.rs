//! Listening on the addresses of bound sockets.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    net::{IpAddr, SocketAddr, SocketAddrV6},
    path::Path,
    sync::Arc,
    time::Duration,
};

use cm::{CmId, Key, phases::Listening};
use rustix::io::Errno;

use super::{State, claim_devices};
use crate::{
    device::Device,
    proto::{Host, SocketId, wire::Family},
};

/// Backlog of `rdma_listen`, per address.
const BACKLOG: u32 = 128;

/// Interval between attempts to listen on an address of a removed device.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The listening addresses and their devices.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    open: BTreeMap<IpAddr, CmId<Listening>>,
    /// The device of each address, until it is removed.
    devices: BTreeMap<Host, Arc<Device>>,
    /// Addresses bound while accepting is paused; `None` if it is not paused.
    paused: Option<HashSet<IpAddr>>,
    /// Addresses of removed devices, with the time of the next attempt to listen.
    lost: BTreeMap<IpAddr, Duration>,
}

impl Listeners {
    /// Time of the next attempt to listen.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.lost.values().min().copied()
    }

    /// The device of an address.
    pub(super) fn device(&self, ip: IpAddr) -> Option<&Arc<Device>> {
        self.devices.get(&ip.into())
    }

    /// Forgets a removed device.
    pub(super) fn forget_device(&mut self, gone: &Arc<Device>) {
        self.devices.retain(|_, device| !Arc::ptr_eq(device, gone));
    }

    /// Whether an address is listening, or will be on resume.
    fn has(&self, ip: IpAddr) -> bool {
        let is_held = self
            .paused
            .as_ref()
            .is_some_and(|paused| paused.contains(&ip));
        is_held || self.open.contains_key(&ip)
    }

    /// The address of a listening identifier.
    pub(super) fn of(&self, key: Key) -> Option<IpAddr> {
        let mut open = self.open.iter();
        open.find(|(_, id)| id.key() == key).map(|(&ip, _)| ip)
    }
}

fn family(ip: IpAddr) -> Family {
    match ip {
        IpAddr::V4(_) => Family::V4,
        IpAddr::V6(_) => Family::V6,
    }
}

/// Whether the kernel module `rds_rdma` is loaded.
fn kernel_has_rds() -> bool {
    Path::new("/sys/module/rds_rdma").exists()
}

/// Explains why listening on an address failed.
fn explain(ip: IpAddr, err: &verbs::Error) -> io::Error {
    let errno = err.raw_os_error().map(Errno::from_raw_os_error);
    let (kind, reason) = match errno {
        Some(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) if kernel_has_rds() => (
            io::ErrorKind::AddrInUse,
            format!("the kernel owns the RDS port of {ip}: unload the module rds_rdma ({err})"),
        ),
        Some(Errno::ADDRINUSE) => (
            io::ErrorKind::AddrInUse,
            format!("another process uses RDS on {ip} ({err})"),
        ),
        Some(Errno::ADDRNOTAVAIL | Errno::NODEV) => (
            io::ErrorKind::AddrNotAvailable,
            format!("no RDMA device has the address {ip} ({err})"),
        ),
        _ => (err.kind(), format!("cannot listen on {ip}: {err}")),
    };
    io::Error::new(kind, reason)
}

impl State {
    /// Listens on the IP of `addr`, and opens its device. A loopback address has no device and no
    /// listener.
    pub(crate) fn open(&mut self, addr: SocketAddr) -> io::Result<()> {
        let ip = addr.ip();
        if ip.is_loopback() {
            return Ok(());
        }
        if let SocketAddr::V6(v6) = addr
            && v6.scope_id() != 0
        {
            self.scopes.insert(ip, v6.scope_id());
        }
        self.bind(ip)
    }

    /// The address with the scope id of `local`, if it is link-local.
    pub(super) fn on_link(&self, local: IpAddr, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => {
                let scope = self.scopes.get(&local).copied().unwrap_or(0);
                SocketAddrV6::new(v6, port, 0, scope).into()
            }
            _ => (ip, port).into(),
        }
    }

    /// The sender of a message, with the scope id of the receiving socket.
    pub(crate) fn sender(&self, to: SocketId, from: SocketAddr) -> SocketAddr {
        if from.is_ipv6()
            && let Ok((Some(local), _)) = self.node.names(to)
        {
            return self.on_link(local.ip(), from.ip(), from.port());
        }
        from
    }

    fn bind(&mut self, ip: IpAddr) -> io::Result<()> {
        let fail = |err: verbs::Error| explain(ip, &err);
        if self.listeners.has(ip) {
            return Ok(());
        }
        claim_devices()?;
        let mut id = self.channel.create_id().map_err(fail)?;
        if ip.is_ipv6() {
            id.set_af_only(true).map_err(fail)?;
        }
        id.bind(self.on_link(ip, ip, family(ip).port()))
            .map_err(fail)?;
        let ctx = id.bound_context().map_err(fail)?.ok_or_else(|| {
            let reason = format!("no RDMA device has the address {ip}");
            io::Error::new(io::ErrorKind::AddrNotAvailable, reason)
        })?;
        let device = self.known_devices().open(&ctx)?;
        self.add_device(&device);
        if let Some(paused) = &mut self.listeners.paused {
            paused.insert(ip);
            self.listeners.devices.insert(ip.into(), device);
            return Ok(());
        }
        let id = id.listen(BACKLOG).map_err(|refused| fail(refused.error))?;
        self.listeners.open.insert(ip, id);
        self.listeners.devices.insert(ip.into(), device);
        Ok(())
    }

    pub(super) fn pause_accept(&mut self) {
        self.listeners.paused.get_or_insert_default();
    }

    pub(super) fn resume_accept(&mut self) -> io::Result<()> {
        let mut failed = HashSet::new();
        let mut result = Ok(());
        for ip in self.listeners.paused.take().unwrap_or_default() {
            if let Err(err) = self.bind(ip) {
                failed.insert(ip);
                result = Err(err);
            }
        }
        if result.is_err() {
            self.listeners.paused = Some(failed);
        }
        result
    }

    /// Handles the removal of a listening identifier's device.
    pub(super) fn listener_lost(&mut self, now: Duration, key: Key) {
        let Some(ip) = self.listeners.of(key) else {
            return;
        };
        let listener = self.listeners.open.remove(&ip);
        self.reap(listener);
        if let Some(device) = self.listeners.devices.remove(&ip.into()) {
            self.device_lost(device);
        }
        self.listeners.lost.insert(ip, now + RETRY_INTERVAL);
    }

    /// Listens again on addresses whose device may have returned.
    pub(super) fn listeners_due(&mut self, now: Duration) {
        let lost = self.listeners.lost.iter();
        let due: Vec<IpAddr> = lost
            .filter(|&(_, &at)| at <= now)
            .map(|(&ip, _)| ip)
            .collect();
        if !due.is_empty() {
            // `rdma_get_devices` makes librdmacm close removed devices and find new ones.
            drop(cm::devices());
        }
        for ip in due {
            if self.bind(ip).is_err() {
                self.listeners.lost.insert(ip, now + RETRY_INTERVAL);
            } else {
                self.listeners.lost.remove(&ip);
            }
        }
    }
}
