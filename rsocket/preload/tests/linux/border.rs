//! Cancellation of threads, and handlers of signals, in calls.

use std::{
    ffi::c_void,
    fs, mem, ptr,
    sync::atomic::{
        AtomicI32, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use libc::{c_int, pollfd, pthread_t};

use crate::program::{Fd, Rdma, Tcp, connected, exclusive};

unsafe extern "C-unwind" {
    fn recv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> isize;
    fn send(fd: c_int, buf: *const c_void, len: usize, flags: c_int) -> isize;
    fn read(fd: c_int, buf: *mut c_void, len: usize) -> isize;
    fn accept(fd: c_int, addr: *mut libc::sockaddr, len: *mut libc::socklen_t) -> c_int;
    fn poll(fds: *mut pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
    fn ppoll(
        fds: *mut pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int;
    fn select(
        count: c_int,
        read: *mut libc::fd_set,
        write: *mut libc::fd_set,
        except: *mut libc::fd_set,
        timeout: *mut libc::timeval,
    ) -> c_int;
    fn pthread_create(
        thread: *mut pthread_t,
        attr: *const libc::pthread_attr_t,
        start: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
        argument: *mut c_void,
    ) -> c_int;
    fn pthread_cancel(thread: pthread_t) -> c_int;
}

/// The number of the thread in a call; 0 before.
static THREAD: AtomicI32 = AtomicI32::new(0);

/// Kinds of blocking calls. Their frames have nothing to drop.
type Call = unsafe extern "C-unwind" fn(c_int);

unsafe extern "C-unwind" fn by_recv(fd: c_int) {
    let mut byte = 0_u8;
    // SAFETY: one byte is writable.
    unsafe { recv(fd, (&raw mut byte).cast(), 1, 0) };
}

unsafe extern "C-unwind" fn by_read(fd: c_int) {
    let mut byte = 0_u8;
    // SAFETY: one byte is writable.
    unsafe { read(fd, (&raw mut byte).cast(), 1) };
}

unsafe extern "C-unwind" fn by_send(fd: c_int) {
    let bytes = [0_u8; 4096];
    // SAFETY: the bytes are readable.
    while unsafe { send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) } > 0 {}
}

unsafe extern "C-unwind" fn by_accept(fd: c_int) {
    // SAFETY: null addresses.
    unsafe { accept(fd, ptr::null_mut(), ptr::null_mut()) };
}

unsafe extern "C-unwind" fn by_poll(fd: c_int) {
    let mut entry = pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { poll(&raw mut entry, 1, -1) };
}

unsafe extern "C-unwind" fn by_ppoll(fd: c_int) {
    let mut entry = pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: a set is plain data.
    let mask: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: one entry, and a valid mask.
    unsafe { ppoll(&raw mut entry, 1, ptr::null(), &raw const mask) };
}

unsafe extern "C-unwind" fn by_select(fd: c_int) {
    // SAFETY: a set is plain data.
    let mut set: libc::fd_set = unsafe { mem::zeroed() };
    // SAFETY: the number is below 1024.
    unsafe { libc::FD_SET(fd, &raw mut set) };
    let (none, time) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: a valid set, and null ones.
    unsafe { select(fd + 1, &raw mut set, none, none, time) };
}

/// A call to make, and its descriptor.
struct Blocked {
    call: Call,
    fd: c_int,
}

extern "C-unwind" fn run(blocked: *mut c_void) -> *mut c_void {
    // SAFETY: numbers only.
    THREAD.store(unsafe { libc::gettid() }, SeqCst);
    // SAFETY: the test keeps the value until the thread has ended.
    let Blocked { call, fd } = unsafe { &*blocked.cast::<Blocked>() };
    // SAFETY: a descriptor of the test.
    unsafe { call(*fd) };
    ptr::null_mut()
}

/// Waits until a condition holds, which a correct library fulfills.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(30), "never {what}");
        thread::yield_now();
    }
}

/// Whether a thread sleeps.
fn sleeps(id: c_int) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{id}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| rest.trim_start().starts_with('S'))
}

/// Cancels a thread that is blocked in a call. Returns whether the thread has ended by it.
fn cancelled(call: Call, fd: &Fd) -> bool {
    let mut blocked = Blocked { call, fd: fd.0 };
    THREAD.store(0, SeqCst);
    let mut thread: pthread_t = 0;
    let argument = (&raw mut blocked).cast();
    // SAFETY: the value of the argument outlives the thread, which is joined below.
    let created = unsafe { pthread_create(&raw mut thread, ptr::null(), run, argument) };
    assert_eq!(created, 0);
    wait_until("asleep", || {
        let id = THREAD.load(SeqCst);
        id != 0 && sleeps(id)
    });
    // SAFETY: the thread exists.
    assert_eq!(unsafe { pthread_cancel(thread) }, 0);
    let mut end = ptr::null_mut();
    // SAFETY: the thread exists, and is joined once.
    assert_eq!(unsafe { libc::pthread_join(thread, &raw mut end) }, 0);
    end.addr() == usize::MAX
}

#[test]
fn thread_is_cancelled_in_each_blocking_call() {
    let _exclusive = exclusive();
    for kind in [Tcp, Rdma] {
        let [client, server] = connected(kind);
        let calls: [Call; 5] = [by_recv, by_read, by_poll, by_ppoll, by_select];
        for call in calls {
            assert!(cancelled(call, &server), "{kind:?}");
        }
        assert!(cancelled(by_accept, &Fd::listener(kind)), "{kind:?}");
        // The stream works as before.
        client.send(b"after").unwrap();
        assert_eq!(server.recv(9).unwrap(), b"after");
        assert!(cancelled(by_send, &client), "{kind:?}");
        assert!(!server.recv(9).unwrap().is_empty());
    }
}

/// A blocked call that waits for the turn of another one.
#[test]
fn thread_behind_another_reader_is_cancelled() {
    let _exclusive = exclusive();
    let [client, server] = connected(Rdma);
    let fd = server.0;
    let reader = thread::spawn(move || {
        let mut byte = 0_u8;
        // SAFETY: one byte is writable.
        unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, 0) }
    });
    assert!(cancelled(by_recv, &server));
    client.send(b"!").unwrap();
    assert_eq!(reader.join().unwrap(), 1);
}

/// `setuid` and its kin make their system call in every thread of the process.
#[test]
fn change_of_user_ids_does_not_wait_for_a_blocked_call() {
    let _exclusive = exclusive();
    for kind in [Tcp, Rdma] {
        let [client, server] = connected(kind);
        let fd = server.0;
        THREAD.store(0, SeqCst);
        let reader = thread::spawn(move || {
            let mut byte = 0_u8;
            // SAFETY: numbers only.
            THREAD.store(unsafe { libc::gettid() }, SeqCst);
            // SAFETY: one byte is writable.
            unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, 0) }
        });
        wait_until("asleep", || {
            let id = THREAD.load(SeqCst);
            id != 0 && sleeps(id)
        });
        let same = libc::uid_t::MAX;
        // SAFETY: numbers only.
        let change = thread::spawn(move || unsafe { libc::setresuid(same, same, same) });
        let start = Instant::now();
        while !change.is_finished() {
            if start.elapsed() > Duration::from_secs(30) {
                // No thread can end meanwhile, so this one cannot either.
                eprintln!("{kind:?}: the change of the user's id waits for the call");
                std::process::abort();
            }
            thread::yield_now();
        }
        assert_eq!(change.join().unwrap(), 0);
        client.send(b"!").unwrap();
        assert_eq!(reader.join().unwrap(), 1, "{kind:?}");
    }
}

/// The socket and the number of bytes written by the handler.
static TO: AtomicI32 = AtomicI32::new(-1);
static WRITTEN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn write_one(_: c_int) {
    let to = TO.load(Relaxed);
    // SAFETY: one byte is readable.
    if to >= 0 && unsafe { libc::write(to, b"h".as_ptr().cast(), 1) } == 1 {
        WRITTEN.fetch_add(1, Relaxed);
    }
}

/// Sets the handler of a signal.
pub(crate) fn handle(signal: c_int, handler: extern "C" fn(c_int), flags: c_int) {
    // SAFETY: the structure is plain data.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = flags;
    // SAFETY: a valid action.
    let set = unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
    assert_eq!(set, 0);
}

/// Number of signals sent to the thread that writes.
const SIGNALS: usize = 2000;

/// A handler writes to the socket that the thread writes to, with a lock of the socket taken.
#[test]
fn write_in_a_handler_that_interrupts_a_write_goes_through() {
    let _exclusive = exclusive();
    let [client, server] = connected(Rdma);
    let from = server.0;
    let reader = thread::spawn(move || {
        let mut total = 0;
        let mut bytes = [0_u8; 4096];
        loop {
            // SAFETY: the bytes are writable.
            let got = unsafe { libc::recv(from, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            match usize::try_from(got) {
                Ok(0) => return total,
                Ok(got) => total += got,
                Err(_) => assert_eq!(
                    std::io::Error::last_os_error().raw_os_error(),
                    Some(libc::EINTR)
                ),
            }
        }
    });
    TO.store(client.0, Relaxed);
    WRITTEN.store(0, Relaxed);
    handle(libc::SIGALRM, write_one, libc::SA_RESTART);
    // SAFETY: no preconditions.
    let writer = unsafe { libc::pthread_self() };
    let signals = thread::spawn(move || {
        for sent in 0..SIGNALS {
            let before = WRITTEN.load(Relaxed);
            // SAFETY: the thread waits for the end of this one.
            assert_eq!(unsafe { libc::pthread_kill(writer, libc::SIGALRM) }, 0);
            let start = Instant::now();
            while WRITTEN.load(Relaxed) == before {
                if start.elapsed() > Duration::from_secs(30) {
                    // The writer cannot be ended otherwise.
                    eprintln!("the writer does not go on after {sent} signals");
                    std::process::abort();
                }
                thread::yield_now();
            }
        }
    });
    let mut written = 0;
    while !signals.is_finished() {
        written += client.send(&[b'm'; 200]).unwrap();
    }
    signals.join().unwrap();
    TO.store(-1, Relaxed);
    client.shut_down(libc::SHUT_WR).unwrap();
    assert_eq!(
        reader.join().unwrap(),
        written + WRITTEN.load(Relaxed),
        "bytes of the thread, and of the handler"
    );
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);

pub(crate) extern "C" fn count(_: c_int) {
    HANDLED.fetch_add(1, Relaxed);
}

extern "C" fn receive_one(got: *mut c_void) -> *mut c_void {
    // SAFETY: the test keeps the value until the thread has ended.
    let got = unsafe { &*got.cast::<AtomicI32>() };
    // SAFETY: numbers only.
    THREAD.store(unsafe { libc::gettid() }, SeqCst);
    let mut byte = 0_u8;
    // SAFETY: one byte is writable.
    let received = unsafe { libc::recv(got.load(SeqCst), (&raw mut byte).cast(), 1, 0) };
    let error = std::io::Error::last_os_error().raw_os_error().unwrap();
    let result = if received < 0 { -error } else { 1 };
    got.store(result, SeqCst);
    ptr::null_mut()
}

/// The result of a blocked `recv` after a signal, and after a byte if it goes on; -`errno` after a failure.
fn received_after(signal: c_int, kind: crate::program::Kind) -> c_int {
    let [client, server] = connected(kind);
    let got = AtomicI32::new(server.0);
    THREAD.store(0, SeqCst);
    let mut thread: pthread_t = 0;
    let argument = (&raw const got).cast_mut().cast();
    let handled = HANDLED.load(SeqCst);
    // SAFETY: the value of the argument outlives the thread, which is joined below.
    let created =
        unsafe { libc::pthread_create(&raw mut thread, ptr::null(), receive_one, argument) };
    assert_eq!(created, 0);
    wait_until("asleep", || {
        let id = THREAD.load(SeqCst);
        id != 0 && sleeps(id)
    });
    // SAFETY: the thread exists.
    assert_eq!(unsafe { libc::pthread_kill(thread, signal) }, 0);
    if signal == libc::SIGUSR1 {
        wait_until("handled", || HANDLED.load(SeqCst) > handled);
    }
    client.send(b"!").unwrap();
    // SAFETY: the thread exists, and is joined once.
    assert_eq!(unsafe { libc::pthread_join(thread, ptr::null_mut()) }, 0);
    got.load(SeqCst)
}

/// Signals without a handler end no call, those with `SA_RESTART` no `recv`.
#[test]
fn blocked_recv_ends_only_by_a_handler_without_sa_restart() {
    let _exclusive = exclusive();
    for (flags, expected) in [(libc::SA_RESTART, 1), (0, -libc::EINTR)] {
        handle(libc::SIGUSR1, count, flags);
        for kind in [Tcp, Rdma] {
            assert_eq!(received_after(libc::SIGUSR1, kind), expected, "{kind:?}");
            assert_eq!(received_after(libc::SIGWINCH, kind), 1, "{kind:?}");
        }
    }
}
