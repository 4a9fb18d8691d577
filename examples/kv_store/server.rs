//! The server: memory that clients read, and a thread for each client's puts.

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

/// The table, and the books about it.
#[derive(Debug)]
pub struct Store {
    memory: RemoteRegion,
    buckets: NonZeroU32,
    table: Mutex<Table>,
    pause: Duration,
}

impl Store {
    /// An empty table, in memory that clients may read. `pause` is how long each put stops in its
    /// middle, so that torn reads can be seen.
    ///
    /// # Errors
    /// The memory cannot be registered.
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

    /// The domain that connections must be of, to read the table.
    pub fn pd(&self) -> &ProtectionDomain {
        self.memory.pd()
    }

    /// Answers one client's messages until it disconnects.
    ///
    /// # Errors
    /// The connection has failed, or the client has sent what makes no sense.
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
                // Without the lock: whoever wants to read does not wait for a put.
                Ok(Message::Welcome(self.memory.token(), self.buckets))
            }
            Message::Put(entry) => Ok(match self.put(entry) {
                Some(version) => Message::Stored(version),
                None => Message::Full,
            }),
            other => bail!("a client does not say {other:?}"),
        }
    }

    fn put(&self, entry: Entry) -> Option<u64> {
        // Held until the slot is written: two puts at once would tear it for good.
        let mut table = self.lock();
        let (place, slot) = table.put(entry)?;
        let (start, wire) = (place * SLOT_LEN, slot.to_wire());
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
