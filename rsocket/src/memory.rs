//! The registered memory of one connection.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use rustix::{
    io::Errno,
    param::page_size,
    process::{Resource, getrlimit},
    rand::{GetRandomFlags, getrandom},
    system::sysinfo,
    thread::{CapabilitySet, capabilities},
};
use verbs::{ProtectionDomain, RemoteAccess, RemoteRegion, mr::Mapping as Pages};

use crate::proto::{
    ByteOrder, Mapping, Target,
    stream::{Framing, Local, SPARE_RECEIVES, Settings, TARGETS, Table},
};

/// Size in bytes of a separate message.
pub(crate) const MESSAGE: usize = 4;

/// Access granularity in bytes.
const WORD: usize = size_of::<u64>();

/// Memory exposed to the peer: advertised in the handshake, writable from then on.
///
/// The program never borrows the memory; received bytes are copied out.
#[derive(Debug)]
pub(crate) struct Exposed {
    table: RemoteRegion,
    receive: Buffer,
    /// Message slots of the receives, with separate framing only.
    messages: Option<RemoteRegion>,
}

/// A buffer that may have grown.
#[derive(Debug)]
struct Buffer {
    region: RemoteRegion,
    /// Of a grown buffer.
    _share: Option<Share>,
}

impl From<RemoteRegion> for Buffer {
    fn from(region: RemoteRegion) -> Self {
        Self {
            region,
            _share: None,
        }
    }
}

/// The table and the buffers of one side of a connection.
///
/// The program never borrows any of this memory: the device reads the send buffer while the program fills
/// other parts.
#[derive(Debug)]
pub(crate) struct Memory {
    exposed: Exposed,
    /// Previous receive buffer, until all of its data has been read.
    old_receive: Option<Buffer>,
    /// The send buffer, followed by slots for targets where requests cannot carry these inline.
    send: Buffer,
    send_buffer: usize,
    slots: usize,
    /// Number of targets in the table whose write has completed here, at most.
    written_targets: u32,
}

/// Total size in bytes of the grown buffers of the process.
static GROWN: AtomicU64 = AtomicU64::new(0);

/// Divisor of `RLIMIT_MEMLOCK`: grown buffers leave three quarters of the limit to other connections, and so does the
/// memory of half-open connections.
const LOCKED_PART: u64 = 4;

/// Divisor of the host's memory for processes without a memory lock limit: peers control how many buffers
/// grow.
const RAM_PART: u64 = 16;

/// Total size in bytes of the memory of the process's half-open connections, and the number of their descriptors.
static HALF_OPEN: AtomicU64 = AtomicU64::new(0);
static HALF_OPEN_DESCRIPTORS: AtomicU64 = AtomicU64::new(0);

/// Divisor of `RLIMIT_NOFILE`: half-open connections leave three quarters of the descriptors to the program.
const DESCRIPTORS_PART: u64 = 4;

/// Bytes that drivers such as mlx5 lock for a send request and for a receive, with the completion of each.
const SEND_BYTES: usize = 128;
const RECEIVE_BYTES: usize = 80;

/// Descriptors of a half-open connection: its completion channel.
const DESCRIPTORS: u64 = 1;

/// A share of an allowance of the process, returned on drop.
#[derive(Debug)]
struct Share {
    amount: u64,
    in_use: &'static AtomicU64,
}

impl Share {
    /// Takes `amount` of the allowance `max`, if that much remains.
    fn take(amount: u64, in_use: &'static AtomicU64, allowance: u64) -> Option<Self> {
        let sum = |used: u64| used.checked_add(amount).filter(|&sum| sum <= allowance);
        let used = in_use.fetch_update(Relaxed, Relaxed, sum);
        used.ok().map(|_| Self { amount, in_use })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.in_use.fetch_sub(self.amount, Relaxed);
    }
}

/// The share of a half-open connection in the memory and the descriptors of the process: peers whose address may be
/// forged leave the rest to established connections.
#[derive(Debug)]
pub(crate) struct HalfOpenShare {
    _memory: Share,
    _descriptors: Share,
}

impl HalfOpenShare {
    /// Takes the share of a connection with these settings. The first half-open connection always has one.
    ///
    /// # Errors
    /// `ENOMEM`, `EMFILE`: the half-open connections of the process have their part of the limit.
    pub(crate) fn take(settings: &Settings) -> io::Result<Self> {
        // The depths are those of the program, not yet those of a device.
        let receives = usize::from(settings.recv_depth) + usize::from(SPARE_RECEIVES);
        let parts = [
            settings.table_size(),
            settings.recv_buffer_idle as usize,
            usize::from(settings.send_depth) * SEND_BYTES,
            receives * RECEIVE_BYTES,
        ];
        let paged = parts.map(|len| len.next_multiple_of(page_size()) as u64);
        let bytes = paged.iter().sum();
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::take_of(bytes, allowance(), descriptors / DESCRIPTORS_PART)
    }

    fn take_of(bytes: u64, memory: u64, descriptors: u64) -> io::Result<Self> {
        let memory = Share::take(bytes, &HALF_OPEN, memory.max(bytes)).ok_or(Errno::NOMEM)?;
        let max = descriptors.max(DESCRIPTORS);
        let descriptors = Share::take(DESCRIPTORS, &HALF_OPEN_DESCRIPTORS, max);
        Ok(Self {
            _memory: memory,
            _descriptors: descriptors.ok_or(Errno::MFILE)?,
        })
    }
}

/// Returns the maximum total size of grown buffers, and of the memory of half-open connections, in bytes.
fn allowance() -> u64 {
    let unlimited =
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    let limit = getrlimit(Resource::Memlock).current.filter(|_| !unlimited);
    let info = sysinfo();
    // `totalram` has 32 bits on 32-bit kernels.
    let ram = (info.totalram as u64).saturating_mul(info.mem_unit.into());
    allowance_of(ram, limit)
}

/// Computes the [`allowance`] from the host's memory and the lock limit, in bytes; `None` means no limit.
fn allowance_of(ram: u64, limit: Option<u64>) -> u64 {
    let max = ram / RAM_PART;
    limit.map_or(max, |limit| max.min(limit / LOCKED_PART))
}

/// Allocates page-aligned memory, one page smaller than a heap allocation of the same length.
fn pages(len: usize) -> verbs::Result<Pages> {
    // Memory is accessed in whole words.
    Pages::new(len.next_multiple_of(WORD))
}

/// Registers memory without remote access.
fn private(pd: &ProtectionDomain, len: usize) -> verbs::Result<RemoteRegion> {
    let registration = pd.register(pages(len)?).remote(RemoteAccess::empty());
    Ok(registration.create()?.slice(0..len))
}

/// Registers pages writable by the peer. No registered page holds other heap memory: children of a process with
/// `ibv_fork_init` lack registered pages.
fn writable(pd: &ProtectionDomain, len: usize) -> verbs::Result<RemoteRegion> {
    Ok(expose(pd, pages(len)?)?.slice(0..len))
}

/// Registers memory writable by the peer under a random address, so that a peer cannot derive addresses of
/// other connections.
///
/// Two cases keep the virtual address: iWARP, since Soft-iWARP accepts other addresses and then ignores them,
/// and devices rejecting them.
fn expose(pd: &ProtectionDomain, memory: Pages) -> verbs::Result<RemoteRegion> {
    let access = RemoteAccess::WRITE;
    let random = random_page().filter(|_| !pd.context().is_iwarp());
    let memory = match random {
        None => memory,
        Some(page) => {
            let registration = pd.register(memory).remote(access);
            match registration.iova(page).create() {
                Ok(region) => return Ok(region),
                Err(refused) if is_unsupported(&refused.error) => refused.value,
                Err(refused) => return Err(refused.into()),
            }
        }
    };
    Ok(pd.register(memory).remote(access).create()?)
}

fn is_unsupported(error: &verbs::Error) -> bool {
    use io::ErrorKind::{InvalidInput, Unsupported};
    matches!(error.kind(), InvalidInput | Unsupported)
}

/// Returns the start of a random page in the lowest quarter of the address space, or `None` without kernel
/// random numbers. The quarter leaves room for any length.
fn random_page() -> Option<u64> {
    let mut bytes = [0; WORD];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty()).ok()?;
    let page = u64::from_ne_bytes(bytes) >> 2 & !(page_size() as u64 - 1);
    (filled == WORD).then_some(page)
}

impl Exposed {
    /// Allocates and registers the exposed memory.
    pub(crate) fn new(pd: &ProtectionDomain, settings: &Settings) -> verbs::Result<Self> {
        let messages = match settings.framing {
            Framing::Immediate => None,
            Framing::Separate => {
                let len = usize::from(settings.recv_depth + SPARE_RECEIVES) * MESSAGE;
                Some(private(pd, len)?)
            }
        };
        Ok(Self {
            table: writable(pd, settings.table_size())?,
            receive: writable(pd, settings.recv_buffer_idle as usize)?.into(),
            messages,
        })
    }

    /// Returns the addresses and keys advertised to the peer.
    pub(crate) fn local(&self) -> Local {
        let (table, receive) = (self.table.token(), self.receive.region.token());
        Local {
            table_addr: table.addr,
            table_rkey: table.rkey,
            buffer_addr: receive.addr,
            buffer_rkey: receive.rkey,
            order: ByteOrder::HOST,
        }
    }

    /// Returns the message slot of a receive, with separate framing only.
    pub(crate) fn message_slot(&self, index: u16) -> Option<RemoteRegion> {
        let at = usize::from(index) * MESSAGE;
        let messages = self.messages.as_ref();
        messages.map(|messages| messages.slice(at..at + MESSAGE))
    }
}

impl Buffer {
    /// Registers a buffer of `bytes` bytes within the growth allowance.
    fn grown(
        bytes: u32,
        register: impl FnOnce(usize) -> verbs::Result<RemoteRegion>,
    ) -> Option<Self> {
        let share = Share::take(bytes.into(), &GROWN, allowance())?;
        let region = register(bytes as usize).ok()?;
        Some(Self {
            region,
            _share: Some(share),
        })
    }
}

/// Allocates and registers the send buffer of an established connection, with its slots.
pub(crate) fn send_buffer(
    pd: &ProtectionDomain,
    settings: &Settings,
) -> verbs::Result<RemoteRegion> {
    private(
        pd,
        settings.send_buffer_idle as usize + settings.slots_size(),
    )
}

impl Memory {
    /// Combines the exposed memory of a connection with its [`send_buffer`].
    pub(crate) fn new(settings: &Settings, exposed: Exposed, send_buffer: RemoteRegion) -> Self {
        Self {
            exposed,
            old_receive: None,
            send: send_buffer.into(),
            send_buffer: settings.send_buffer_idle as usize,
            slots: settings.slots_size(),
            written_targets: 0,
        }
    }

    /// Takes notice of a message with which a target may have been written.
    pub(crate) fn target_written(&mut self) {
        self.written_targets = TARGETS.min(self.written_targets + 1);
    }

    /// Replaces the receive buffer with a new one of `bytes` bytes. The previous buffer stays until
    /// [`end_old_receive`](Self::end_old_receive). Returns the new address and key, or `None` without memory.
    pub(crate) fn grow_receive(&mut self, pd: &ProtectionDomain, bytes: u32) -> Option<(u64, u32)> {
        let larger = Buffer::grown(bytes, |len| writable(pd, len))?;
        let token = larger.region.token();
        self.old_receive = Some(std::mem::replace(&mut self.exposed.receive, larger));
        Some((token.addr, token.rkey))
    }

    /// Releases the previous receive buffer: the peer no longer writes there, and all data has been read.
    pub(crate) fn end_old_receive(&mut self) {
        self.old_receive = None;
    }

    /// Replaces the send buffer with a new one of `bytes` bytes, or returns `None` without memory. Sends in
    /// flight keep the previous buffer alive.
    pub(crate) fn grow_send(&mut self, pd: &ProtectionDomain, bytes: u32) -> Option<()> {
        let slots = self.slots;
        self.send = Buffer::grown(bytes, |len| private(pd, len + slots))?;
        self.send_buffer = bytes as usize;
        Some(())
    }

    /// Copies bytes out of the receive buffer, or of the previous one if `is_old`.
    pub(crate) fn read(&self, is_old: bool, at: usize, bytes: &mut [u8]) {
        let old = self.old_receive.as_ref().filter(|_| is_old);
        let buffer = old.unwrap_or(&self.exposed.receive);
        buffer.region.read(at, bytes);
    }

    /// Fills a part of the send buffer and returns the part to be sent.
    pub(crate) fn fill(&self, at: usize, bytes: &[u8]) -> RemoteRegion {
        self.send.region.write(at, bytes);
        self.send.region.slice(at..at + bytes.len())
    }

    /// Fills a slot for a control message and returns the slot to be sent.
    pub(crate) fn fill_slot(&self, slot: u16, bytes: &[u8]) -> RemoteRegion {
        let at = self.send_buffer + usize::from(slot) * Target::SIZE;
        self.send.region.write(at, bytes);
        self.send.region.slice(at..at + bytes.len())
    }
}

impl Table for Memory {
    fn target(&mut self, index: u32) -> [u8; Target::SIZE] {
        let mut entry = [0; Target::SIZE];
        // The bytes of a write have no order before its completion (`ibv_query_qp_data_in_order(3)`).
        if self.written_targets == 0 {
            return entry;
        }
        let at = index as usize * Target::SIZE;
        // With iWARP the next target may be in progress. Its address is in memory before this word: with key and length present,
        // the address is valid.
        let key_and_len = self.exposed.table.load(at + 8);
        let addr = self.exposed.table.load(at);
        entry[..8].copy_from_slice(&addr.to_ne_bytes());
        entry[8..].copy_from_slice(&key_and_len.to_ne_bytes());
        entry
    }

    fn clear_target(&mut self, index: u32) {
        self.written_targets = self.written_targets.saturating_sub(1);
        self.exposed
            .table
            .store(index as usize * Target::SIZE + 8, 0);
    }

    fn mapping(&mut self, index: u16) -> [u8; Mapping::SIZE] {
        let at = TARGETS as usize * Target::SIZE + usize::from(index) * Mapping::SIZE;
        let mut entry = [0; Mapping::SIZE];
        self.exposed.table.read(at, &mut entry);
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_allowance_is_a_quarter_of_the_limit_or_a_sixteenth_of_memory() {
        const GIB: u64 = 1 << 30;
        assert_eq!(allowance_of(16 * GIB, None), GIB);
        assert_eq!(allowance_of(16 * GIB, Some(8 << 20)), 2 << 20);
        assert_eq!(allowance_of(16 * GIB, Some(64 * GIB)), GIB);
        assert_eq!(allowance_of(16 * GIB, Some(0)), 0);
    }

    #[test]
    fn growth_beyond_the_allowance_is_refused() {
        static TAKEN: AtomicU64 = AtomicU64::new(0);
        let take = |bytes| Share::take(bytes, &TAKEN, 100);
        let first = take(60).unwrap();
        assert!(take(41).is_none());
        let second = take(40).unwrap();
        assert!(take(1).is_none());
        drop(first);
        assert!(take(61).is_none());
        let third = take(60).unwrap();
        drop((second, third));
        assert_eq!(TAKEN.load(Relaxed), 0);
        let all = Share::take(u64::MAX, &TAKEN, u64::MAX);
        assert!(Share::take(1, &TAKEN, u64::MAX).is_none());
        drop(all);
    }

    /// Half-open connections have their part of each limit, and one of any size.
    #[test]
    fn half_open_connections_beyond_their_share_are_refused() {
        // The program may request any depths.
        let longest = Settings {
            send_depth: u16::MAX,
            recv_depth: u16::MAX,
            ..Settings::default()
        };
        assert!(HalfOpenShare::take(&longest).is_ok());
        let take = |memory, descriptors| {
            let share = HalfOpenShare::take_of(30, memory, descriptors);
            share.map_err(|error| error.raw_os_error())
        };
        let shares = [take(100, 3), take(100, 3), take(100, 3)];
        assert!(shares.iter().all(Result::is_ok));
        assert_eq!(take(119, 4).unwrap_err(), Some(Errno::NOMEM.raw_os_error()));
        assert_eq!(take(120, 3).unwrap_err(), Some(Errno::MFILE.raw_os_error()));
        let fourth = take(120, 4).unwrap();
        drop((shares, fourth));
        assert!(take(0, 0).is_ok());
    }
}
