//! Environment variables by which libibverbs reports success for destroying calls that have failed.

use std::{env, io, sync::OnceLock};

use crate::error::{Error, Result};

/// libibverbs reads these at its first call in a process. With any value but `0`, a destroying call that fails with
/// `EIO` returns 0 (`verbs_is_destroy_err`). The kernel answers with `EIO` before a device that is being removed has
/// lost its access to memory.
const VARIABLES: [&str; 2] = ["RDMAV_ALLOW_DISASSOC_DESTROY", "MLX4_DEVICE_FATAL_CLEANUP"];

/// The variable found by a call of [`note`]. Later changes of the environment do not concern libibverbs.
static FOUND: OnceLock<&str> = OnceLock::new();

/// Records whether a variable is set. Precedes each call that may be libibverbs' first.
pub(crate) fn note() {
    let is_set = |name: &&str| env::var_os(name).is_some_and(|value| value != "0");
    if let Some(name) = VARIABLES.into_iter().find(is_set) {
        FOUND.get_or_init(|| name);
    }
}

/// Refuses, on behalf of `call`, an environment in which libibverbs hides failures of destroying calls.
///
/// [`Device::open`](crate::Device::open) checks this, as does every call of the safe API that opens a device. A program
/// that opens a device in C checks this first.
///
/// # Errors
/// - `Unsupported`: the environment variable `RDMAV_ALLOW_DISASSOC_DESTROY` or `MLX4_DEVICE_FATAL_CLEANUP` is set.
pub fn check_environment(call: &'static str) -> Result<()> {
    note();
    let Some(name) = FOUND.get() else {
        return Ok(());
    };
    let reason = format!(
        "the environment variable {name} is set, by which libibverbs reports that an object is destroyed while a \
         device being removed may still access its memory; unset {name} before the program starts"
    );
    Err(Error::refused(call, io::ErrorKind::Unsupported, reason))
}
