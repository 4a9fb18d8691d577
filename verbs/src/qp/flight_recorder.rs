//! The last posts and completions of a queue pair, for the time after a failure.

use std::{any, fmt, time::Instant};

use ibverbs_sys as ffi;

use super::{
    pair::QueuePair,
    queues::{ReceiveQueue, SendQueue},
    state::State,
    transport::Transport,
};
use crate::{
    bounded::QpNum,
    cq::{WcStatus, WorkCompletion},
    error::Error,
    work::SgeList,
    wr_id::WrId,
};

/// Events of one queue, the newest in place of the oldest.
#[derive(Debug)]
pub(super) struct Recorder {
    /// Allocated at the creation of the queue pair, and never longer than its capacity.
    events: Vec<Event>,
    /// Maximum number of events.
    limit: usize,
    /// Place of the next event, once there are `limit`.
    next: usize,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    at: Instant,
    id: WrId,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// Posted, or added to a batch: the type of the request, and the bytes of its elements.
    Posted {
        request: &'static str,
        bytes: u64,
        signaled: bool,
    },
    /// A receive, posted or added to a batch.
    Receive { bytes: u64 },
    /// The device refused this number of requests, with this error number.
    Refused { requests: usize, errno: i32 },
    /// A batch with this number of requests was not posted.
    Dropped { requests: usize },
    /// Completed.
    Completed {
        status: WcStatus,
        bytes: usize,
        vendor_err: u32,
    },
}

impl Recorder {
    /// Allocates the memory for `limit` events.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            events: Vec::with_capacity(limit),
            limit,
            next: 0,
        }
    }

    fn record(&mut self, id: WrId, what: What) {
        if self.limit == 0 {
            return;
        }
        let at = Instant::now();
        let event = Event { at, id, what };
        if self.events.len() < self.limit {
            // Within the capacity, so without an allocation.
            self.events.push(event);
            return;
        }
        if let Some(oldest) = self.events.get_mut(self.next) {
            *oldest = event;
        }
        self.next = (self.next + 1) % self.limit;
    }

    /// Length of a request in bytes.
    pub(super) fn bytes(sges: &SgeList) -> u64 {
        sges.bytes()
    }

    pub(super) fn posted<R>(&mut self, id: WrId, bytes: u64, flags: ffi::ibv_send_flags) {
        let what = What::Posted {
            request: any::type_name::<R>(),
            bytes,
            signaled: flags.0 & ffi::ibv_send_flags::IBV_SEND_SIGNALED.0 != 0,
        };
        self.record(id, what);
    }

    pub(super) fn received(&mut self, id: WrId, bytes: u64) {
        self.record(id, What::Receive { bytes });
    }

    pub(super) fn refused(&mut self, first: WrId, requests: usize, errno: i32) {
        self.record(first, What::Refused { requests, errno });
    }

    pub(super) fn dropped(&mut self, first: WrId, requests: usize) {
        if requests > 0 {
            self.record(first, What::Dropped { requests });
        }
    }

    pub(super) fn completed(&mut self, wc: &WorkCompletion<'_>) {
        let what = What::Completed {
            status: wc.status(),
            bytes: wc.byte_len(),
            vendor_err: wc.vendor_err(),
        };
        self.record(wc.wr_id(), what);
    }

    /// The events, the oldest first.
    fn events(&self) -> impl Iterator<Item = &Event> {
        let (newer, older) = self.events.split_at(self.next.min(self.events.len()));
        older.iter().chain(newer)
    }
}

/// The last posts and completions of a queue pair, or of one of its queues, of the
/// [number](super::QueuePairBuilder::flight_recorder) set at its creation.
///
/// Displays a line for each, the newest last, with the time before the newest.
///
/// # Examples
/// ```
/// # let peer = doctest::peer();
/// # let token = peer.token();
/// # let ctx = verbs::devices()?.first().expect("there is a device").open()?;
/// # let (pd, mut cq) = (ctx.alloc_pd()?, ctx.cq_builder(2).waitable().create()?);
/// use verbs::{RemoteToken, op};
///
/// let qp = pd.qp_builder::<verbs::Rc>(&cq, &cq).flight_recorder(4).create()?;
/// # let mut qp = peer.connect(qp);
/// // Once connected:
/// qp.post_recv(qp.pd().alloc_buf(64)?)?;
/// let wrong = RemoteToken { rkey: !token.rkey, ..token };
/// qp.post(op::Write::new(qp.pd().register_buf(*b"hello")?, wrong))?;
/// for wc in cq.wait(None)? {
///     let done = qp.complete(wc).expect("there is no other queue pair");
///     if let Err(failed) = done.ok() {
///         eprintln!("{failed}\n{}", qp.flight_record());
/// #       let text = qp.flight_record().to_string();
/// #       assert!(text.contains("send #0: posted Write<Buf>, 5 bytes"), "{text}");
/// #       assert!(text.contains("send #0: REM_ACCESS_ERR"), "{text}");
///     }
/// }
/// # Ok::<(), verbs::Error>(())
/// ```
/// prints, after the failure, for example
/// ```text
/// last events of queue pair 0x000012:
///     -1.52ms receive #0: posted, 64 bytes
///     -1.38ms send #0: posted Write<Buf>, 5 bytes
///          0s send #0: REM_ACCESS_ERR
/// ```
#[derive(Clone, Copy)]
pub struct FlightRecord<'q> {
    qp_num: QpNum,
    queues: [Option<&'q Recorder>; 2],
}

impl FlightRecord<'_> {
    /// The number of recorded events.
    pub fn len(&self) -> usize {
        self.queues
            .iter()
            .flatten()
            .map(|queue| queue.events.len())
            .sum()
    }

    /// Whether no event has been recorded, or the queue pair was created without a recorder.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Display for FlightRecord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut events: Vec<&Event> = Vec::with_capacity(self.len());
        for queue in self.queues.iter().flatten() {
            events.extend(queue.events());
        }
        // Stable: events of one queue keep their order.
        events.sort_by_key(|event| event.at);
        let Some(newest) = events.last() else {
            return write!(f, "no events of queue pair {} are recorded", self.qp_num);
        };
        write!(f, "last events of queue pair {}:", self.qp_num)?;
        for event in &events {
            let before = newest.at.saturating_duration_since(event.at);
            let sign = if before.is_zero() { "" } else { "-" };
            let time = format!("{sign}{before:.2?}");
            write!(f, "\n{time:>12} {event}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for FlightRecord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = match self.id.is_receive() {
            true => "receive",
            false => "send",
        };
        write!(f, "{queue} #{}: ", self.id.sequence())?;
        match self.what {
            What::Posted {
                request,
                bytes,
                signaled,
            } => {
                f.write_str("posted ")?;
                write_type(request, f)?;
                write!(f, ", {bytes} bytes")?;
                f.write_str(if signaled { "" } else { ", unsignaled" })
            }
            What::Receive { bytes } => write!(f, "posted, {bytes} bytes"),
            What::Refused { requests, errno } => {
                let error = Error::from_errno("the post", errno);
                write!(f, "not posted, with {requests} in all: {error}")
            }
            What::Dropped { requests } => write!(f, "not posted: a batch of {requests} dropped"),
            What::Completed {
                status: WcStatus::SUCCESS,
                bytes,
                ..
            } if self.id.is_receive() => write!(f, "done, {bytes} bytes"),
            What::Completed {
                status: WcStatus::SUCCESS,
                ..
            } => f.write_str("done"),
            What::Completed {
                status, vendor_err, ..
            } => match vendor_err {
                0 => write!(f, "{status:?}"),
                _ => write!(f, "{status:?} (vendor error {vendor_err:#x})"),
            },
        }
    }
}

/// Writes the name of a type without the modules.
fn write_type(name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut rest = name;
    while !rest.is_empty() {
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (path, after) = rest.split_at(end);
        f.write_str(path.rsplit("::").next().unwrap_or(path))?;
        let end = after.find(is_part).unwrap_or(after.len());
        let (between, next) = after.split_at(end);
        f.write_str(between)?;
        rest = next;
    }
    Ok(())
}

impl<T: Transport, S: State, SW, RW> QueuePair<T, S, SW, RW> {
    /// The last posts and completions, as many of each queue as the
    /// [recorder](super::QueuePairBuilder::flight_recorder) keeps. Enters no kernel.
    ///
    /// A completion is recorded when its work is taken back.
    pub fn flight_record(&self) -> FlightRecord<'_> {
        let (send, receive) = (self.send_queue(), self.receive_queue());
        FlightRecord {
            qp_num: self.qp_num(),
            queues: [
                Some(&send.sending().recorder),
                Some(&receive.receiving().recorder),
            ],
        }
    }
}

impl<T, SW, RW> SendQueue<T, SW, RW> {
    /// The last posts and completions of this half; see [`QueuePair::flight_record`].
    pub fn flight_record(&self) -> FlightRecord<'_> {
        FlightRecord {
            qp_num: self.inner.qp_num(),
            queues: [Some(&self.sending().recorder), None],
        }
    }
}

impl<T, SW, RW> ReceiveQueue<T, SW, RW> {
    /// The last posts and completions of this half; see [`QueuePair::flight_record`].
    pub fn flight_record(&self) -> FlightRecord<'_> {
        FlightRecord {
            qp_num: self.inner.qp_num(),
            queues: [None, Some(&self.receiving().recorder)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wr_id::QueueId;

    #[test]
    fn recorder_allocates_at_its_creation_only() {
        let mut recorder = Recorder::new(3);
        let (address, capacity) = (recorder.events.as_ptr(), recorder.events.capacity());
        for sequence in 0..10 {
            let id = QueueId::send(crate::wr_id::QpId::next()).wr_id(sequence);
            recorder.posted::<u8>(id, 1, ffi::ibv_send_flags(0));
        }
        let sequences: Vec<_> = recorder.events().map(|event| event.id.sequence()).collect();
        assert_eq!(sequences, [7, 8, 9]);
        assert_eq!(recorder.events.as_ptr(), address);
        assert_eq!(recorder.events.capacity(), capacity);
        assert_eq!(Recorder::new(0).events.capacity(), 0);
    }

    #[test]
    fn type_names_are_written_without_modules() {
        struct Named(&'static str);
        impl fmt::Display for Named {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_type(self.0, f)
            }
        }
        for (name, short) in [
            ("verbs::op::send::Send<verbs::mr::buf::Buf>", "Send<Buf>"),
            (
                "a::Inline<b::Send<(c::D, e_f::G2)>>",
                "Inline<Send<(D, G2)>>",
            ),
            ("&[u8]", "&[u8]"),
            ("", ""),
        ] {
            assert_eq!(Named(name).to_string(), short);
        }
    }
}
