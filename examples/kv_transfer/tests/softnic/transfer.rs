//! Transfers of many pages by two writers to two readers, each in a thread.

use std::{collections::BTreeMap, thread::JoinHandle};

use kv_transfer::{LeaseId, PeerId, Reader, ReaderEvent, Writer, WriterEvent};
use softnic::{Fabric, Host};

use crate::support::{
    LIMIT, PAGE, READER, accept, connect, fabrics, has_content, host, offer, options, reader,
    transfer,
};

/// Leases of each writer at each reader, and pages of each.
const LEASES: u64 = 12;
const COUNT: usize = 7;

#[test]
fn one_page_arrives() {
    for fabric in fabrics() {
        let [a, b] = ["10.9.0.1", "10.9.0.2"].map(|addr| host(&fabric, addr));
        let mut reader = reader(&a, 6, options());
        assert_eq!(reader.local_addr(), Some(READER.parse().unwrap()));
        let (peer, mut writer, _) = connect(&mut reader, &b, options());
        let lease = reader.grant(peer, 3, 1, LIMIT).unwrap();
        match crate::support::reader_event(&mut reader, &mut [&mut writer]) {
            ReaderEvent::Arrived(arrived, pages) => {
                assert!(arrived == lease && has_content(&mut reader, &pages, 3));
                reader.pages().give_back(pages);
            }
            event => panic!("no page, but {event:?}"),
        }
        transfer(&mut reader, peer, &mut writer, 4);
    }
}

/// Grants leases to both writers until each has had all, and compares all bytes.
fn read(mut reader: Reader) -> usize {
    let mut tags: BTreeMap<LeaseId, u64> = BTreeMap::new();
    let mut granted: BTreeMap<PeerId, u64> = BTreeMap::new();
    let (mut compared, mut lost) = (0, 0);
    let mut grant = |reader: &mut Reader, tags: &mut BTreeMap<_, _>, peer| {
        let count = granted.entry(peer).or_default();
        if *count < LEASES {
            *count += 1;
            tags.insert(reader.grant(peer, *count, COUNT, LIMIT).unwrap(), *count);
        }
    };
    for peer in [accept(&mut reader), accept(&mut reader)] {
        for _ in 0..3 {
            grant(&mut reader, &mut tags, peer);
        }
    }
    while lost < 2 {
        match reader
            .next_event(LIMIT)
            .unwrap()
            .expect("an event before the limit")
        {
            ReaderEvent::Arrived(lease, pages) => {
                let tag = tags.remove(&lease).expect("each lease arrives once");
                assert!(has_content(&mut reader, &pages, tag), "lease {lease:?}");
                compared += pages.numbers().len();
                reader.pages().give_back(pages);
                grant(&mut reader, &mut tags, lease.peer());
            }
            ReaderEvent::Lost(..) => lost += 1,
            event => panic!("{event:?}"),
        }
    }
    assert_eq!(reader.pages().free(), reader.pages().count());
    compared
}

/// Writes all pages that two readers ask for.
fn write(session: u64) {
    let mut writer = Writer::new(256, PAGE, options()).unwrap();
    let peers =
        ["10.9.0.1:7490", "10.9.0.2:7490"].map(|addr| writer.connect(addr, session).unwrap());
    let mut written = 0;
    while written < 2 * LEASES {
        match writer
            .next_event(LIMIT)
            .unwrap()
            .expect("an event before the limit")
        {
            WriterEvent::Granted { lease, tag, pages } => offer(&mut writer, lease, tag, pages),
            WriterEvent::Written(_) => written += 1,
            event => panic!("{event:?}"),
        }
    }
    for peer in peers {
        writer.end(peer);
        assert!(matches!(
            writer.next_event(LIMIT).unwrap(),
            Some(WriterEvent::Lost(..))
        ));
    }
}

fn run(fabric: &Fabric) {
    let [a, b, c, d] =
        ["10.9.0.1", "10.9.0.2", "10.9.0.3", "10.9.0.4"].map(|addr| host(fabric, addr));
    let reading = [&a, &b].map(|host: &Host| {
        let reader = reader(host, 48, options());
        host.spawn(move || read(reader))
    });
    let writing = [c.spawn(|| write(1)), d.spawn(|| write(2))];
    for side in writing {
        side.join().unwrap();
    }
    let compared: Vec<usize> = reading
        .map(JoinHandle::join)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let all = 2 * usize::try_from(LEASES).unwrap() * COUNT;
    assert_eq!(compared, [all; 2]);
}

#[test]
fn pages_of_two_writers_arrive_at_two_readers() {
    fabrics().for_each(|fabric| run(&fabric));
}

#[test]
fn pages_arrive_in_spite_of_loss() {
    run(&Fabric::seeded(7).checked().loss(0.02).duplication(0.02));
    run(&Fabric::seeded(3).adversarial().checked().loss(0.01));
}
