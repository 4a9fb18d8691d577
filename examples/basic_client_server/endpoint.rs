//! What the server and the client have in common: one protection domain, one completion queue with
//! a thread of its own, and the connections that use them.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "of programs for the terminal"
)]

use std::{
    collections::HashMap,
    fmt, process,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use cm::{CmId, Connection, Key, phases::HasDevice};
use verbs::{
    Completed, CompletionQueue, Context, CqHandle, Init, ProtectionDomain, QpId, QueuePair, Rc,
    Rts, WcError, WcStatus, WorkCompletion, op::Send,
};

use crate::text::text_of;

/// Each side sends one message of this size, and receives one.
const BUFFER_SIZE: usize = 1024;

/// A connection has at most one send and one receive in flight, so this is enough for 512 of them.
const CQ_ENTRIES: u32 = 1024;

/// Time from the first completion of a queue pair to the event of its connection.
const ADDED_WITHIN: Duration = Duration::from_secs(10);

/// Everything that a program makes once, when it has learnt which device it uses.
pub struct Endpoint {
    context: Context,
    pd: ProtectionDomain,
    cq: CqHandle,
    shared: Arc<Shared>,
}

/// What the main thread, which makes and ends connections, shares with the completion thread, which
/// takes their work back.
#[derive(Default)]
struct Shared {
    peers: Mutex<Peers>,
    /// Signaled when a connection is added or removed.
    changed: Condvar,
}

/// Every connection, by its queue pair.
pub type Peers = HashMap<QpId, Peer>;

/// The other side of a connection.
#[derive(Debug)]
pub struct Peer {
    /// The name of the connection's identifier, by which events speak of it.
    pub key: Key,
    /// The connection.
    pub link: Link,
    /// How many of its requests have completed.
    pub completions: u32,
    /// Set when it has ended: it goes when nothing of it is in flight any more.
    ended: bool,
}

/// A connection to be, or one that is.
#[derive(Debug)]
pub enum Link {
    /// Accepted, and not established yet.
    Accepted(QueuePair<Rc, Rts>),
    /// Established.
    Established(Connection),
}

/// What to do with a connection of which something has completed.
type AfterCompletion = fn(&mut Peer) -> anyhow::Result<()>;

impl Endpoint {
    /// Makes what connections of this device need, and starts the completion thread, which calls
    /// `after_completion` for a peer whenever one of its requests has completed.
    ///
    /// # Errors
    /// The device or the process is at a limit.
    pub fn new(context: Context, after_completion: AfterCompletion) -> anyhow::Result<Self> {
        let pd = context.alloc_pd()?;
        let queue = context.cq_builder(CQ_ENTRIES).waitable().create()?;
        let cq = queue.handle().clone();
        let shared = Arc::new(Shared::default());
        let same = Arc::clone(&shared);
        thread::spawn(move || {
            if let Err(err) = same.take_completions(queue, after_completion) {
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

    /// Locks the connections. The completion thread waits meanwhile.
    pub fn peers(&self) -> MutexGuard<'_, Peers> {
        self.shared.peers()
    }

    /// Adds a connection. Over iWARP the peer's message may complete before the connection's event is handled; the
    /// completion thread waits for this call.
    pub fn add(&self, peers: &mut Peers, peer: Peer) {
        peers.insert(peer.qp().id(), peer);
        self.shared.changed.notify_all();
    }

    /// Makes a queue pair for a connection, with a receive posted for the message to come.
    ///
    /// # Errors
    /// There are as many connections as the completion queue can serve, or the connection goes
    /// through another device.
    pub fn create_qp<P: HasDevice>(&self, id: &CmId<P>) -> anyhow::Result<QueuePair<Rc, Init>> {
        ensure!(
            id.context()? == self.context,
            "cannot handle events in more than one context."
        );
        let qp = self.pd.qp_builder(&self.cq, &self.cq).create()?;
        let mut qp = id.init_qp(qp)?;
        qp.post_recv(self.pd.alloc_buf(BUFFER_SIZE)?)?;
        Ok(qp)
    }

    /// Sends a message: the text, and zeros up to the size of a message.
    ///
    /// # Errors
    /// The device or the process is at a limit, or the text is too long.
    pub fn send(&self, connection: &mut Connection, text: &str) -> anyhow::Result<()> {
        let mut buf = self.pd.alloc_buf(BUFFER_SIZE)?;
        let start = buf
            .get_mut(..text.len())
            .context("the text is longer than a message")?;
        start.copy_from_slice(text.as_bytes());
        connection.qp_mut().post(Send::new(buf))?;
        Ok(())
    }

    /// Ends a connection, if it is there. It goes when everything that it had in flight has come
    /// back, so nothing that has completed is left unsaid.
    pub fn end(&self, key: Key) {
        let mut peers = self.peers();
        peers
            .values_mut()
            .filter(|peer| peer.key == key)
            .for_each(Peer::end);
        self.shared.forget_ended(&mut peers);
    }

    /// Waits until every connection is gone.
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

    /// The completion thread.
    fn take_completions(
        &self,
        mut queue: CompletionQueue,
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
                let done = peer.complete(wc).and_then(|()| after_completion(peer));
                if let Err(err) = done {
                    eprintln!("a connection has failed: {err}");
                    peer.end();
                }
                self.forget_ended(&mut peers);
            }
        }
    }
}

impl Peer {
    /// A connection of which nothing has completed yet.
    pub fn new(key: Key, link: Link) -> Self {
        Self {
            key,
            link,
            completions: 0,
            ended: false,
        }
    }

    fn qp(&self) -> &QueuePair<Rc, Rts> {
        match &self.link {
            Link::Accepted(qp) => qp,
            Link::Established(connection) => connection.qp(),
        }
    }

    fn qp_mut(&mut self) -> &mut QueuePair<Rc, Rts> {
        match &mut self.link {
            Link::Accepted(qp) => qp,
            Link::Established(connection) => connection.qp_mut(),
        }
    }

    fn in_flight(&self) -> usize {
        self.qp().send_queue().in_flight() + self.qp().receive_queue().in_flight()
    }

    /// Takes the work of a completion back, and says what it was.
    fn complete(&mut self, wc: WorkCompletion<'_>) -> anyhow::Result<()> {
        let done = match self.qp_mut().complete(wc) {
            Ok(done) => done,
            Err(wc) => bail!("{wc:?} belongs to no request"),
        };
        match done.ok() {
            Ok(()) => {}
            // The connection has ended, and its event tells the main thread.
            Err(WcError {
                status: WcStatus::WR_FLUSH_ERR,
                ..
            }) => return Ok(()),
            Err(err) => return Err(err.into()),
        }
        match done {
            Completed::Receive(done) => println!("received message: {}", text_of(done.received()?)),
            Completed::Send(_) => println!("send completed successfully."),
        }
        self.completions += 1;
        Ok(())
    }

    /// Makes everything that is in flight come back.
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

/// Ends the program, whichever thread finds that it cannot go on.
#[expect(clippy::exit, reason = "the other threads must end, too")]
pub fn die(err: &anyhow::Error) -> ! {
    eprintln!("{err:#}");
    process::exit(1);
}
