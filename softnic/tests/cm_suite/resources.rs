//! Objects of the host's device, as counted by the fabric.

/// The books of the fabric.
pub(crate) fn shown() -> String {
    crate::FABRIC.get().unwrap().books().to_string()
}
