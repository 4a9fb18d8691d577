//! Requests whose doorbell, a call to the kernel on Soft-RoCE, fails.

use std::{fs::File, os::fd::AsRawFd, thread};

use verbs::op;

use crate::extended_posting::Link;

/// Calls `post` while every doorbell call fails.
fn unheard<T>(link: &mut Link, post: impl FnOnce(&mut Link) -> T) -> T {
    let full = File::options().write(true).open("/dev/full").unwrap();
    // SAFETY: the context is open.
    let kernel = unsafe { (*link.fixture.ctx.as_raw()).cmd_fd };
    // SAFETY: takes and returns numbers.
    let saved = unsafe { libc::dup(kernel) };
    // SAFETY: takes and returns numbers. The descriptor has no other user until restored.
    unsafe { libc::dup2(full.as_raw_fd(), kernel) };
    let posted = post(link);
    // SAFETY: see above.
    unsafe { libc::dup2(saved, kernel) };
    // SAFETY: the descriptor has no other owner.
    unsafe { libc::close(saved) };
    posted
}

#[test]
fn work_with_a_failed_doorbell_stays_in_flight() {
    let mut link = Link::new();
    for _ in 0..3 {
        link.expect_message();
    }
    // The device finds them with the next request, so the works are not returned before.
    let first = op::Send::new(link.buf(b"first"));
    let refused = unheard(&mut link, |link| {
        let mut batch = link.a.extended_batch().unwrap();
        batch.push(first).unwrap();
        batch.post().unwrap_err()
    });
    assert_eq!(refused.error.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(refused.value.len(), 0);
    let second = op::Send::new(link.buf(b"second"));
    unheard(&mut link, |link| link.a.post(second)).unwrap();
    assert_eq!(link.a.send_queue().in_flight(), 2);
    link.post(op::Send::new(link.buf(b"third")));
    for message in [&b"first"[..], b"second", b"third"] {
        assert_eq!(link.received().2, message);
    }
}

/// Changes the credentials of this thread alone, unlike the C library.
fn change_credentials() {
    // SAFETY: takes numbers: the real, effective and saved group, of which one changes.
    let changed = unsafe { libc::syscall(libc::SYS_setresgid, -1, 1000, -1) };
    assert_eq!(changed, 0);
}

/// The kernel refuses a `write` to the device then.
#[test]
fn requests_of_a_thread_with_other_credentials_arrive() {
    let mut link = Link::new();
    for _ in 0..4 {
        link.expect_message();
    }
    let changed = thread::spawn(|| {
        change_credentials();
        let single = op::Send::new(link.buf(b"single"));
        link.a.post(single).unwrap();
        assert!(link.a.take_doorbell_error().is_none());
        let listed = [b"first", b"other"].map(|bytes| op::Send::new(link.buf(bytes)));
        let mut batch = link.a.batch();
        for request in listed {
            batch.push(request).unwrap();
        }
        batch.post().unwrap();
        let written = op::Send::new(link.buf(b"written"));
        let mut batch = link.a.extended_batch().unwrap();
        batch.push(written).unwrap();
        batch.post().unwrap();
        link
    });
    let mut link = changed.join().unwrap();
    for message in [&b"single"[..], b"first", b"other", b"written"] {
        assert_eq!(link.received().2, message);
    }
}
