//! Exported memory, by owner and key.
//!
//! A key is all a peer needs to access an export, on any connection of the engine, because the
//! device checks nothing else. Keys are chosen by the device, and many devices count up. So the
//! address of an export is random, within the 32 bits of a cookie.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    net::IpAddr,
    sync::{Arc, PoisonError, RwLock},
};

use rustix::{
    param::page_size,
    rand::{GetRandomFlags, getrandom},
};
use verbs::{ProtectionDomain, RemoteRegion};

use super::EngineState;
use crate::proto::SocketId;

/// Bytes addressable by the 32-bit offset of a cookie.
const ADDRESSABLE: u64 = 1 << 32;

/// Maximum number of recorded recipients of a cookie. Beyond it, any host counts as a recipient.
const MAX_HOSTS: usize = 64;

/// Memory accessible to peers.
#[derive(Debug)]
pub(crate) struct Exported<R = RemoteRegion> {
    /// The registration, kept while peers may access the memory.
    pub(crate) region: Arc<R>,
    pub(crate) use_once: bool,
    pub(crate) read_only: bool,
    /// Recipients of the cookie. Any host counts if the set is empty or full.
    hosts: BTreeSet<IpAddr>,
    /// Set at the end of the export. Read-locked by operations of the same engine in progress.
    pub(super) ended: Arc<RwLock<bool>>,
}

/// Waits for operations of the same engine in progress, up to 10 s each.
impl<R> Drop for Exported<R> {
    fn drop(&mut self) {
        *self.ended.write().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

impl<R> Exported<R> {
    pub(crate) fn new(region: R, use_once: bool, read_only: bool) -> Self {
        Self {
            region: Arc::new(region),
            use_once,
            read_only,
            hosts: BTreeSet::new(),
            ended: Arc::default(),
        }
    }

    /// Records a recipient of the cookie. From now on, only recipients can end the single use of
    /// the memory.
    pub(crate) fn sent_to(&mut self, host: IpAddr) {
        if self.hosts.len() <= MAX_HOSTS {
            self.hosts.insert(host);
        }
    }

    fn is_for(&self, host: IpAddr) -> bool {
        let any = self.hosts.is_empty() || self.hosts.len() > MAX_HOSTS;
        any || self.hosts.contains(&host)
    }
}

/// Exported memory of all sockets of an engine, by owner and key.
#[derive(Debug)]
pub(crate) struct Exports<R = RemoteRegion>(HashMap<SocketId, HashMap<u32, Exported<R>>>);

impl<R> Default for Exports<R> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<R> Exports<R> {
    pub(crate) fn insert(&mut self, owner: SocketId, rkey: u32, exported: Exported<R>) {
        self.0.entry(owner).or_default().insert(rkey, exported);
    }

    pub(crate) fn get_mut(&mut self, owner: SocketId, rkey: u32) -> Option<&mut Exported<R>> {
        self.0.get_mut(&owner)?.get_mut(&rkey)
    }

    pub(crate) fn remove(&mut self, owner: SocketId, rkey: u32) -> Option<Exported<R>> {
        self.0.get_mut(&owner)?.remove(&rkey)
    }

    /// Number of exports of a socket.
    pub(crate) fn count(&self, owner: SocketId) -> usize {
        self.0.get(&owner).map_or(0, HashMap::len)
    }

    /// An export with this key that matches `which`.
    pub(super) fn find(
        &self,
        rkey: u32,
        which: impl Fn(&Exported<R>) -> bool,
    ) -> Option<&Exported<R>> {
        let mut all = self.0.values().filter_map(|exports| exports.get(&rkey));
        all.find(|exported| which(exported))
    }

    /// Ends a use-once export after a host has reported its use, and returns it.
    #[must_use]
    fn used(&mut self, owner: SocketId, rkey: u32, by: IpAddr) -> Option<Exported<R>> {
        let exported = self.get_mut(owner, rkey)?;
        let ends = exported.use_once && exported.is_for(by);
        ends.then(|| self.remove(owner, rkey))?
    }

    /// Ends all exports of a closed socket, and returns them.
    #[must_use]
    pub(super) fn forget(&mut self, owner: SocketId) -> HashMap<u32, Exported<R>> {
        self.0.remove(&owner).unwrap_or_default()
    }
}

impl Exports {
    /// Ends all exports on a removed device, and returns them.
    #[must_use]
    pub(super) fn remove_device(&mut self, pd: &ProtectionDomain) -> Vec<Exported> {
        let all = self.0.values_mut();
        let removed =
            all.flat_map(|exports| exports.extract_if(|_, exported| exported.region.pd() == pd));
        removed.map(|(_, exported)| exported).collect()
    }
}

impl EngineState {
    /// Ends a use-once export after a host has reported its use. The engine thread deregisters the
    /// memory.
    pub(crate) fn export_used(&mut self, owner: SocketId, rkey: u32, by: IpAddr) {
        if let Some(exported) = self.exports.used(owner, rkey, by) {
            self.unlocked(|_| drop(exported));
        }
    }
}

/// A random address for `len` bytes at `offset` in their page. Keeps the offset in the page of this machine, as registrations
/// require, and fits into a cookie.
///
/// # Errors
/// `getrandom(2)` fails.
pub(crate) fn random_address(offset: usize, len: usize) -> io::Result<u64> {
    let mut random = [0; 8];
    let filled = getrandom(&mut random, GetRandomFlags::empty())?;
    if filled < random.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(address(
        offset,
        len,
        page_size(),
        u64::from_ne_bytes(random),
    ))
}

fn address(offset: usize, len: usize, page: usize, random: u64) -> u64 {
    let pages = (offset % page).saturating_add(len).div_ceil(page) as u64;
    let first = random % (ADDRESSABLE / page as u64).saturating_sub(pages).max(1);
    first * page as u64 + (offset % page) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::wire::MAX_MESSAGE;

    const OWNER: SocketId = SocketId(1);
    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 2));
    const OTHER_PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 3));

    fn exports(use_once: bool) -> Exports<()> {
        let mut exports = Exports::default();
        exports.insert(OWNER, 5, Exported::new((), use_once, false));
        exports
    }

    #[test]
    fn export_use_once_ends_with_message_after_operation() {
        for use_once in [true, false] {
            let mut exports = exports(use_once);
            drop(exports.used(SocketId(2), 5, PEER));
            drop(exports.used(OWNER, 6, PEER));
            assert_eq!(exports.count(OWNER), 1, "that was another");
            drop(exports.used(OWNER, 5, PEER));
            assert_eq!(exports.count(OWNER), usize::from(!use_once));
        }
    }

    #[test]
    fn export_use_once_ignores_hosts_without_the_cookie() {
        let mut exports = exports(true);
        exports.get_mut(OWNER, 5).unwrap().sent_to(PEER);
        drop(exports.used(OWNER, 5, OTHER_PEER));
        assert_eq!(exports.count(OWNER), 1);
        drop(exports.used(OWNER, 5, PEER));
        assert_eq!(exports.count(OWNER), 0);
    }

    #[test]
    fn export_recipients_are_bounded() {
        let mut exports = exports(true);
        let exported = exports.get_mut(OWNER, 5).unwrap();
        for host in 0..1000 {
            exported.sent_to(std::net::Ipv4Addr::from_bits(host).into());
        }
        assert_eq!(exported.hosts.len(), MAX_HOSTS + 1);
        drop(exports.used(OWNER, 5, OTHER_PEER));
        assert_eq!(exports.count(OWNER), 0, "it is for any host");
    }

    #[test]
    fn export_address_keeps_page_offset_and_fits_cookie() {
        for page in [4096, 16_384, 65_536] {
            let (last, longest) = (page - 1, MAX_MESSAGE as usize + page);
            for (offset, len) in [
                (0, 1),
                (8, 8),
                (last, 1),
                (last, 2),
                (0, longest),
                (last, longest),
            ] {
                for random in [0, 1, 12_345, (1 << 20) - 1, 1 << 20, u64::MAX] {
                    let at = address(offset, len, page, random);
                    assert_eq!(at % page as u64, offset as u64);
                    assert!(at + len as u64 <= 1 << 32, "{at:#x} and {len}");
                }
            }
        }
    }

    #[test]
    fn export_addresses_are_random() {
        let at: BTreeSet<u64> = (0..64).map(|_| random_address(7, 4096).unwrap()).collect();
        assert!(at.len() > 60, "{at:x?}");
        assert!(
            at.last().unwrap() - at.first().unwrap() > 1 << 30,
            "{at:x?}"
        );
    }
}
