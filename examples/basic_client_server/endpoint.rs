//! State common to the server and the client: one protection domain, one completion queue with a thread of
//! its own, and the connections on this queue.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "of programs for the terminal"
)]

use std::{
    collections::HashMap,
    fmt, process,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use cm::{CmId, ConnParam, Connection, Key, phases::HasDevice};
use verbs::{
    Completed, CompletionQueue, Context, Init, ProtectionDomain, QueuePair, Rts, WcStatus,
    WorkCompletion,
    cq::{CqHandle, WcError},
    op,
    qp::QpId,
};

use crate::text::text_of;

/// Size of each message, in bytes. Each side sends one and receives one.
const BUFFER_SIZE: usize = 1024;

/// Entries of the completion queue: enough for 512 connections, each with at most one send and one receive in
/// flight.
const CQ_ENTRIES: u32 = 1024;

/// Timeout from the first completion of a queue pair to the event of the connection.
const ADDED_WITHIN: Duration = Duration::from_secs(10);

/// The parameters of the C program, except for its retry counts of 0, with which one lost packet ends a connection.
/// Soft-RoCE treats 7 retries as unlimited, and the loss of a peer must be detected.
pub fn param() -> ConnParam {
    ConnParam::zeroed().retry_count(6).rnr_retry_count(7)
}

/// Resources created once, as soon as the device is known.
pub struct Endpoint {
    context: Context,
    pd: ProtectionDomain,
    cq: CqHandle,
    shared: Arc<Shared>,
}

/// Destination of a program's lines.
#[derive(Clone)]
pub struct Output(Arc<dyn Fn(&str) + Send + Sync>);

impl Output {
    /// Prints to standard output.
    pub fn stdout() -> Self {
        Self::new(|line| println!("{line}"))
    }

    /// Calls `print` for each line, from any thread.
    pub fn new(print: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(print))
    }

    /// Prints a line.
    pub fn line(&self, line: &str) {
        (self.0)(line);
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").finish_non_exhaustive()
    }
}

/// State shared by the main thread, which accepts and ends connections, and the completion thread.
#[derive(Default)]
struct Shared {
    peers: Mutex<Peers>,
    /// Signaled when a connection is added or removed.
    changed: Condvar,
    /// Whether a request of a connection has failed.
    has_failed: AtomicBool,
}

/// All connections, by the number of the queue pair.
pub type Peers = HashMap<QpId, Peer>;

/// One connection and the progress of the exchange.
#[derive(Debug)]
pub struct Peer {
    /// Key of the connection's identifier, as found in events.
    pub key: Key,
    /// The queue pair or the established connection.
    pub link: Link,
    /// Number of requests completed.
    pub completions: u32,
    /// Set at the end of the connection; the entry is removed once no request is in flight.
    ended: bool,
}

/// A connection before or after establishment.
#[derive(Debug)]
pub enum Link {
    /// Accepted, and not established yet.
    Accepted(QueuePair<verbs::Rc, Rts>),
    /// Established.
    Established(Connection),
}

/// Callback for a connection after each completion.
type AfterCompletion = fn(&mut Peer) -> anyhow::Result<()>;

impl Endpoint {
    /// Creates the resources for connections on this device, and starts the completion thread. The thread
    /// prints the result of each completed request to `output`, and then calls `after_completion`.
    ///
    /// # Errors
    /// The device or the process is at a limit.
    pub fn new(
        context: Context,
        output: Output,
        after_completion: AfterCompletion,
    ) -> anyhow::Result<Self> {
        let pd = context.alloc_pd()?;
        let queue = context.cq_builder(CQ_ENTRIES).waitable().create()?;
        let cq = queue.handle().clone();
        let shared = Arc::new(Shared::default());
        let same = Arc::clone(&shared);
        thread::spawn(move || {
            if let Err(err) = same.take_completions(queue, &output, after_completion) {
                die(&err);
            }
        });
        Ok(Self {
            context,
            pd,
            cq,
            shared,
        })
    }

    /// Locks the connections. The completion thread is blocked meanwhile.
    pub fn peers(&self) -> MutexGuard<'_, Peers> {
        self.shared.peers()
    }

    /// Adds a connection. Over iWARP the peer's message may complete before the connection's event is handled; in
    /// that case the completion thread waits for this call.
    pub fn add(&self, peers: &mut Peers, peer: Peer) {
        peers.insert(peer.qp().id(), peer);
        self.shared.changed.notify_all();
    }

    /// Creates a queue pair for a connection, with a receive posted for the peer's message.
    ///
    /// # Errors
    /// The completion queue is full for the number of connections, or the connection uses another device.
    pub fn create_qp<P: HasDevice>(
        &self,
        id: &CmId<P>,
    ) -> anyhow::Result<QueuePair<verbs::Rc, Init>> {
        ensure!(
            id.context()? == self.context,
            "cannot handle events in more than one context."
        );
        let qp = self.pd.qp_builder(&self.cq, &self.cq).create()?;
        let mut qp = id.init_qp(qp)?;
        qp.post_recv(self.pd.alloc_buf(BUFFER_SIZE)?)?;
        Ok(qp)
    }

    /// Sends a message: the text, padded with zeros to the message size.
    ///
    /// # Errors
    /// The device or the process is at a limit, or the text is too long.
    pub fn send(&self, connection: &mut Connection, text: &str) -> anyhow::Result<()> {
        let mut buf = self.pd.alloc_buf(BUFFER_SIZE)?;
        let start = buf
            .get_mut(..text.len())
            .context("the text is longer than a message")?;
        start.copy_from_slice(text.as_bytes());
        connection.qp_mut().post(op::Send::new(buf))?;
        Ok(())
    }

    /// Ends a connection, if present. The entry stays until all requests in flight have completed, so that
    /// each completion is reported.
    pub fn end(&self, key: Key) {
        let mut peers = self.peers();
        peers
            .values_mut()
            .filter(|peer| peer.key == key)
            .for_each(Peer::end);
        self.shared.forget_ended(&mut peers);
    }

    /// Whether a request of a connection has failed.
    pub fn has_failed(&self) -> bool {
        self.shared.has_failed.load(Ordering::Acquire)
    }

    /// Blocks until the last connection has been removed.
    pub fn wait_until_idle(&self) {
        drop(
            self.shared
                .changed
                .wait_while(self.peers(), |peers| !peers.is_empty()),
        );
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget_ended(&self, peers: &mut Peers) {
        peers.retain(|_, peer| !peer.ended || peer.in_flight() > 0);
        self.changed.notify_all();
    }

    /// Body of the completion thread.
    fn take_completions(
        &self,
        mut queue: CompletionQueue,
        output: &Output,
        after_completion: AfterCompletion,
    ) -> anyhow::Result<()> {
        loop {
            for wc in queue.wait(None)? {
                let id = wc.qp_id();
                let (mut peers, _) = self
                    .changed
                    .wait_timeout_while(self.peers(), ADDED_WITHIN, |peers| {
                        !peers.contains_key(&id)
                    })
                    .unwrap_or_else(PoisonError::into_inner);
                let peer = peers
                    .get_mut(&id)
                    .with_context(|| format!("{id:?} has a completion and no connection"))?;
                let done = peer
                    .complete(wc, output)
                    .and_then(|()| after_completion(peer));
                if let Err(err) = done {
                    eprintln!("a connection has failed: {err}");
                    self.has_failed.store(true, Ordering::Release);
                    peer.fail();
                }
                self.forget_ended(&mut peers);
            }
        }
    }
}

impl Peer {
    /// A connection without completions so far.
    pub fn new(key: Key, link: Link) -> Self {
        Self {
            key,
            link,
            completions: 0,
            ended: false,
        }
    }

    fn qp(&self) -> &QueuePair<verbs::Rc, Rts> {
        match &self.link {
            Link::Accepted(qp) => qp,
            Link::Established(connection) => connection.qp(),
        }
    }

    fn qp_mut(&mut self) -> &mut QueuePair<verbs::Rc, Rts> {
        match &mut self.link {
            Link::Accepted(qp) => qp,
            Link::Established(connection) => connection.qp_mut(),
        }
    }

    fn in_flight(&self) -> usize {
        self.qp().send_queue().in_flight() + self.qp().receive_queue().in_flight()
    }

    /// Matches a completion to the request, and prints the result.
    fn complete(&mut self, wc: WorkCompletion<'_>, output: &Output) -> anyhow::Result<()> {
        let done = match self.qp_mut().complete(wc) {
            Ok(done) => done,
            Err(wc) => bail!("{wc:?} belongs to no request"),
        };
        match done.ok() {
            Ok(()) => {}
            // The connection has ended; the main thread gets an event for this.
            Err(WcError {
                status: WcStatus::WR_FLUSH_ERR,
                ..
            }) => return Ok(()),
            Err(err) => return Err(err.into()),
        }
        match done {
            Completed::Receive(done) => {
                output.line(&format!("received message: {}", text_of(done.received()?)));
            }
            Completed::Send(_) => output.line("send completed successfully."),
        }
        self.completions += 1;
        Ok(())
    }

    /// Disconnects after a failure. The event of the end follows, and removes the connection.
    fn fail(&mut self) {
        match &mut self.link {
            // The identifier is not here, and reports the end by itself.
            Link::Accepted(_) => self.end(),
            Link::Established(connection) => {
                if let Err(err) = connection.disconnect() {
                    eprintln!("a connection did not end as it should: {err}");
                }
            }
        }
    }

    /// Moves the queue pair to the error state, which flushes all requests in flight.
    fn end(&mut self) {
        if self.ended {
            return;
        }
        let flushed = match &mut self.link {
            Link::Accepted(qp) => qp.to_error(),
            Link::Established(connection) => connection.disconnect(),
        };
        if let Err(err) = flushed {
            eprintln!("a connection did not end as it should: {err}");
        }
        self.ended = true;
    }
}

/// Prints the error and ends the process, from either thread.
#[expect(clippy::exit, reason = "the other threads must end, too")]
pub fn die(err: &anyhow::Error) -> ! {
    eprintln!("{err:#}");
    process::exit(1);
}
