//! Objects of the host's device, as counted by the fabric.

/// Numbers of objects in the books of the fabric: only their sum.
pub(crate) fn counts() -> Vec<usize> {
    vec![crate::FABRIC.get().unwrap().books().len()]
}

/// Whether no number exceeds its former value.
pub(crate) fn are_released(before: &[usize]) -> bool {
    counts().as_slice() <= before
}
