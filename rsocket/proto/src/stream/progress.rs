//! Detection of unacknowledged data, and of data that waits for the peer's room.

use std::time::Duration;

use super::{Stream, failure::Failure};

/// Number of checks within the timeout. Time alone proves nothing: the checking thread may have been stopped,
/// and the device with it.
const CHECKS_PER_TIMEOUT: u32 = 4;

/// Observations of a wait since the last check.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The wait has ended, if only for one request.
    has_advanced: bool,
    last: Option<Check>,
}

/// A check during a wait.
#[derive(Debug)]
struct Check {
    at: Duration,
    /// Number of preceding checks without progress.
    without_progress: u32,
    limit: Duration,
}

impl Progress {
    pub(super) fn advance(&mut self) {
        self.has_advanced = true;
    }

    /// Checks a wait at the time `now`. Returns the time of the next check, or `None` without progress for `limit`.
    fn check(&mut self, now: Duration, limit: Duration) -> Option<Duration> {
        let Self { has_advanced, last } = std::mem::take(self);
        let mut check = Check {
            at: now,
            without_progress: 0,
            limit,
        };
        if let Some(last) = last
            && !has_advanced
            && last.limit == limit
        {
            if now < last.next() {
                check = last;
            } else {
                check.without_progress = last.without_progress + 1;
            }
        }
        if check.without_progress >= CHECKS_PER_TIMEOUT {
            return None;
        }
        let next = check.next();
        self.last = Some(check);
        Some(next)
    }
}

impl Stream {
    /// Checks at the time `now` of any clock for completed requests, and for room granted by the peer. Returns the time
    /// of the next check, or `None` until another request is posted or refused. Data may wait for room without end if
    /// `stall_limit` is `None`.
    ///
    /// # Errors
    /// Requests are in flight, and none has completed for `limit` to 1.25 times `limit`; or data has waited for room
    /// for `stall_limit` to 1.25 times `stall_limit`. The stream has failed, unless already ended. The driver must flush
    /// the requests.
    pub fn check(
        &mut self,
        now: Duration,
        limit: Duration,
        stall_limit: Option<Duration>,
    ) -> Result<Option<Duration>, Failure> {
        let is_over = self.ending.peer_disconnected() || self.failure().is_some();
        let limit = (!self.sending.is_idle()).then_some(limit);
        let stall_limit =
            stall_limit.filter(|_| self.is_connected() && self.sending.waits_for_peer());
        let waits = [(&mut self.acks, limit), (&mut self.grants, stall_limit)];
        let mut next = None;
        for (progress, limit) in waits {
            let Some(limit) = limit.filter(|_| !is_over) else {
                *progress = Progress::default();
                continue;
            };
            let Some(at) = progress.check(now, limit) else {
                self.ending.fail(Failure::TimedOut);
                return Err(Failure::TimedOut);
            };
            next = Some(next.map_or(at, |other: Duration| other.min(at)));
        }
        Ok(next)
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

    /// A table whose next entry has this length, once.
    struct OneTarget(u32);

    impl Table for OneTarget {
        fn target(&mut self, _index: u32) -> [u8; Target::SIZE] {
            let target = Target {
                addr: 0x9000,
                rkey: 3,
                len: std::mem::take(&mut self.0),
            };
            target.encode(ByteOrder::HOST)
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
        assert_eq!(stream.check(at(5), LIMIT, None), Ok(None));
        let tag = send(&mut stream);
        assert_eq!(stream.check(at(5), LIMIT, None), Ok(Some(at(15))));
        stream.sent(tag, true);
        assert_eq!(stream.check(at(15), LIMIT, None), Ok(None));
        // Idle time does not count.
        let _ = send(&mut stream);
        assert_eq!(stream.check(at(1000), LIMIT, None), Ok(Some(at(1010))));
        assert_eq!(stream.failure(), None);
    }

    #[test]
    fn user_timeout_without_completion_fails_the_stream() {
        let mut stream = stream();
        let _ = send(&mut stream);
        let mut now = at(3);
        for expected in [13, 23, 33, 43] {
            assert_eq!(stream.check(now, LIMIT, None), Ok(Some(at(expected))));
            assert_eq!(stream.failure(), None);
            now = at(expected);
            // New probes and data are not progress.
            let _ = send(&mut stream);
            stream.keep_alive();
            while stream.control().is_some() {}
        }
        assert_eq!(stream.check(now, LIMIT, None), Err(Failure::TimedOut));
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
                now = stream.check(now, LIMIT, None).unwrap().unwrap();
            }
            stream.sent(tag, true);
            assert_eq!(
                stream.check(now, LIMIT, None).unwrap().is_none(),
                number == last
            );
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
        while let Ok(Some(next)) = stream.check(now, LIMIT, None) {
            now = next;
        }
        assert_eq!((now, stream.failure()), (LIMIT, Some(Failure::TimedOut)));
    }

    #[test]
    fn user_timeout_with_extreme_clock_does_not_overflow() {
        let mut stream = stream();
        let _ = send(&mut stream);
        assert_eq!(
            stream.check(at(u64::MAX), Duration::MAX, None),
            Ok(Some(Duration::MAX))
        );
        // A clock running backward causes no failure.
        assert!(stream.check(at(1), LIMIT, None).is_ok());
        assert_eq!(stream.failure(), None);
    }

    #[test]
    fn user_timeout_of_ended_stream_is_not_armed() {
        let mut stream = stream();
        let _ = send(&mut stream);
        assert!(stream.check(at(0), LIMIT, None).is_ok());
        stream.lost();
        assert_eq!(stream.check(at(100), LIMIT, None), Ok(None));
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
            assert!(stream.check(at(seconds), LIMIT, None).is_ok());
        }
        assert_eq!(stream.check(at(40), LIMIT, None), Err(Failure::TimedOut));
        assert_eq!(stream.failure(), None);
        // Data discarded by the peer need not arrive.
        let message = Message::Control(Control::Disconnect);
        stream.received(message, &mut NoTable).unwrap();
        assert_eq!(stream.check(at(50), LIMIT, None), Ok(None));
    }

    /// Uses up the room of the peer, all of it acknowledged.
    fn without_window() -> Stream {
        let mut stream = stream();
        while let Some(outgoing) = stream.send(&mut Burst::default(), 1 << 20) {
            stream.sent(outgoing.tag, true);
        }
        stream
    }

    #[test]
    fn user_timeout_without_room_fails_the_stream() {
        let mut stream = without_window();
        assert_eq!(stream.check(at(0), LIMIT, None), Ok(None));
        for seconds in [0, 10, 20, 30] {
            let next = Ok(Some(at(seconds + 10)));
            assert_eq!(stream.check(at(seconds), LIMIT, Some(LIMIT)), next);
            // The peer acknowledges, and grants nothing.
            stream.keep_alive();
            while let Some(outgoing) = stream.control() {
                stream.sent(outgoing.tag, true);
            }
        }
        let failed = stream.check(at(40), LIMIT, Some(LIMIT));
        assert_eq!(failed, Err(Failure::TimedOut));
        assert_eq!(stream.failure(), Some(Failure::TimedOut));
    }

    #[test]
    fn shutdown_message_follows_retained_bytes() {
        let mut stream = without_window();
        while let Some(outgoing) = stream.control() {
            stream.sent(outgoing.tag, true);
        }
        stream.set_unsent(2);
        assert!(!stream.can_send() && !stream.is_flushed());
        stream.shut_down(Direction::Both);
        assert_eq!((stream.control(), stream.unacked()), (None, 2));
        let mut table = OneTarget(2);
        stream.received(Message::Credit(1000), &mut table).unwrap();
        let data = stream.send(&mut Burst::default(), 2).unwrap();
        stream.set_unsent(0);
        // No new data after the shutdown.
        assert_eq!(stream.send(&mut Burst::default(), 1), None);
        let last = stream.control().unwrap();
        assert_eq!(last.tag, Tag::Control(Control::Disconnect));
        for tag in [data.tag, last.tag] {
            assert!(!stream.is_flushed());
            stream.sent(tag, true);
        }
        assert!(stream.is_flushed());
    }

    #[test]
    fn user_timeout_restarts_with_each_grant_of_room() {
        let mut stream = without_window();
        let mut table = OneTarget(1);
        for round in 0..5 {
            for seconds in [0, 10, 20, 30] {
                let now = at(round * 31 + seconds);
                assert!(stream.check(now, LIMIT, Some(LIMIT)).is_ok());
            }
            let credits = Message::Credit(1000 + u16::try_from(round).unwrap());
            table.0 = 1;
            stream.received(credits, &mut table).unwrap();
            // The data sent with it, and the next refusal.
            let outgoing = stream.send(&mut Burst::default(), 10).unwrap();
            stream.sent(outgoing.tag, true);
            assert_eq!(stream.send(&mut Burst::default(), 9), None);
        }
        assert_eq!(stream.failure(), None);
        // Without data to send, the peer need not grant any.
        table.0 = 1;
        stream.received(Message::Credit(2000), &mut table).unwrap();
        assert_eq!(stream.check(at(1000), LIMIT, Some(LIMIT)), Ok(None));
    }

    #[test]
    fn user_timeout_check_after_pause_counts_once() {
        let mut stream = stream();
        let _ = send(&mut stream);
        for _ in 0..10 {
            assert_eq!(stream.check(at(0), LIMIT, None), Ok(Some(at(10))));
            assert_eq!(stream.check(at(9), LIMIT, None), Ok(Some(at(10))));
        }
        for pause in [1000, 2000, 3000] {
            assert_eq!(
                stream.check(at(pause), LIMIT, None),
                Ok(Some(at(pause + 10)))
            );
        }
        // A new limit restarts the count.
        let other = 2 * LIMIT;
        assert_eq!(stream.check(at(4000), other, None), Ok(Some(at(4020))));
        for seconds in [4020, 4040, 4060] {
            assert!(stream.check(at(seconds), other, None).is_ok());
        }
        assert_eq!(stream.check(at(4080), other, None), Err(Failure::TimedOut));
    }
}
