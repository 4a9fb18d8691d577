//! Threads that sleep in a read of a channel.
//!
//! Whether a read sleeps is up to the descriptor, not to the read, and to change that takes a call of the
//! kernel. So it is left as the last read wanted it. A thread that does not want to sleep reads nothing while
//! others do: between looking and reading, one of them may take what there was. It would get nothing anyway,
//! since what comes is for them.

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
        // Nobody begins to sleep meanwhile.
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
    fn reads_sleep_or_do_not_in_any_order() {
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
    fn who_does_not_sleep_leaves_everything_to_those_that_do() {
        let (reader, mut writer) = UnixStream::pair().unwrap();
        set_nonblocking(reader.as_fd(), true).unwrap();
        let sleepers = Sleepers::default();
        let (asleep, begun) = mpsc::channel();
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                sleepers.asleep(reader.as_fd(), || {
                    asleep.send(()).unwrap();
                    read(&reader)
                })
            });
            begun.recv().unwrap();
            let looked: Option<u8> = sleepers
                .awake(reader.as_fd(), || unreachable!("it might sleep"))
                .unwrap();
            assert_eq!(looked, None);
            writer.write_all(&[7]).unwrap();
            assert_eq!(sleeper.join().unwrap().unwrap(), Some(7));
        });
    }
}
