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
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use anyhow::ensure;
use cm::{CmId, Connection, Key, phases::HasDevice};
use verbs::{
    Completed, CompletionQueue, Context, CqHandle, Init, ProtectionDomain, QpId, QueuePair, Rc,
    Rts, WcStatus, WorkCompletion, op::Send,
};

/// Each side sends one message of this size, and receives one.
const BUFFER_SIZE: usize = 1024;

/// A connection has at most one send and one receive in flight, so this is enough for 512 of them.
const CQ_ENTRIES: u32 = 1024;

/// Everything that a program makes once, when it has learnt which device it uses.
pub struct Endpoint {
    context: Context,
    pd: ProtectionDomain,
    cq: CqHandle,
    peers: Arc<Mutex<Peers>>,
}

/// Every connection, by its queue pair. The main thread makes and ends them, the completion thread
/// takes their work back.
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
}

/// A connection to be, or one that is.
#[derive(Debug)]
pub enum Link {
    /// Accepted, and not established yet.
    Accepted(QueuePair<Rc, Rts>),
    /// Established.
    Established(Connection),
}

impl Endpoint {
    /// Makes what connections of this device need, and starts the completion thread, which calls
    /// `after_completion` for a peer whenever one of its requests has completed.
    ///
    /// # Errors
    /// The device or the process is at a limit.
    pub fn new(
        context: Context,
        after_completion: fn(&mut Peer) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let pd = context.alloc_pd()?;
        let queue = context.cq_builder(CQ_ENTRIES).waitable().create()?;
        let cq = queue.handle().clone();
        let peers: Arc<Mutex<Peers>> = Arc::default();
        let shared = Arc::clone(&peers);
        thread::spawn(move || {
            if let Err(err) = take_completions(queue, &shared, after_completion) {
                die(&err);
            }
        });
        Ok(Self {
            context,
            pd,
            cq,
            peers,
        })
    }

    /// Locks the connections. The completion thread waits meanwhile, so it never sees a completion
    /// of a connection that is not among them yet.
    pub fn peers(&self) -> MutexGuard<'_, Peers> {
        lock(&self.peers)
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
    /// The device or the process is at a limit.
    ///
    /// # Panics
    /// Panics when the text is longer than a message.
    pub fn send(&self, connection: &mut Connection, text: &str) -> anyhow::Result<()> {
        let mut buf = self.pd.alloc_buf(BUFFER_SIZE)?;
        buf[..text.len()].copy_from_slice(text.as_bytes());
        connection.qp_mut().post(Send::new(buf))?;
        Ok(())
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

impl Peer {
    /// A connection of which nothing has completed yet.
    pub fn new(key: Key, link: Link) -> Self {
        Self {
            key,
            link,
            completions: 0,
        }
    }

    /// Gives the work of a completion back, and says what it was.
    fn complete(&mut self, wc: WorkCompletion<'_>) -> anyhow::Result<()> {
        if wc.status() == WcStatus::WR_FLUSH_ERR {
            // The connection has ended. Its event comes to the main thread.
            return Ok(());
        }
        wc.ok()?;
        let qp = match &mut self.link {
            Link::Accepted(qp) => qp,
            Link::Established(connection) => connection.qp_mut(),
        };
        match qp.complete(wc) {
            Ok(Completed::Receive(done)) => {
                println!("received message: {}", text_of(done.received()));
            }
            Ok(Completed::Send(_)) => println!("send completed successfully."),
            Err(wc) => anyhow::bail!("{wc:?} belongs to no request"),
        }
        self.completions += 1;
        Ok(())
    }
}

/// The completion thread.
fn take_completions(
    mut queue: CompletionQueue,
    peers: &Mutex<Peers>,
    after_completion: fn(&mut Peer) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    loop {
        for wc in queue.wait(None)? {
            // A connection that has been dropped can leave completions behind.
            let mut peers = lock(peers);
            let Some(peer) = peers.get_mut(&wc.qp_id()) else {
                continue;
            };
            let done = peer.complete(wc).and_then(|()| after_completion(peer));
            if let Err(err) = done {
                eprintln!("a connection has failed: {err}");
                if let Link::Established(connection) = &mut peer.link {
                    // It may have ended by itself; either way its event tells the main thread.
                    connection.disconnect().unwrap_or_default();
                }
            }
        }
    }
}

/// Ends the program, whichever thread finds that it cannot go on.
#[expect(clippy::exit, reason = "the other threads must end, too")]
pub fn die(err: &anyhow::Error) -> ! {
    eprintln!("{err:#}");
    process::exit(1);
}

/// The text of a message, which a peer has written: up to the first zero, and fit to be printed.
fn text_of(message: &[u8]) -> String {
    let text = message.split(|&byte| byte == 0).next().unwrap_or_default();
    let printable = |c: char| {
        if c.is_control() {
            char::REPLACEMENT_CHARACTER
        } else {
            c
        }
    };
    String::from_utf8_lossy(text)
        .chars()
        .map(printable)
        .collect()
}

fn lock(peers: &Mutex<Peers>) -> MutexGuard<'_, Peers> {
    peers.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::text_of;

    #[test]
    fn text_ends_at_the_first_zero_and_controls_no_terminal() {
        assert_eq!(text_of(b"hello\0garbage"), "hello");
        assert_eq!(text_of(b"no zero"), "no zero");
        assert_eq!(text_of(b"\x1b[2Jwiped\xff"), "\u{fffd}[2Jwiped\u{fffd}");
        assert_eq!(text_of(b""), "");
    }
}
