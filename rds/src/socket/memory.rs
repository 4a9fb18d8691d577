//! Memory for RDMA: local buffers, and exports to peers.

use std::{
    fmt, io,
    ops::Range,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rustix::{io::Errno, param::page_size};
use verbs::{
    RemoteAccess, RemoteRegion,
    mr::{Memory, SharedMemory},
};

use super::Socket;
use crate::{
    device::Device,
    engine::{Exported, random_address},
    errno::socket_error,
    proto::wire::{Cookie, MAX_MESSAGE},
};

/// Operation in errors of exports.
const EXPORT: &str = "RDS_GET_MR";

/// Access of peers to exported memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExportOptions {
    use_once: bool,
    read_only: bool,
}

impl ExportOptions {
    /// Read and write access until [freed](Socket::free).
    pub fn new() -> Self {
        Self::default()
    }

    /// `RDS_RDMA_USE_ONCE`—Ends the export when a message arrives after an operation on the memory.
    #[must_use]
    #[doc(alias = "RDS_RDMA_USE_ONCE")]
    pub fn use_once(mut self) -> Self {
        self.use_once = true;
        self
    }

    /// Read access only. The kernel's sockets always grant write access.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }
}

/// Registered memory of whole pages, for own operations and for those of peers.
///
/// The bytes are never borrowed, because peers may write at any time: copy in and out. Can be
/// [exported](Socket::export) any number of times; each export can be freed on its own.
///
/// ```
/// # let _fabric = doctest::lasting_host();
/// # let peer = rds::Socket::bind("10.9.0.2:4000")?;
/// # let peer_addr = peer.local_addr()?;
/// let socket = rds::Socket::bind("10.9.0.1:4000")?;
/// let buffer = socket.alloc(4096)?;
/// let cookie = socket.export(&buffer, rds::ExportOptions::default())?;
/// let options = rds::SendOptions::new().to(peer_addr).cookie(cookie);
/// socket.send_msg(&[], &options)?; // the peer reads or writes `buffer` with the cookie
/// socket.free(cookie)?; // no peer can access `buffer` any more
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct RdmaBuffer {
    /// Registration for local access only.
    region: RemoteRegion,
    file: OwnedFd,
}

impl RdmaBuffer {
    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Copies bytes out, starting at `offset`.
    ///
    /// # Panics
    /// Panics if the range is out of bounds.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.region.read(offset, bytes);
    }

    /// Copies bytes in, starting at `offset`.
    ///
    /// # Panics
    /// Panics if the range is out of bounds.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.region.write(offset, bytes);
    }

    /// Loads the 64-bit value at `offset`, a possible target of atomic operations of peers.
    ///
    /// # Panics
    /// Panics if the value is out of bounds, or `offset` is not a multiple of 8.
    pub fn load(&self, offset: usize) -> u64 {
        self.region.load(offset)
    }

    /// Stores a 64-bit value at `offset`.
    ///
    /// # Panics
    /// As for [`load`](Self::load).
    pub fn store(&self, offset: usize, value: u64) {
        self.region.store(offset, value);
    }

    /// A part of the buffer, as local memory of an operation.
    ///
    /// # Panics
    /// Panics if the range is out of bounds.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> RemoteRegion {
        self.region.slice(range)
    }
}

impl fmt::Debug for RdmaBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaBuffer")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Socket {
    /// The device of the socket's address.
    pub(super) fn device(&self) -> io::Result<Arc<Device>> {
        let state = self.lock()?;
        if let Some(device) = state.device_of(self.id).map_err(socket_error)? {
            return Ok(Arc::clone(device));
        }
        let (local, _) = state.node.names(self.id).map_err(socket_error)?;
        let (kind, reason) = match local.is_some_and(|local| local.ip().is_loopback()) {
            true => (
                io::ErrorKind::Unsupported,
                "a loopback address has no RDMA device",
            ),
            false => (
                io::ErrorKind::NotFound,
                "the RDMA device of the socket is removed",
            ),
        };
        Err(io::Error::new(kind, reason))
    }

    /// Allocates and registers `len` zeroed bytes. Enters the kernel.
    ///
    /// # Errors
    /// - `NotConnected`: the socket is unbound.
    /// - `Unsupported`: the socket is bound to a loopback address, without a device.
    /// - `NotFound`: the device is removed. Memory belongs to one device; memory allocated before
    ///   the removal stays unusable.
    /// - `InvalidInput`: `len` is 0.
    /// - `OutOfMemory`: out of memory, or over the limit of locked memory (`ulimit -l`).
    pub fn alloc(&self, len: usize) -> io::Result<RdmaBuffer> {
        let memory = SharedMemory::create(len)?;
        let file = memory.as_fd().try_clone_to_owned()?;
        let region = self.register(memory)?;
        Ok(RdmaBuffer { region, file })
    }

    /// Registers memory of the program for its own operations, without access for peers. Enters the
    /// kernel.
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc).
    pub fn register<M: Memory>(&self, memory: M) -> io::Result<RemoteRegion> {
        let device = self.device()?;
        let registration = device.pd.register(memory);
        let region = registration.remote(RemoteAccess::empty()).create();
        region.map_err(|refused| refused.error.into())
    }

    /// `RDS_GET_MR`—Exports memory to peers. Returns the cookie, to be sent to a peer in a message
    /// or [with](crate::SendOptions::cookie) one. Enters the kernel.
    ///
    /// Any peer with the cookie can access the memory, on any connection of the engine, until it is
    /// [freed](Self::free), the socket is closed, or the device is removed. A cookie consists of a
    /// key chosen by the device and an address with 20 random bits; a wrong guess breaks the
    /// connection of the guessing peer. Free memory as soon as possible, or export it for one use.
    /// If the cookie is sent [with](crate::SendOptions::cookie) a message, only the receiving host
    /// can end the single use.
    ///
    /// # Errors
    /// - `NotConnected`: the socket is unbound.
    /// - `EMSGSIZE`: the memory is longer than 1 MiB and a page.
    /// - `OutOfMemory`: over the limit of locked memory (`ulimit -l`).
    #[doc(alias = "RDS_GET_MR")]
    #[doc(alias = "RDS_GET_MR_FOR_DEST")]
    #[doc(alias = "RDS_CMSG_RDMA_MAP")]
    pub fn export(&self, pages: &RdmaBuffer, options: ExportOptions) -> io::Result<Cookie> {
        let memory = SharedMemory::open(pages.file.try_clone()?)?;
        self.export_memory(memory, options)
    }

    /// Exports memory of any kind, like [`export`](Self::export). The socket owns the memory until
    /// it is freed.
    ///
    /// # Errors
    /// As for [`export`](Self::export), and:
    /// - `InvalidInput`: the memory is empty.
    pub fn export_memory<M: Memory>(
        &self,
        mut memory: M,
        options: ExportOptions,
    ) -> io::Result<Cookie> {
        let device = self.device()?;
        let range = memory.range();
        let page = page_size();
        let offset = range.cast::<u8>().addr().get() % page;
        if range.is_empty() {
            let reason = "memory to export has at least one byte";
            return Err(verbs::Error::from_io(EXPORT, Errno::INVAL)
                .detail(reason)
                .into());
        }
        if (offset + range.len()).next_multiple_of(page) > MAX_MESSAGE as usize + page {
            let len = range.len();
            let reason = format!("{len} bytes; an export has at most 1 MiB and a page");
            return Err(verbs::Error::from_io(EXPORT, Errno::MSGSIZE)
                .detail(reason)
                .into());
        }
        let mut access = RemoteAccess::READ;
        access.set(RemoteAccess::WRITE, !options.read_only);
        access.set(RemoteAccess::ATOMIC, !options.read_only && device.atomics);
        // Kernels count addresses from the start of the page; the cookie carries the offset.
        let address = random_address(offset, range.len())?;
        let registration = device.pd.register(memory).remote(access);
        let region = registration
            .iova(address)
            .create()
            .map_err(|refused| refused.error)?;
        let rkey = region.token().rkey;
        let exported = Exported::new(region, options.use_once, options.read_only);
        self.lock()?.exports.insert(self.id, rkey, exported);
        Ok(Cookie {
            rkey,
            // `random_address` fits into 32 bits.
            offset: u32::try_from(address).unwrap_or_default(),
        })
    }

    /// `RDS_FREE_MR`—Ends an export. On return, no peer can access the memory. Enters the kernel.
    ///
    /// # Errors
    /// - `InvalidInput`: not an export of this socket, or freed already.
    #[doc(alias = "RDS_FREE_MR")]
    pub fn free(&self, cookie: Cookie) -> io::Result<()> {
        let removed = self.lock()?.exports.remove(self.id, cookie.rkey);
        match removed {
            Some(exported) => {
                // Without the lock, because deregistration is slow.
                drop(exported);
                Ok(())
            }
            None => {
                let rkey = cookie.rkey;
                let reason = format!("key {rkey:#x} is no export of this socket, or freed already");
                Err(verbs::Error::from_io("RDS_FREE_MR", Errno::INVAL)
                    .detail(reason)
                    .into())
            }
        }
    }

    /// Number of exports of the socket.
    ///
    /// # Errors
    /// - `Unsupported`: the socket belongs to the parent process.
    pub fn exports(&self) -> io::Result<usize> {
        Ok(self.lock()?.exports.count(self.id))
    }
}
