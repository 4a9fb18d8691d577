//! Descriptors for events: pipes of messages in the kernel's layout.
//!
//! Messages are far below `PIPE_BUF`, so each is written and read as a whole.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    sync::{Mutex, PoisonError},
};

/// A pipe for messages of `N` bytes.
#[derive(Debug)]
pub(super) struct EventPipe<const N: usize> {
    reader: OwnedFd,
    writer: OwnedFd,
    /// Held by [`EventPipe::remove`], which takes all messages out for a moment: a concurrent removal would miss its
    /// own among them.
    removal: Mutex<()>,
}

/// The two ends of a new pipe; the write end is nonblocking.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    // SAFETY: an array of two descriptors.
    if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fresh, and not owned elsewhere.
    let reader = unsafe { OwnedFd::from_raw_fd(fds[0]) };
    // SAFETY: fresh, and not owned elsewhere.
    let writer = unsafe { OwnedFd::from_raw_fd(fds[1]) };
    // SAFETY: an open descriptor, and integers.
    if unsafe { libc::fcntl(fds[1], libc::F_SETFL, libc::O_NONBLOCK) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((reader, writer))
}

impl<const N: usize> EventPipe<N> {
    pub(super) fn new() -> io::Result<Self> {
        let (reader, writer) = pipe()?;
        Ok(Self {
            reader,
            writer,
            removal: Mutex::default(),
        })
    }

    /// The read end; blocking unless changed by the program.
    pub(super) fn fd(&self) -> RawFd {
        self.reader.as_raw_fd()
    }

    /// Writes a message. Returns false if the pipe is full.
    pub(super) fn send(&self, message: [u8; N]) -> bool {
        // SAFETY: an open descriptor, and a buffer of `N` bytes.
        let sent = unsafe { libc::write(self.writer.as_raw_fd(), message.as_ptr().cast(), N) };
        usize::try_from(sent) == Ok(N)
    }

    /// Reads a message. Returns `None` with `errno` set if the pipe is empty and the descriptor nonblocking, or after a
    /// signal.
    pub(super) fn receive(&self) -> Option<[u8; N]> {
        read(&self.reader)
    }

    /// Removes `unwanted` messages, and returns their number. Never blocks, even if the descriptor is blocking.
    pub(super) fn remove(&self, unwanted: impl Fn(&[u8; N]) -> bool) -> io::Result<u32> {
        let (reader, writer) = pipe()?;
        let _alone = self.removal.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = Vec::new();
        let mut removed = 0;
        // With this flag, splicing never blocks; a read from a blocking descriptor could.
        while self.splice(&writer) {
            match read::<N>(&reader) {
                Some(message) if unwanted(&message) => removed += 1,
                Some(message) => kept.push(message),
                None => break,
            }
        }
        for message in kept {
            self.send(message);
        }
        Ok(removed)
    }

    /// Moves a message to another pipe. Returns false if the pipe is empty.
    #[cfg(not(miri))]
    fn splice(&self, to: &OwnedFd) -> bool {
        let (from, to) = (self.reader.as_raw_fd(), to.as_raw_fd());
        let none = std::ptr::null_mut();
        // SAFETY: two open pipes, no offsets, and integers.
        let moved = unsafe { libc::splice(from, none, to, none, N, libc::SPLICE_F_NONBLOCK) };
        usize::try_from(moved) == Ok(N)
    }

    /// As above. Miri has no `splice`, but single reads and writes.
    #[cfg(miri)]
    fn splice(&self, to: &OwnedFd) -> bool {
        let from = self.reader.as_raw_fd();
        // SAFETY: an open descriptor, and integers.
        let flags = unsafe { libc::fcntl(from, libc::F_GETFL) };
        // SAFETY: as above.
        let _set = unsafe { libc::fcntl(from, libc::F_SETFL, flags | libc::O_NONBLOCK) };
        let message = self.receive();
        // SAFETY: as above.
        let _reset = unsafe { libc::fcntl(from, libc::F_SETFL, flags) };
        message.is_some_and(|message| {
            // SAFETY: an open descriptor, and a buffer of `N` bytes.
            let moved = unsafe { libc::write(to.as_raw_fd(), message.as_ptr().cast(), N) };
            usize::try_from(moved) == Ok(N)
        })
    }
}

fn read<const N: usize>(from: &OwnedFd) -> Option<[u8; N]> {
    let mut message = [0; N];
    // SAFETY: an open descriptor, and a buffer of `N` bytes.
    let read = unsafe { libc::read(from.as_raw_fd(), message.as_mut_ptr().cast(), N) };
    (usize::try_from(read) == Ok(N)).then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwanted_messages_are_removed_without_blocking() {
        let pipe = EventPipe::<8>::new().unwrap();
        for number in [1_u64, 2, 1, 3] {
            assert!(pipe.send(number.to_ne_bytes()));
        }
        let removed = pipe.remove(|message| *message == 1_u64.to_ne_bytes());
        assert_eq!(removed.unwrap(), 2);
        assert_eq!(pipe.receive(), Some(2_u64.to_ne_bytes()));
        assert_eq!(pipe.receive(), Some(3_u64.to_ne_bytes()));
        assert_eq!(pipe.remove(|_| true).unwrap(), 0);
    }

    #[test]
    fn concurrent_removals_each_find_their_messages() {
        let pipe = EventPipe::<8>::new().unwrap();
        std::thread::scope(|scope| {
            for own in [1_u64, 2] {
                let pipe = &pipe;
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        assert!(pipe.send(own.to_ne_bytes()));
                        let removed = pipe.remove(|message| *message == own.to_ne_bytes());
                        assert_eq!(removed.unwrap(), 1);
                    }
                });
            }
        });
    }

    #[test]
    fn full_pipe_takes_no_more_and_does_not_block() {
        let pipe = EventPipe::<8>::new().unwrap();
        let sent = (0..1 << 20).take_while(|_| pipe.send([7; 8])).count();
        assert!(sent >= 4096, "room for {sent} messages");
        assert!(!pipe.send([7; 8]));
    }
}
