//! Detection of unacknowledged data.

use std::time::Duration;

use super::{Stream, failure::Failure};

/// Number of checks within the timeout. Time alone proves nothing: the checking thread may have been stopped,
/// and the device with it.
const CHECKS_PER_TIMEOUT: u32 = 4;

/// Observations since the last check.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// A request has completed.
    has_completed: bool,
    last: Option<Check>,
}

/// A check with requests in flight.
#[derive(Debug)]
struct Check {
    at: Duration,
    /// Number of preceding checks without progress.
    without_progress: u32,
    limit: Duration,
}

impl Progress {
    pub(super) fn completed(&mut self) {
        self.has_completed = true;
    }
}

impl Stream {
    /// Checks at the time `now` of any clock for completed requests. Returns the time of the next check, or
    /// `None` until another request is posted.
    ///
    /// # Errors
    /// Requests are in flight, and none has completed for `limit` to 1.25 times `limit`. The stream has
    /// failed, unless already ended. The driver must flush the requests.
    pub fn check(&mut self, now: Duration, limit: Duration) -> Result<Option<Duration>, Failure> {
        let Progress {
            has_completed,
            last,
        } = std::mem::take(&mut self.progress);
        if self.sending.is_idle() || self.ending.peer_disconnected() || self.failure().is_some() {
            return Ok(None);
        }
        let mut check = Check {
            at: now,
            without_progress: 0,
            limit,
        };
        if let Some(last) = last
            && !has_completed
            && last.limit == limit
        {
            if now < last.next() {
                check = last;
            } else {
                check.without_progress = last.without_progress + 1;
            }
        }
        if check.without_progress >= CHECKS_PER_TIMEOUT {
            self.ending.fail(Failure::TimedOut);
            return Err(Failure::TimedOut);
        }
        let next = check.next();
        self.progress.last = Some(check);
        Ok(Some(next))
    }
}

impl Check {
    fn next(&self) -> Duration {
        self.at.saturating_add(self.limit / CHECKS_PER_TIMEOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ByteOrder, Control, Mapping, Message, Target,
        stream::{Burst, Direction, Local, Settings, Table, Tag},
    };

    /// A table without entries.
    struct NoTable;

    impl Table for NoTable {
        fn target(&mut self, _index: u32) -> [u8; Target::SIZE] {
            [0; Target::SIZE]
        }

        fn clear_target(&mut self, _index: u32) {}

        fn mapping(&mut self, _index: u16) -> [u8; Mapping::SIZE] {
            [0; Mapping::SIZE]
        }
    }

    const LIMIT: Duration = Duration::from_secs(40);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Creates a stream whose peer has room.
    fn stream() -> Stream {
        let settings = Settings::default();
        let local = Local {
            table_addr: 0x1000,
            table_rkey: 1,
            buffer_addr: 0x2000,
            buffer_rkey: 2,
            order: ByteOrder::HOST,
        };
        let peer = Stream::connect_data(&settings, &local);
        Stream::new(settings, &local, &peer)
    }

    fn send(stream: &mut Stream) -> Tag {
        stream.send(&mut Burst::default(), 10).unwrap().tag
    }

    #[test]
    fn user_timeout_of_idle_stream_is_not_armed() {
        let mut stream = stream();
        assert_eq!(stream.check(at(5), LIMIT), Ok(None));
        let tag = send(&mut stream);
        assert_eq!(stream.check(at(5), LIMIT), Ok(Some(at(15))));
        stream.sent(tag, true);
        assert_eq!(stream.check(at(15), LIMIT), Ok(None));
        // Idle time does not count.
        let _ = send(&mut stream);
        assert_eq!(stream.check(at(1000), LIMIT), Ok(Some(at(1010))));
        assert_eq!(stream.failure(), None);
    }

    #[test]
    fn user_timeout_without_completion_fails_the_stream() {
        let mut stream = stream();
        let _ = send(&mut stream);
        let mut now = at(3);
        for expected in [13, 23, 33, 43] {
            assert_eq!(stream.check(now, LIMIT), Ok(Some(at(expected))));
            assert_eq!(stream.failure(), None);
            now = at(expected);
            // New probes and data are not progress.
            let _ = send(&mut stream);
            stream.keep_alive();
            while stream.control().is_some() {}
        }
        assert_eq!(stream.check(now, LIMIT), Err(Failure::TimedOut));
        assert_eq!(stream.failure(), Some(Failure::TimedOut));
        let readiness = stream.readiness();
        assert!(readiness.readable && readiness.writable && readiness.failed);
        assert!(stream.is_flushed() && stream.control().is_none());
        // Flushed by the device.
        stream.sent(Tag::Data(10), false);
        assert_eq!(stream.failure(), Some(Failure::TimedOut));
    }

    #[test]
    fn user_timeout_restarts_with_each_completion() {
        let mut stream = stream();
        let tags: Vec<_> = (0..10).map(|_| send(&mut stream)).collect();
        let mut now = at(0);
        let last = tags.len() - 1;
        for (number, tag) in tags.into_iter().enumerate() {
            // Three checks without a completion, then one completion.
            for _ in 0..3 {
                now = stream.check(now, LIMIT).unwrap().unwrap();
            }
            stream.sent(tag, true);
            assert_eq!(stream.check(now, LIMIT).unwrap().is_none(), number == last);
        }
        assert_eq!(stream.failure(), None);
    }

    #[test]
    fn keepalive_without_acknowledgement_times_out() {
        let mut stream = stream();
        stream.keep_alive();
        let tags: Vec<_> = std::iter::from_fn(|| stream.control())
            .map(|outgoing| outgoing.tag)
            .collect();
        for tag in tags {
            if tag != Tag::KeepAlive {
                stream.sent(tag, true);
            }
        }
        let mut now = at(0);
        while let Ok(Some(next)) = stream.check(now, LIMIT) {
            now = next;
        }
        assert_eq!((now, stream.failure()), (LIMIT, Some(Failure::TimedOut)));
    }

    #[test]
    fn user_timeout_with_extreme_clock_does_not_overflow() {
        let mut stream = stream();
        let _ = send(&mut stream);
        assert_eq!(
            stream.check(at(u64::MAX), Duration::MAX),
            Ok(Some(Duration::MAX))
        );
        // A clock running backward causes no failure.
        assert!(stream.check(at(1), LIMIT).is_ok());
        assert_eq!(stream.failure(), None);
    }

    #[test]
    fn user_timeout_of_ended_stream_is_not_armed() {
        let mut stream = stream();
        let _ = send(&mut stream);
        assert!(stream.check(at(0), LIMIT).is_ok());
        stream.lost();
        assert_eq!(stream.check(at(100), LIMIT), Ok(None));
        assert_eq!(stream.failure(), Some(Failure::Lost));
    }

    #[test]
    fn user_timeout_after_shutdown_releases_pending_requests() {
        let mut stream = stream();
        let _ = send(&mut stream);
        stream.shut_down(Direction::Write);
        while stream.control().is_some() {}
        let message = Message::Control(Control::Shutdown);
        stream.received(message, &mut NoTable).unwrap();
        assert!(!stream.is_connected() && !stream.is_flushed());
        for seconds in [0, 10, 20, 30] {
            assert!(stream.check(at(seconds), LIMIT).is_ok());
        }
        assert_eq!(stream.check(at(40), LIMIT), Err(Failure::TimedOut));
        assert_eq!(stream.failure(), None);
        // Data discarded by the peer need not arrive.
        let message = Message::Control(Control::Disconnect);
        stream.received(message, &mut NoTable).unwrap();
        assert_eq!(stream.check(at(50), LIMIT), Ok(None));
    }

    #[test]
    fn user_timeout_check_after_pause_counts_once() {
        let mut stream = stream();
        let _ = send(&mut stream);
        for _ in 0..10 {
            assert_eq!(stream.check(at(0), LIMIT), Ok(Some(at(10))));
            assert_eq!(stream.check(at(9), LIMIT), Ok(Some(at(10))));
        }
        for pause in [1000, 2000, 3000] {
            assert_eq!(stream.check(at(pause), LIMIT), Ok(Some(at(pause + 10))));
        }
        // A new limit restarts the count.
        let other = 2 * LIMIT;
        assert_eq!(stream.check(at(4000), other), Ok(Some(at(4020))));
        for seconds in [4020, 4040, 4060] {
            assert!(stream.check(at(seconds), other).is_ok());
        }
        assert_eq!(stream.check(at(4080), other), Err(Failure::TimedOut));
    }
}
