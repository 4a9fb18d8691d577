//! The client: gets read the server's memory, puts are messages.

use std::{
    net::ToSocketAddrs,
    num::NonZeroU32,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use cm::{Endpoint, EndpointBuilder};
use verbs::{Buf, RemoteToken};

use super::{
    bucket::{BUCKET_LEN, Found, bucket_of, bytes_of, look_up},
    entry::Entry,
    exchange::{receive, send},
    message::{MESSAGE_LEN, Message, PROTOCOL},
    slot::Slot,
};

/// How long an answer may take, and a slot be torn.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection to the store.
#[derive(Debug)]
pub struct Client {
    endpoint: Endpoint,
    /// Where the server's table is.
    table: RemoteToken,
    buckets: NonZeroU32,
    /// Memory for messages that are sent; with the device meanwhile.
    outgoing: Option<Buf>,
    /// Memory for a bucket that is read; with the device meanwhile.
    bucket: Option<Buf>,
    torn: u32,
}

impl Client {
    /// Connects, and asks where the table is.
    ///
    /// # Errors
    /// There is no server, or it speaks something else.
    pub fn connect(addr: impl ToSocketAddrs) -> anyhow::Result<Self> {
        let mut outgoing = EndpointBuilder::new().timeout(PATIENCE).prepare(addr)?;
        // Before there is a connection, so that no answer comes too early.
        outgoing.post_recv(outgoing.reg_msgs([0; MESSAGE_LEN])?)?;
        let mut endpoint = outgoing.connect()?;
        let buf = endpoint.reg_msgs([0; MESSAGE_LEN])?;
        let buf = send(&mut endpoint, buf, &Message::Hello(PROTOCOL))?;
        let Some(Message::Welcome(table, buckets)) = receive(&mut endpoint)? else {
            bail!("the server does not welcome us");
        };
        Ok(Self {
            outgoing: Some(buf),
            bucket: Some(endpoint.reg_msgs([0; BUCKET_LEN])?),
            endpoint,
            table,
            buckets,
            torn: 0,
        })
    }

    /// Stores an entry; returns the version that it has got.
    ///
    /// # Errors
    /// There is no room for it, or the connection has failed.
    pub fn put(&mut self, entry: Entry) -> anyhow::Result<u64> {
        let buf = self.outgoing.take().context("a put has failed before")?;
        let buf = send(&mut self.endpoint, buf, &Message::Put(entry))?;
        self.outgoing = Some(buf);
        match receive(&mut self.endpoint)? {
            Some(Message::Stored(version)) => Ok(version),
            Some(Message::Full) => bail!("the server has no room for this key"),
            other => bail!("the server has answered {other:?}"),
        }
    }

    /// Looks a key up in the server's memory. The server's processor has no part in it.
    ///
    /// # Errors
    /// The connection has failed, or the server has stopped in the middle of a put.
    pub fn get(&mut self, key: &[u8]) -> anyhow::Result<Option<Slot>> {
        let place = self.table.slice(bytes_of(bucket_of(key, self.buckets)))?;
        let start = Instant::now();
        loop {
            let buf = self.bucket.take().context("a get has failed before")?;
            self.endpoint.post_read(buf, place)?;
            let buf = self.endpoint.send_comp()?.into_work()?;
            let bucket = self.bucket.insert(buf);
            match look_up(bucket, key) {
                Found::Slot(slot) => return Ok(Some(slot)),
                Found::Absent => return Ok(None),
                Found::Torn => self.torn += 1,
            }
            ensure!(start.elapsed() < PATIENCE, "a put does not end");
            thread::yield_now();
        }
    }

    /// How many reads there were that met a put, and were made again.
    pub fn torn(&self) -> u32 {
        self.torn
    }

    /// Ends the connection.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn disconnect(mut self) -> anyhow::Result<()> {
        Ok(self.endpoint.disconnect()?)
    }
}
