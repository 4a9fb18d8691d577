//! The client: a get is an RDMA read of the server's memory, a put is a message.

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

/// Timeout for an answer, and for repeating a torn read.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A connection to the store.
#[derive(Debug)]
pub struct Client {
    endpoint: Endpoint,
    /// Remote token of the server's table.
    table: RemoteToken,
    buckets: NonZeroU32,
    /// Buffer for outgoing messages; `None` while a send is in flight.
    outgoing: Option<Buf>,
    /// Buffer for one bucket; `None` while a read is in flight.
    bucket: Option<Buf>,
    torn: u32,
}

impl Client {
    /// Connects, and requests the table's token.
    ///
    /// # Errors
    /// Connecting failed, or the peer uses another protocol.
    pub fn connect(addr: impl ToSocketAddrs) -> anyhow::Result<Self> {
        let mut outgoing = EndpointBuilder::new().timeout(TIMEOUT).prepare(addr)?;
        // Posted before the connection exists, so that the first answer finds a receive.
        outgoing.post_recv(outgoing.reg_msgs([0; MESSAGE_LEN])?)?;
        let mut endpoint = outgoing.connect()?;
        let buf = endpoint.reg_msgs([0; MESSAGE_LEN])?;
        let buf = send(&mut endpoint, buf, &Message::Hello(PROTOCOL))?;
        let Some(Message::Welcome(table, buckets)) = receive(&mut endpoint)? else {
            bail!("the server sent no Welcome");
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

    /// Stores an entry; returns the version assigned by the server.
    ///
    /// # Errors
    /// The bucket is full, or the connection has failed.
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

    /// Looks up a key by an RDMA read, without work for the server's processor.
    ///
    /// # Errors
    /// The connection has failed, or the slot stays torn because the server has stopped during a put.
    pub fn get(&mut self, key: &[u8]) -> anyhow::Result<Option<Slot>> {
        let target = self.table.slice(bytes_of(bucket_of(key, self.buckets)))?;
        let start = Instant::now();
        loop {
            let buf = self.bucket.take().context("a get has failed before")?;
            self.endpoint.post_read(buf, target)?;
            let buf = self.endpoint.send_comp()?.into_work()?;
            let bucket = self.bucket.insert(buf);
            match look_up(bucket, key) {
                Found::Slot(slot) => return Ok(Some(slot)),
                Found::Absent => return Ok(None),
                Found::Torn => self.torn += 1,
            }
            ensure!(start.elapsed() < TIMEOUT, "slot torn for {TIMEOUT:?}");
            thread::yield_now();
        }
    }

    /// Number of reads repeated because of a concurrent put.
    pub fn torn(&self) -> u32 {
        self.torn
    }

    /// Ends the connection.
    ///
    /// # Errors
    /// The server did not answer.
    pub fn disconnect(mut self) -> anyhow::Result<()> {
        Ok(self.endpoint.disconnect()?)
    }
}
