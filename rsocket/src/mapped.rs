//! Memory that the peer writes to directly.

use std::{io, sync::Arc};

use verbs::{Memory, Prefix, RemoteAccess, RemoteRegion};

use crate::{connection::Connection, proto::Mapping, stream::Stream};

/// Memory that is mapped for the peer, who writes to it with [`Stream::write_at`] without this side
/// noticing.
///
/// What has been written before some bytes were sent is there when those bytes have been received.
/// Dropping it ends the mapping and takes the peer's right away; a peer that writes to it then
/// breaks the connection.
#[derive(Debug)]
#[must_use = "the mapping ends when this is dropped"]
pub struct MappedBuffer {
    region: RemoteRegion,
    offset: u64,
    index: u16,
    connection: Arc<Connection>,
}

impl MappedBuffer {
    /// The name of its first byte, for [`Stream::write_at`].
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "there is at least one byte")]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Copies bytes out, beginning at the byte `at`.
    ///
    /// # Panics
    /// Panics when the bytes are not inside.
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        self.region.read(at, bytes);
    }

    /// Copies bytes in, beginning at the byte `at`.
    ///
    /// # Panics
    /// Panics when the bytes are not inside.
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

fn mappable_len(len: usize) -> io::Result<u32> {
    u32::try_from(len).map_err(|_| too_long(len))
}

impl Stream {
    /// Maps `len` zero bytes for the peer, under the name `offset`, or their address if that is
    /// `None`. The peer is told before the next bytes that this side sends.
    ///
    /// # Errors
    /// - `InvalidInput`: no bytes, or 4 GiB or more.
    /// - `OutOfMemory`: the peer has no room for another mapping
    ///   ([`Options::iomap_size`](crate::Options::iomap_size) of the *peer*), or the process may not
    ///   lock that much memory.
    pub fn map(&self, len: usize, offset: Option<u64>) -> io::Result<MappedBuffer> {
        let short = mappable_len(len)?;
        let region = self
            .connection()
            .pd()
            .alloc_remote(len, RemoteAccess::WRITE)?;
        self.announce(region, short, offset)
    }

    /// Maps the first `len` bytes of memory of the caller's own, as [`map`](Self::map) does. The peer does not reach
    /// the rest.
    ///
    /// # Errors
    /// As for [`map`](Self::map); and `InvalidInput` if there are not as many.
    pub fn map_memory(
        &self,
        memory: impl Memory,
        len: usize,
        offset: Option<u64>,
    ) -> io::Result<MappedBuffer> {
        let short = mappable_len(len)?;
        let pd = self.connection().pd();
        // The key that the peer gets reaches all that is registered.
        let memory = Prefix::new(memory, len).map_err(|_| too_long(len))?;
        let registration = pd.register(memory).remote(RemoteAccess::WRITE);
        let region = registration.create().map_err(verbs::Error::from)?;
        self.announce(region, short, offset)
    }

    fn announce(
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

    /// Writes bytes to what the peer has mapped, beginning at the byte it calls `offset`. The peer
    /// does not notice. Returns how many were written: fewer where the mapping ends.
    ///
    /// # Errors
    /// - `WouldBlock`: there is no room, and the stream does not wait.
    /// - `BrokenPipe`, `ConnectionReset`: the connection has ended.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.connection()
            .write_at(bytes, offset, self.write_patience())
    }
}
