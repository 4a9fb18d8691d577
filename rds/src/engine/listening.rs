//! Listening on the addresses of bound sockets.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    net::{IpAddr, SocketAddr, SocketAddrV6},
    path::Path,
    sync::{Arc, MutexGuard, PoisonError},
    time::Duration,
};

use cm::{
    CmId, Key,
    phases::{Idle, Listening},
};
use rustix::io::Errno;

use super::{EngineState, Guard, Shared, claim_devices, options::locked_limit};
use crate::{
    device::{Device, OpenDevices},
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
    /// The identifier of a thread that changes the listeners; `None` if its device was removed.
    opening: Option<Key>,
    /// Addresses of removed devices, with the time of the next attempt to listen.
    lost: BTreeMap<IpAddr, Duration>,
}

impl Listeners {
    /// Time of the next attempt to listen.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.lost.values().min().copied()
    }

    /// Addresses on which it is time to listen again.
    pub(super) fn expired(&self, now: Duration) -> Vec<IpAddr> {
        let expired = self.lost.iter().filter(|&(_, &at)| at <= now);
        expired.map(|(&ip, _)| ip).collect()
    }

    /// The device of an address.
    pub(super) fn device(&self, ip: IpAddr) -> Option<&Arc<Device>> {
        self.devices.get(&ip.into())
    }

    /// Forgets a removed device.
    pub(super) fn forget_device(&mut self, removed: &Arc<Device>) {
        self.devices
            .retain(|_, device| !Arc::ptr_eq(device, removed));
    }

    /// Whether an address is listening, or will be on resume.
    fn has(&self, ip: IpAddr) -> bool {
        let is_held = self
            .paused
            .as_ref()
            .is_some_and(|paused| paused.contains(&ip));
        is_held || self.is_open(ip)
    }

    /// Whether an address is listening, with a socket bound.
    pub(super) fn is_open(&self, ip: IpAddr) -> bool {
        self.open.contains_key(&ip)
    }

    /// The address of a listening identifier.
    pub(super) fn of(&self, key: Key) -> Option<IpAddr> {
        let mut open = self.open.iter();
        open.find(|(_, id)| id.key() == key).map(|(&ip, _)| ip)
    }
}

pub(super) fn family(ip: IpAddr) -> Family {
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

/// Explains why an address cannot be used: a connection would take more locked memory, descriptors or objects of the device
/// than the process has.
fn unlockable(ip: IpAddr, limit: u64, err: &verbs::Error) -> io::Error {
    if err.raw_os_error() != Some(Errno::NOMEM.raw_os_error()) {
        return explain(ip, err);
    }
    let reason = format!(
        "cannot use {ip}: the {limit} bytes of memory that this process may lock (RLIMIT_MEMLOCK) do not suffice for one connection; \
         raise the limit to 8 MiB or more (`ulimit -l 8192`, `LimitMEMLOCK=8M` of systemd) ({err})"
    );
    io::Error::new(io::ErrorKind::OutOfMemory, reason)
}

impl Shared {
    /// Listens on the IP of `addr`, and opens its device. A loopback address has no device and no
    /// listener. Enters the kernel without the lock. Requests of peers are accepted after the lock is
    /// released, so the caller can bind the socket before the first message arrives.
    pub(crate) fn open(&self, addr: SocketAddr) -> io::Result<Guard<'_>> {
        let ip = addr.ip();
        if ip.is_loopback() {
            return self.lock();
        }
        if let SocketAddr::V6(v6) = addr
            && v6.scope_id() != 0
        {
            self.lock()?.scopes.insert(ip, v6.scope_id());
        }
        let _listening = self.listening()?;
        self.listen(ip)
    }

    /// Permission to change the listeners, for one thread at a time. Not to be waited for with the
    /// engine's lock.
    fn listening(&self) -> io::Result<MutexGuard<'_, ()>> {
        // Fails in a forked child, where another thread may have left the mutex locked.
        drop(self.lock()?);
        let listening = self.listening.lock();
        Ok(listening.unwrap_or_else(PoisonError::into_inner))
    }

    /// Listens on an address, unless accepting is paused. The caller changes the listeners.
    fn listen(&self, ip: IpAddr) -> io::Result<Guard<'_>> {
        let state = self.lock()?;
        if state.listeners.has(ip) {
            return Ok(state);
        }
        let addr = state.on_link(ip, ip, family(ip).port());
        let devices = state.transport.open.clone();
        let is_paused = state.listeners.paused.is_some();
        drop(state);
        claim_devices()?;
        let (id, device) = self.bind(addr, &devices)?;
        let key = id.key();
        let listener = if is_paused {
            // Until accepting resumes, another program may use the address.
            drop(id);
            None
        } else {
            let listener = id.listen(BACKLOG);
            Some(listener.map_err(|refused| explain(ip, &refused.error))?)
        };
        let mut state = self.lock()?;
        if state.listeners.opening.take() != Some(key) {
            drop(state);
            let removed = Errno::NODEV.raw_os_error();
            return Err(explain(
                ip,
                &verbs::Error::from_errno("rdma_listen", removed),
            ));
        }
        state.transport.add_device(&device);
        state.listeners.devices.insert(ip.into(), device);
        if let Some(listener) = listener {
            state.listeners.open.insert(ip, listener);
        } else {
            state.listeners.paused.get_or_insert_default().insert(ip);
        }
        Ok(state)
    }

    /// A bound identifier, and the device of its address.
    fn bind(
        &self,
        addr: SocketAddr,
        devices: &OpenDevices,
    ) -> io::Result<(CmId<Idle>, Arc<Device>)> {
        let ip = addr.ip();
        let fail = |err: verbs::Error| explain(ip, &err);
        let mut id = self.channel.create_id().map_err(fail)?;
        self.lock()?.listeners.opening = Some(id.key());
        if ip.is_ipv6() {
            id.set_af_only(true).map_err(fail)?;
        }
        id.bind(addr).map_err(fail)?;
        let ctx = id.bound_context().map_err(fail)?.ok_or_else(|| {
            let reason = format!("no RDMA device has the address {ip}");
            io::Error::new(io::ErrorKind::AddrNotAvailable, reason)
        })?;
        let is_new = !devices
            .devices
            .iter()
            .any(|device| device.pd.context() == &ctx);
        let device = devices.open(&ctx)?;
        if is_new && let Some(limit) = locked_limit() {
            let tried = device.try_connection();
            tried.map_err(|err| unlockable(ip, limit, &err))?;
        }
        Ok((id, device))
    }

    pub(super) fn pause_accept(&self) -> io::Result<()> {
        let _listening = self.listening()?;
        self.lock()?.listeners.paused.get_or_insert_default();
        Ok(())
    }

    pub(super) fn resume_accept(&self) -> io::Result<()> {
        let _listening = self.listening()?;
        let paused = self.lock()?.listeners.paused.take();
        let mut failed = HashSet::new();
        let mut result = Ok(());
        for ip in paused.unwrap_or_default() {
            if let Err(err) = self.listen(ip).map(drop) {
                failed.insert(ip);
                result = Err(err);
            }
        }
        if result.is_err() {
            self.lock()?.listeners.paused = Some(failed);
        }
        result
    }

    /// Listens again on addresses whose device may have returned.
    pub(super) fn listen_again(&self, now: Duration) {
        let expired = self.lock_here().listeners.expired(now);
        if expired.is_empty() {
            return;
        }
        // `rdma_get_devices` makes librdmacm close removed devices and find new ones.
        drop(cm::devices());
        let Ok(_listening) = self.listening() else {
            return;
        };
        for ip in expired {
            let result = self.listen(ip).map(drop);
            let mut state = self.lock_here();
            let lost = &mut state.listeners.lost;
            match result {
                Ok(()) => lost.remove(&ip),
                Err(_) => lost.insert(ip, now + RETRY_INTERVAL),
            };
        }
    }
}

impl EngineState {
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

    /// Handles the removal of a listening identifier's device.
    pub(super) fn listener_lost(&mut self, now: Duration, key: Key) {
        self.listeners.opening.take_if(|opening| *opening == key);
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
}
