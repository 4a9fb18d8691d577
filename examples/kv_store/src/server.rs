//! The server: memory readable by clients, and a thread for each client's puts.

use std::{
    num::NonZeroU32,
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{bail, ensure};
use cm::Endpoint;
use verbs::{ProtectionDomain, RemoteAccess, RemoteRegion};

use super::{
    bucket::BUCKET_LEN,
    entry::Entry,
    exchange::{receive, send},
    message::{MESSAGE_LEN, Message, PROTOCOL},
    slot::{HEADER_LEN, SLOT_LEN},
    table::Table,
};

/// The table and the server's index.
#[derive(Debug)]
pub struct Store {
    memory: RemoteRegion,
    buckets: NonZeroU32,
    table: Mutex<Table>,
    pause: Duration,
}

impl Store {
    /// Creates an empty table in memory readable by clients. `pause` is a delay in the middle of each put,
    /// for showing torn reads.
    ///
    /// # Errors
    /// Registering the memory failed.
    pub fn new(
        pd: &ProtectionDomain,
        buckets: NonZeroU32,
        pause: Duration,
    ) -> anyhow::Result<Self> {
        let len = buckets.get() as usize * BUCKET_LEN;
        Ok(Self {
            memory: pd.alloc_remote(len, RemoteAccess::READ)?,
            buckets,
            table: Mutex::new(Table::new(buckets)),
            pause,
        })
    }

    /// Protection domain required of connections that read the table.
    pub fn pd(&self) -> &ProtectionDomain {
        self.memory.pd()
    }

    /// Answers one client's messages until it disconnects. The loss of a silent client is not detected.
    ///
    /// # Errors
    /// The connection has failed, or the client has sent an invalid message.
    pub fn serve(&self, mut endpoint: Endpoint) -> anyhow::Result<()> {
        let mut buf = endpoint.reg_msgs([0; MESSAGE_LEN])?;
        while let Some(message) = receive(&mut endpoint)? {
            let answer = self.answer(message)?;
            buf = send(&mut endpoint, buf, &answer)?;
        }
        Ok(endpoint.disconnect()?)
    }

    fn answer(&self, message: Message) -> anyhow::Result<Message> {
        match message {
            Message::Hello(number) => {
                ensure!(number == PROTOCOL, "the client speaks protocol {number}");
                // Without the lock: readers do not wait for a put.
                Ok(Message::Welcome(self.memory.token(), self.buckets))
            }
            Message::Put(entry) => Ok(match self.put(entry) {
                Some(version) => Message::Stored(version),
                None => Message::Full,
            }),
            other => bail!("unexpected message {other:?} from a client"),
        }
    }

    fn put(&self, entry: Entry) -> Option<u64> {
        // Locked until the slot is written: two concurrent puts would leave a torn slot for good.
        let mut table = self.lock();
        let (index, slot) = table.put(entry)?;
        let (start, wire) = (index * SLOT_LEN, slot.to_wire());
        let (header, bytes) = wire.split_at(HEADER_LEN);
        self.memory.write(start, header);
        thread::sleep(self.pause);
        self.memory.write(start + HEADER_LEN, bytes);
        Some(slot.version)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
