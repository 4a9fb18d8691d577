//! Whether guests may run on the host's processors.

use std::path::Path;

use super::qemu::Accelerator;

/// Chooses the accelerator.
pub(crate) fn choose(_cache: &Path) -> Accelerator {
    Accelerator::Tcg
}
