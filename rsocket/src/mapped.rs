//! Memory written directly by the peer.

use std::{io, sync::Arc};

use verbs::{
    RemoteAccess, RemoteRegion,
    mr::{Memory, Prefix},
};

use crate::{connection::Connection, proto::Mapping, stream::Stream};

/// Memory mapped for the peer. The peer writes with [`Stream::write_at`], without notification of this side.
///
/// Bytes written before a send are visible once the sent data has been received. Dropping the buffer ends the
/// mapping and invalidates the remote key; a later write by the peer breaks the connection.
#[derive(Debug)]
#[must_use = "the mapping ends when this is dropped"]
pub struct MappedBuffer {
    region: RemoteRegion,
    offset: u64,
    index: u16,
    connection: Arc<Connection>,
}

impl MappedBuffer {
    /// Returns the offset of the first byte, as the peer passes to [`Stream::write_at`].
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the number of bytes, at least one.
    #[expect(clippy::len_without_is_empty, reason = "there is at least one byte")]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Copies bytes out of the buffer, starting at byte `at`.
    ///
    /// # Panics
    /// Panics if the range is not inside the buffer.
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        self.region.read(at, bytes);
    }

    /// Copies bytes into the buffer, starting at byte `at`.
    ///
    /// # Panics
    /// Panics if the range is not inside the buffer.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        self.region.write(at, bytes);
    }
}

impl Drop for MappedBuffer {
    fn drop(&mut self) {
        self.connection.unmap(self.index);
    }
}

fn too_long(len: usize) -> io::Error {
    let reason = format!("{len} bytes are too many for one mapping");
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

fn no_prefix(len: usize) -> io::Error {
    let reason = format!(
        "{len} bytes: the memory is shorter, or others use the memory and the last byte is inside an aligned word of 8 bytes; \
         map whole words"
    );
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

fn mappable_len(len: usize) -> io::Result<u32> {
    u32::try_from(len).map_err(|_| too_long(len))
}

impl Stream {
    /// Maps `len` zeroed bytes for the peer at `offset`; `None` selects their address. The peer learns of the
    /// mapping before the next bytes sent by this side.
    ///
    /// # Errors
    /// - `InvalidInput`: `len` is 0, or at least 4 GiB.
    /// - `OutOfMemory`: the peer has no room for another mapping
    ///   ([`Options::iomap_size`](crate::Options::iomap_size) of the *peer*), or the process may not lock
    ///   enough memory.
    pub fn map(&self, len: usize, offset: Option<u64>) -> io::Result<MappedBuffer> {
        let short = mappable_len(len)?;
        let region = self
            .connection()
            .pd()
            .alloc_remote(len, RemoteAccess::WRITE)?;
        self.map_region(region, short, offset)
    }

    /// Maps the first `len` bytes of the caller's own memory, like [`map`](Self::map). The rest stays
    /// inaccessible to the peer.
    ///
    /// # Errors
    /// As for [`map`](Self::map); and `InvalidInput` if `memory` is shorter than `len`, or has other users
    /// ([`Memory::is_exclusive`]) and `len` ends inside an aligned word of 8 bytes.
    pub fn map_memory(
        &self,
        memory: impl Memory,
        len: usize,
        offset: Option<u64>,
    ) -> io::Result<MappedBuffer> {
        let short = mappable_len(len)?;
        let pd = self.connection().pd();
        // The remote key covers the whole registration, so only the prefix is registered.
        let memory = Prefix::new(memory, len).map_err(|_| no_prefix(len))?;
        let registration = pd.register(memory).remote(RemoteAccess::WRITE);
        let region = registration.create().map_err(verbs::Error::from)?;
        self.map_region(region, short, offset)
    }

    fn map_region(
        &self,
        region: RemoteRegion,
        len: u32,
        offset: Option<u64>,
    ) -> io::Result<MappedBuffer> {
        let connection = Arc::clone(self.connection());
        let token = region.token();
        let offset = offset.unwrap_or(token.addr);
        let mapping = Mapping {
            offset,
            addr: token.addr,
            rkey: token.rkey,
            len,
        };
        let index = connection
            .map(mapping)
            .map_err(|err| io::Error::new(io::ErrorKind::OutOfMemory, err))?;
        Ok(MappedBuffer {
            region,
            offset,
            index,
            connection,
        })
    }

    /// Writes bytes into a mapping of the peer, starting at the peer's `offset`, without notification of the
    /// peer. Returns the number of bytes written: fewer where the mapping ends. Blocks until there is room,
    /// unless [nonblocking](Stream::set_nonblocking).
    ///
    /// # Errors
    /// - `WouldBlock`: no room, and the stream is nonblocking or its write timeout has elapsed.
    /// - `BrokenPipe`, `ConnectionReset`: the connection has ended.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.connection().write_at(bytes, offset, self.write_mode())
    }
}
