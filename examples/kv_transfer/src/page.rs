//! Pages of registered memory.

use anyhow::ensure;
use verbs::{ProtectionDomain, RemoteAccess, RemoteRegion, RemoteToken};

/// Memory of pages of one size: a reader's target, or a writer's cache.
#[derive(Debug)]
pub struct Pages {
    region: RemoteRegion,
    len: usize,
    free: Vec<u32>,
}

/// Pages that belong to the holder of this value. [`Pages::give_back`] frees them.
#[derive(Debug)]
#[must_use = "give the pages back"]
pub struct PageSet(pub(crate) Vec<u32>);

impl PageSet {
    /// The numbers of the pages, in the order of the lease.
    pub fn numbers(&self) -> &[u32] {
        &self.0
    }
}

impl Pages {
    /// Registers `count` pages of `len` bytes.
    pub(crate) fn new(
        pd: &ProtectionDomain,
        count: u32,
        len: u32,
        access: RemoteAccess,
    ) -> anyhow::Result<Self> {
        ensure!(
            count > 0 && len > 0,
            "{count} pages of {len} bytes: neither may be zero"
        );
        let len = len as usize;
        Ok(Self {
            region: pd.alloc_remote(count as usize * len, access)?,
            len,
            free: (0..count).rev().collect(),
        })
    }

    /// Length of each page in bytes.
    pub fn page_len(&self) -> usize {
        self.len
    }

    /// Number of all pages.
    pub fn count(&self) -> usize {
        self.region.len() / self.len
    }

    /// Number of free pages.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes free pages. `None` if there are fewer.
    pub fn take(&mut self, count: usize) -> Option<PageSet> {
        let start = self.free.len().checked_sub(count)?;
        Some(PageSet(self.free.split_off(start)))
    }

    /// Frees pages.
    pub fn give_back(&mut self, pages: PageSet) {
        self.free.extend(pages.0);
    }

    /// Copies a page out.
    ///
    /// # Panics
    /// There is no page of this number.
    pub fn read(&self, page: u32) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.read_start(page, &mut bytes);
        bytes
    }

    /// Copies the first bytes of a page out.
    ///
    /// # Panics
    /// There is no page of this number, or it has fewer bytes.
    pub fn read_start(&self, page: u32, bytes: &mut [u8]) {
        assert!(
            bytes.len() <= self.len,
            "{} bytes are longer than a page",
            bytes.len()
        );
        self.region.read(page as usize * self.len, bytes);
    }

    /// Copies bytes to the start of a page.
    ///
    /// # Panics
    /// There is no page of this number, or the bytes do not fit.
    pub fn write(&self, page: u32, bytes: &[u8]) {
        assert!(
            bytes.len() <= self.len,
            "{} bytes are longer than a page",
            bytes.len()
        );
        self.region.write(page as usize * self.len, bytes);
    }

    pub(crate) fn token(&self) -> RemoteToken {
        self.region.token()
    }

    /// One page, for a request.
    pub(crate) fn slice(&self, page: u32) -> RemoteRegion {
        let start = page as usize * self.len;
        self.region.slice(start..start + self.len)
    }
}
