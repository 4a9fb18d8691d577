//! Threads that sleep in a read of a channel.
//!
//! `O_NONBLOCK` is a property of the descriptor, not of the read, and changing it takes a system
//! call. So the flag stays as the last read needed it. While threads sleep in a read, a read that
//! must not sleep returns no event: the descriptor is in blocking mode, and if a sleeping thread
//! took the event between a check and the read, the read would sleep. No event is lost, since each
//! goes to a sleeping thread.

use std::{
    os::fd::BorrowedFd,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{error::Result, fd::set_nonblocking};

/// The threads that read a descriptor, which was made not to sleep.
#[derive(Debug, Default)]
pub(super) struct Sleepers {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How many threads are in a read that sleeps, or about to be.
    asleep: usize,
    /// Whether reads sleep, which does not change while some do.
    sleeps: bool,
}

impl State {
    fn set(&mut self, fd: BorrowedFd<'_>, sleeps: bool) -> Result<()> {
        if self.sleeps != sleeps {
            set_nonblocking(fd, !sleeps)?;
            self.sleeps = sleeps;
        }
        Ok(())
    }
}

impl Sleepers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a read that does not sleep; `None` if others do.
    pub(super) fn awake<T>(
        &self,
        fd: BorrowedFd<'_>,
        read: impl FnOnce() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let mut state = self.state();
        if state.asleep > 0 {
            return Ok(None);
        }
        state.set(fd, false)?;
        // The lock is held, so no thread begins to sleep during this read.
        read()
    }

    /// Makes a read that sleeps.
    pub(super) fn asleep<T>(
        &self,
        fd: BorrowedFd<'_>,
        read: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        {
            let mut state = self.state();
            state.set(fd, true)?;
            state.asleep += 1;
        }
        let result = read();
        self.state().asleep -= 1;
        result
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::{fd::AsFd, unix::net::UnixStream},
        sync::mpsc,
        thread,
        time::Duration,
    };

    use super::*;
    use crate::error::Error;

    /// Reads one byte, if there is one.
    fn read(mut from: &UnixStream) -> Result<Option<u8>> {
        let mut byte = [0];
        match from.read(&mut byte) {
            Ok(_) => Ok(Some(byte[0])),
            Err(err) if err.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            Err(err) => Err(Error::from_errno("read", err.raw_os_error().unwrap_or(0))),
        }
    }

    #[test]
    fn blocking_and_nonblocking_reads_alternate() {
        let (reader, mut writer) = UnixStream::pair().unwrap();
        set_nonblocking(reader.as_fd(), true).unwrap();
        let sleepers = Sleepers::default();
        for byte in 0..3 {
            let looked = sleepers.awake(reader.as_fd(), || read(&reader));
            assert_eq!(looked.unwrap(), None);
            let slept = thread::scope(|scope| {
                let sleeper = scope.spawn(|| sleepers.asleep(reader.as_fd(), || read(&reader)));
                thread::sleep(Duration::from_millis(20));
                writer.write_all(&[byte]).unwrap();
                sleeper.join().unwrap()
            });
            assert_eq!(slept.unwrap(), Some(byte), "it has slept until then");
            writer.write_all(&[byte]).unwrap();
            let looked = sleepers.awake(reader.as_fd(), || read(&reader));
            assert_eq!(looked.unwrap(), Some(byte));
        }
    }

    #[test]
    fn nonblocking_read_leaves_events_to_blocked_threads() {
        let (reader, mut writer) = UnixStream::pair().unwrap();
        set_nonblocking(reader.as_fd(), true).unwrap();
        let sleepers = Sleepers::default();
        let (asleep, pending_poll) = mpsc::channel();
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                sleepers.asleep(reader.as_fd(), || {
                    asleep.send(()).unwrap();
                    read(&reader)
                })
            });
            pending_poll.recv().unwrap();
            let looked: Option<u8> = sleepers
                .awake(reader.as_fd(), || unreachable!("it might sleep"))
                .unwrap();
            assert_eq!(looked, None);
            writer.write_all(&[7]).unwrap();
            assert_eq!(sleeper.join().unwrap().unwrap(), Some(7));
        });
    }
}
