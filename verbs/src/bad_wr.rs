//! Which requests a failed post has left unposted.
//!
//! One rule for every provider: a post that fails has refused the request that it names as bad, and
//! the requests behind it. It may have posted every other request, so their work stays in flight.
//!
//! Providers whose doorbell is a call of the kernel put requests where the kernel finds them, and
//! then ring. If only the doorbell fails, Soft-RoCE's and Soft-iWARP's return its error and name no
//! request (null): the kernel carries the requests out with the next doorbell.

use std::ptr;

/// `bad_wr`—The place where a provider names the first request that it has not posted.
#[derive(Debug)]
pub(crate) struct BadWr<W>(*mut W);

impl<W> BadWr<W> {
    /// What the place holds before the call. It is not null, which a provider may put there.
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

    /// Whether a post of one request, which has failed with `errno`, has refused it.
    #[cold]
    #[inline(never)]
    pub(crate) fn is_refused(&self, errno: i32, request: *const W) -> bool {
        self.first_of(errno, 1, |_| request) == 0
    }

    /// The index of the first request that a post of `count` requests, which has failed with
    /// `errno`, has refused; `count` if it may have posted all of them.
    pub(crate) fn first_of(
        &self,
        errno: i32,
        count: usize,
        request: impl Fn(usize) -> *const W,
    ) -> usize {
        let untouched = ptr::eq(self.0, Self::UNTOUCHED);
        if untouched && errno.saturating_abs() == libc::EOPNOTSUPP {
            // libibverbs' stand-in for a call that the provider lacks, which does nothing else.
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
    fn post_that_names_no_request_has_refused_none() {
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
    fn post_by_a_call_that_the_provider_lacks_has_refused_all() {
        let request = 0_u8;
        for errno in [libc::EOPNOTSUPP, -libc::EOPNOTSUPP] {
            assert!(BadWr::new().is_refused(errno, &raw const request));
        }
    }
}
