//! Memory that peers read and write, and memory for reading and writing theirs.

use std::{
    fmt, io,
    ops::Range,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rustix::io::Errno;
use verbs::{Memory, RemoteAccess, RemoteRegion, SharedMemory};

use super::Socket;
use crate::{
    device::Device,
    engine::{Exported, PAGE, random_address},
    errno::socket_error,
    proto::wire::{Cookie, MAX_MESSAGE},
};

/// How peers may use memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExportOptions {
    use_once: bool,
    read_only: bool,
}

impl ExportOptions {
    /// Peers may read and write it until it is [freed](Socket::free).
    pub fn new() -> Self {
        Self::default()
    }

    /// `RDS_RDMA_USE_ONCE`—It is freed when a message comes that follows an operation on it.
    #[must_use]
    #[doc(alias = "RDS_RDMA_USE_ONCE")]
    pub fn use_once(mut self) -> Self {
        self.use_once = true;
        self
    }

    /// Peers may only read it. Kernels let peers write in any case, whatever is asked of them.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }
}

/// Memory of whole pages, for operations on the memory of peers, and for theirs on it.
///
/// No reference to its bytes exists: the program copies in and out. It can be
/// [exported](Socket::export) any number of times; each can be taken back on its own.
pub struct RdmaBuffer {
    /// As this process and its own requests reach it.
    region: RemoteRegion,
    file: OwnedFd,
}

impl RdmaBuffer {
    /// The number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Copies bytes out, from `offset` on.
    ///
    /// # Panics
    /// Panics when the bytes are not inside.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.region.read(offset, bytes);
    }

    /// Copies bytes in, from `offset` on.
    ///
    /// # Panics
    /// Panics when the bytes are not inside.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.region.write(offset, bytes);
    }

    /// The number at `offset`, which peers may change by atomic operations.
    ///
    /// # Panics
    /// Panics when its 8 bytes are not inside, or `offset` is no multiple of 8.
    pub fn load(&self, offset: usize) -> u64 {
        self.region.load(offset)
    }

    /// Sets the number at `offset`.
    ///
    /// # Panics
    /// As for [`load`](Self::load).
    pub fn store(&self, offset: usize, value: u64) {
        self.region.store(offset, value);
    }

    /// A part, for an operation.
    ///
    /// # Panics
    /// Panics when the range is not inside.
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
                "the address of this host itself has no device",
            ),
            false => (
                io::ErrorKind::NotFound,
                "the device of the address has been removed",
            ),
        };
        Err(io::Error::new(kind, reason))
    }

    /// Makes and registers memory of `len` zero bytes. Enters the kernel.
    ///
    /// # Errors
    /// - `NotConnected`: the socket has no address.
    /// - `Unsupported`: its address is that of the host itself, without a device.
    /// - `NotFound`: the device has been removed, and is not back. Memory is of one device: what was
    ///   made before the removal is of no more use.
    /// - `InvalidInput`: there would be no bytes.
    /// - `OutOfMemory`: there is not so much memory, or it cannot be locked (`ulimit -l`).
    pub fn alloc(&self, len: usize) -> io::Result<RdmaBuffer> {
        let memory = SharedMemory::create(len)?;
        let file = memory.as_fd().try_clone_to_owned()?;
        let region = self.register(memory)?;
        Ok(RdmaBuffer { region, file })
    }

    /// Registers memory of the program's for its own operations on the memory of peers, who have no
    /// access to it. Enters the kernel.
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc).
    pub fn register<M: Memory>(&self, memory: M) -> io::Result<RemoteRegion> {
        let device = self.device()?;
        let registration = device.pd.register(memory);
        let region = registration.remote(RemoteAccess::empty()).create();
        region.map_err(|refused| refused.error.into())
    }

    /// `RDS_GET_MR`—Lets peers read and write memory, and returns its name, which is to be sent to
    /// one of them: in a message, or [with](crate::SendOptions::cookie) one. Enters the kernel.
    ///
    /// Any peer that knows the name can use it, on any connection of the engine, until it is [freed](Self::free), the
    /// socket is closed, or the device is removed. The name is a key of the device's choice, and an address of which 20
    /// bits are random: a guess that fails costs the peer its connection. Free memory as soon as it is not needed, or
    /// export it for one use. Where the name is sent [with](crate::SendOptions::cookie) a message, only the host that
    /// the message went to can end that use.
    ///
    /// # Errors
    /// - `NotConnected`: the socket has no address.
    /// - `EMSGSIZE`: it is longer than 1 MiB and a page.
    /// - `OutOfMemory`: it cannot be locked (`ulimit -l`).
    #[doc(alias = "RDS_GET_MR")]
    #[doc(alias = "RDS_GET_MR_FOR_DEST")]
    #[doc(alias = "RDS_CMSG_RDMA_MAP")]
    pub fn export(&self, pages: &RdmaBuffer, options: ExportOptions) -> io::Result<Cookie> {
        let memory = SharedMemory::open(pages.file.try_clone()?)?;
        self.export_memory(memory, options)
    }

    /// The same for memory of any kind, which belongs to the socket until it is freed.
    ///
    /// # Errors
    /// As for [`export`](Self::export), and:
    /// - `InvalidInput`: there are no bytes.
    pub fn export_memory<M: Memory>(
        &self,
        mut memory: M,
        options: ExportOptions,
    ) -> io::Result<Cookie> {
        let device = self.device()?;
        let range = memory.range();
        let offset = range.cast::<u8>().addr().get() % PAGE;
        if range.is_empty() {
            return Err(Errno::INVAL.into());
        }
        if (offset + range.len()).next_multiple_of(PAGE) > MAX_MESSAGE as usize + PAGE {
            return Err(Errno::MSGSIZE.into());
        }
        let mut access = RemoteAccess::READ;
        access.set(RemoteAccess::WRITE, !options.read_only);
        access.set(RemoteAccess::ATOMIC, !options.read_only && device.atomics);
        // Kernels count addresses from the start of the page; to peers, the cookie says where they begin.
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
            // As much of 32 bits as there is.
            offset: u32::try_from(address).unwrap_or_default(),
        })
    }

    /// `RDS_FREE_MR`—Takes memory back: when this returns, no peer can reach it any more. Enters the
    /// kernel.
    ///
    /// # Errors
    /// - `InvalidInput`: the socket has no such memory (any more).
    #[doc(alias = "RDS_FREE_MR")]
    pub fn free(&self, cookie: Cookie) -> io::Result<()> {
        let removed = self.lock()?.exports.remove(self.id, cookie.rkey);
        match removed {
            Some(exported) => {
                // Outside of the lock, as it takes a while.
                drop(exported);
                Ok(())
            }
            None => Err(Errno::INVAL.into()),
        }
    }

    /// How many pieces of memory the socket exports.
    ///
    /// # Errors
    /// - `Unsupported`: the socket is of a parent process.
    pub fn exports(&self) -> io::Result<usize> {
        Ok(self.lock()?.exports.count(self.id))
    }
}
