//! The requests left unposted by a failed post.
//!
//! One rule for every provider: a failed post has refused the request named as bad, and the
//! requests behind. Every other request may have been posted, so the work of those stays in flight.
//!
//! Some providers ring the doorbell by a call into the kernel: they write the requests to shared
//! memory, and then ring. If only the doorbell fails, the providers of Soft-RoCE and Soft-iWARP
//! return the doorbell's error and name no request (null): the kernel carries the requests out with
//! the next doorbell.

use std::ptr;

/// `bad_wr`—The out parameter for a provider to name the first unposted request.
#[derive(Debug)]
pub(crate) struct BadWr<W>(*mut W);

impl<W> BadWr<W> {
    /// The value before the call. Not null, since a provider may store null.
    const UNTOUCHED: *mut W = ptr::without_provenance_mut(1);

    #[inline]
    pub(crate) fn new() -> Self {
        Self(Self::UNTOUCHED)
    }

    /// The place, for C to write to.
    #[inline]
    pub(crate) fn place(&mut self) -> *mut *mut W {
        &raw mut self.0
    }

    /// Whether a post of one request, failed with `errno`, has refused `request`.
    #[cold]
    #[inline(never)]
    pub(crate) fn is_refused(&self, errno: i32, request: *const W) -> bool {
        self.first_of(errno, 1, |_| request) == 0
    }

    /// The index of the first request refused by a post of `count` requests, failed with `errno`;
    /// `count` if all may have been posted.
    pub(crate) fn first_of(
        &self,
        errno: i32,
        count: usize,
        request: impl Fn(usize) -> *const W,
    ) -> usize {
        let untouched = ptr::eq(self.0, Self::UNTOUCHED);
        if untouched && errno.saturating_abs() == libc::EOPNOTSUPP {
            // libibverbs' stub for a missing provider function; the stub does nothing else.
            return 0;
        }
        let named = (0..count).find(|&index| ptr::eq(request(index), self.0));
        named.unwrap_or(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_post_without_bad_wr_refuses_none() {
        let requests = [0_u8; 3];
        let request = |index: usize| &raw const requests[index];
        let first = |named, errno| BadWr(named).first_of(errno, requests.len(), request);
        for (index, _) in requests.iter().enumerate() {
            let named = request(index).cast_mut();
            assert_eq!(first(named, libc::EINVAL), index);
            assert_eq!(
                BadWr(named).is_refused(libc::ENOMEM, request(0)),
                index == 0
            );
        }
        for unnamed in [ptr::null_mut(), request(0).cast_mut().wrapping_add(9)] {
            assert_eq!(first(unnamed, libc::ENOMEM), 3);
            assert_eq!(first(unnamed, libc::EOPNOTSUPP), 3);
        }
        assert_eq!(first(BadWr::<u8>::UNTOUCHED, libc::ENOMEM), 3);
    }

    #[test]
    fn post_without_provider_support_refuses_all() {
        let request = 0_u8;
        for errno in [libc::EOPNOTSUPP, -libc::EOPNOTSUPP] {
            assert!(BadWr::new().is_refused(errno, &raw const request));
        }
    }
}
