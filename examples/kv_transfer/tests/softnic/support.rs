//! Readers and writers on hosts of a fabric.

use std::{
    thread,
    time::{Duration, Instant},
};

use kv_transfer::{LeaseId, Options, PageSet, PeerId, Reader, ReaderEvent, Writer, WriterEvent};
use softnic::{Fabric, Host};

pub(crate) const READER: &str = "10.9.0.1:7490";
pub(crate) const PAGE: u32 = 4096;
/// Maximum time of a wait.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// The refusal of a write whose lease has ended.
pub(crate) const HAS_ENDED: &str = "the lease has ended";
pub(crate) const STEP: Duration = Duration::from_millis(1);

/// A network without freedoms of the devices, and five with all: checked ones.
pub(crate) fn fabrics() -> impl Iterator<Item = Fabric> {
    let adversaries = (1..=5).map(|seed| Fabric::seeded(seed).adversarial());
    let fabrics = [Fabric::seeded(7)].into_iter().chain(adversaries);
    fabrics.map(Fabric::checked)
}

/// Runs a test on all fabrics at a time: it waits for retransmissions.
pub(crate) fn on_all_fabrics(test: impl Fn(Fabric) + Sync) {
    let test = &test;
    thread::scope(|scope| {
        for fabric in fabrics() {
            scope.spawn(move || test(fabric));
        }
    });
}

pub(crate) fn host(fabric: &Fabric, addr: &str) -> Host {
    fabric.host(addr.parse().unwrap())
}

pub(crate) fn options() -> Options {
    Options {
        ack_timeout: LIMIT,
        ..Options::default()
    }
}

/// A reader with `pages` pages.
pub(crate) fn reader(host: &Host, pages: u32, options: Options) -> Reader {
    let addr = (host.addr(), 7490);
    host.run(|| Reader::bind(addr, pages, PAGE, options).unwrap())
}

/// A writer, connected to a reader.
pub(crate) fn connect(
    reader: &mut Reader,
    host: &Host,
    options: Options,
) -> (PeerId, Writer, PeerId) {
    let writer = host.run(|| Writer::new(256, PAGE, options).unwrap());
    let (peer, writer, at_writer) = connect_also(reader, host, writer);
    (peer, writer, at_writer)
}

/// Connects a writer to one more reader.
pub(crate) fn connect_also(
    reader: &mut Reader,
    host: &Host,
    mut writer: Writer,
) -> (PeerId, Writer, PeerId) {
    let addr = reader.local_addr().unwrap();
    let session = host.addr().to_string().bytes().map(u64::from).sum();
    let connecting = host.spawn(move || {
        let at_writer = writer.connect(addr, session).unwrap();
        (writer, at_writer)
    });
    let peer = accept(reader);
    let (writer, at_writer) = connecting.join().unwrap();
    (peer, writer, at_writer)
}

/// Accepts all queue pairs of a writer.
pub(crate) fn accept(reader: &mut Reader) -> PeerId {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < LIMIT, "no writer");
        if let Some(peer) = reader.accept(STEP).unwrap() {
            return peer;
        }
    }
}

/// The bytes of page `page` of content `tag`.
pub(crate) fn content(tag: u64, page: usize) -> Vec<u8> {
    let first = tag * 37 + page as u64 * 11;
    let bytes = 0..u64::from(PAGE);
    bytes
        .map(|byte| (first + byte * 7 + byte / 251).to_le_bytes()[0])
        .collect()
}

/// Fills pages of the cache with the content of a grant, and writes them.
pub(crate) fn offer(writer: &mut Writer, lease: LeaseId, tag: u64, count: usize) {
    let pages = writer
        .pages()
        .take(count)
        .expect("the cache has free pages");
    for (index, page) in pages.numbers().iter().enumerate() {
        let bytes = content(tag, index);
        writer.pages().write(*page, &bytes);
    }
    // A refusal is the end of the lease. The tests write few pages: the cache is not used twice.
    if let Err(error) = writer.write(lease, pages.numbers()) {
        assert_eq!(error.to_string(), HAS_ENDED);
    }
}

/// Whether the pages have the content.
pub(crate) fn has_content(reader: &mut Reader, pages: &PageSet, tag: u64) -> bool {
    let mut pages = pages.numbers().iter().enumerate();
    pages.all(|(index, page)| reader.pages().read(*page) == content(tag, index))
}

/// Lets both sides work in turn, until the reader has an event. The writer answers grants.
pub(crate) fn reader_event(reader: &mut Reader, writers: &mut [&mut Writer]) -> ReaderEvent {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < LIMIT, "no event of the reader");
        if let Some(event) = reader.next_event(STEP).unwrap() {
            return event;
        }
        for writer in &mut *writers {
            if let Some(WriterEvent::Granted { lease, tag, pages }) =
                writer.next_event(STEP).unwrap()
            {
                offer(writer, lease, tag, pages);
            }
        }
    }
}

/// Lets both sides work in turn, until the writer has an event.
pub(crate) fn writer_event(writer: &mut Writer, readers: &mut [&mut Reader]) -> WriterEvent {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < LIMIT, "no event of the writer");
        if let Some(event) = writer.next_event(STEP).unwrap() {
            return event;
        }
        for reader in &mut *readers {
            let event = reader.next_event(STEP).unwrap();
            assert!(event.is_none(), "unexpected {event:?}");
        }
        thread::yield_now();
    }
}

/// The grant that the writer gets.
pub(crate) fn granted(writer: &mut Writer, reader: &mut Reader) -> (LeaseId, u64, usize) {
    match writer_event(writer, &mut [reader]) {
        WriterEvent::Granted { lease, tag, pages } => (lease, tag, pages),
        event => panic!("no grant, but {event:?}"),
    }
}

/// A whole transfer of some pages.
pub(crate) fn transfer(reader: &mut Reader, peer: PeerId, writer: &mut Writer, tag: u64) {
    let lease = reader.grant(peer, tag, 6, LIMIT).unwrap();
    match reader_event(reader, &mut [writer]) {
        ReaderEvent::Arrived(arrived, pages) => {
            assert_eq!(arrived, lease);
            assert!(has_content(reader, &pages, tag));
            reader.pages().give_back(pages);
        }
        event => panic!("no pages, but {event:?}"),
    }
}
