//! Leases that end before their pages are in place.

use std::time::Duration;

use kv_transfer::{Cause, Options, Reader, ReaderEvent, WriterEvent};

use crate::support::{
    LIMIT, connect, connect_also, content, fabrics, granted, host, offer, on_all_fabrics, options,
    reader, reader_event, transfer, writer_event,
};

/// All pages of the reader with other bytes, which no late write may change.
fn fill(reader: &mut Reader, count: usize) -> kv_transfer::PageSet {
    let pages = reader.pages().take(count).expect("the pages are free");
    for page in pages.numbers() {
        let bytes = content(99, *page as usize);
        reader.pages().write(*page, &bytes);
    }
    pages
}

fn assert_unchanged(reader: &mut Reader, pages: &kv_transfer::PageSet) {
    for page in pages.numbers() {
        assert_eq!(
            reader.pages().read(*page),
            content(99, *page as usize),
            "page {page}"
        );
    }
}

#[test]
fn pages_of_a_cancelled_lease_are_free_after_the_acknowledgement() {
    for fabric in fabrics() {
        let [a, b] = ["10.9.0.1", "10.9.0.2"].map(|addr| host(&fabric, addr));
        let mut reader = reader(&a, 24, options());
        let (peer, mut writer, at_writer) = connect(&mut reader, &b, options());
        let lease = reader.grant(peer, 1, 24, LIMIT).unwrap();
        let (same, tag, count) = granted(&mut writer, &mut reader);
        offer(&mut writer, same, tag, count); // in flight
        reader.cancel(lease);
        assert!(
            reader
                .next_event(Duration::from_millis(20))
                .unwrap()
                .is_none()
        );
        assert_eq!(reader.pages().free(), 0, "the writer has not acknowledged");

        let event = reader_event(&mut reader, &mut [&mut writer]);
        assert!(
            matches!(event, ReaderEvent::Ended(ended, Cause::Cancelled) if ended == lease),
            "{event:?}"
        );
        let pages = fill(&mut reader, 24);
        writer.end(at_writer);
        let event = reader_event(&mut reader, &mut [&mut writer]);
        assert!(matches!(event, ReaderEvent::Lost(..)), "{event:?}");
        assert_unchanged(&mut reader, &pages);
        reader.pages().give_back(pages);
    }
}

#[test]
fn cancellation_with_a_failed_lane_waits_for_the_end_of_the_lane() {
    for fabric in fabrics() {
        let [a, b] = ["10.9.0.1", "10.9.0.2"].map(|addr| host(&fabric, addr));
        let mut reader = reader(&a, 24, options());
        let (peer, mut writer, at_writer) = connect(&mut reader, &b, options());
        let lease = reader.grant(peer, 1, 24, LIMIT).unwrap();
        let (same, tag, count) = granted(&mut writer, &mut reader);
        offer(&mut writer, same, tag, count);
        writer.close_lane(at_writer, 0);
        reader.cancel(lease);
        let event = reader_event(&mut reader, &mut [&mut writer]);
        assert!(
            matches!(event, ReaderEvent::Ended(ended, Cause::Cancelled) if ended == lease),
            "{event:?}"
        );
        let pages = fill(&mut reader, 24);
        assert!(writer.next_event(Duration::from_millis(20)).is_ok());
        assert_unchanged(&mut reader, &pages);
        reader.pages().give_back(pages);
        transfer(&mut reader, peer, &mut writer, 2);
    }
}

#[test]
fn lease_cancelled_by_the_writer_ends_at_both_sides() {
    for fabric in fabrics() {
        let [a, b] = ["10.9.0.1", "10.9.0.2"].map(|addr| host(&fabric, addr));
        let mut reader = reader(&a, 6, options());
        let (peer, mut writer, _) = connect(&mut reader, &b, options());
        let lease = reader.grant(peer, 1, 6, LIMIT).unwrap();
        let (same, ..) = granted(&mut writer, &mut reader);
        writer.cancel(same);
        let event = writer.next_event(LIMIT).unwrap();
        assert_eq!(event, Some(WriterEvent::Ended(same, Cause::Cancelled)));
        let event = reader_event(&mut reader, &mut [&mut writer]);
        assert!(
            matches!(event, ReaderEvent::Ended(ended, Cause::CancelledByPeer) if ended == lease),
            "{event:?}"
        );
        assert!(writer.write(same, &[0; 6]).is_err());
        transfer(&mut reader, peer, &mut writer, 2);
    }
}

#[test]
fn deadline_returns_the_pages() {
    for fabric in fabrics() {
        let [a, b] = ["10.9.0.1", "10.9.0.2"].map(|addr| host(&fabric, addr));
        let mut reader = reader(&a, 6, options());
        let (peer, mut writer, _) = connect(&mut reader, &b, options());
        let lease = reader.grant(peer, 1, 6, Duration::from_millis(30)).unwrap();
        assert!(
            reader
                .next_event(Duration::from_millis(60))
                .unwrap()
                .is_none()
        );
        assert_eq!(reader.pages().free(), 0, "the writer has not acknowledged");
        // The writer's program has the grant, and does not write.
        while reader.pages().free() < 6 {
            match reader.next_event(Duration::from_millis(1)).unwrap() {
                Some(event) => {
                    let expected = matches!(&event, ReaderEvent::Ended(ended, Cause::Deadline) if *ended == lease);
                    assert!(expected, "{event:?}");
                }
                None => drop(writer.next_event(Duration::from_millis(1)).unwrap()),
            }
        }
        transfer(&mut reader, peer, &mut writer, 2);
    }
}

/// Fails soon over a dead link.
fn hasty() -> Options {
    Options {
        retries: 3,
        ..options()
    }
}

#[test]
fn death_of_a_writer_returns_its_pages_and_others_go_on() {
    on_all_fabrics(|fabric| {
        let [a, b, c] = ["10.9.0.1", "10.9.0.2", "10.9.0.3"].map(|addr| host(&fabric, addr));
        let mut reader = reader(&a, 12, hasty());
        let (dying, mut victim, _) = connect(&mut reader, &b, hasty());
        let (living, mut writer, _) = connect(&mut reader, &c, hasty());
        let lease = reader.grant(dying, 1, 6, LIMIT).unwrap();
        let (same, _, count) = granted(&mut victim, &mut reader);
        fabric.kill(&b);
        drop(victim.write(same, &vec![0; count]));
        drop(victim);
        reader.cancel(lease); // the request that finds the writer dead
        let event = reader_event(&mut reader, &mut [&mut writer]);
        let ReaderEvent::Ended(ended, Cause::PeerLost(reason)) = event else {
            panic!("{event:?}")
        };
        assert_eq!(ended, lease);
        assert!(reason.contains("RETRY"), "{reason}");
        let event = reader_event(&mut reader, &mut [&mut writer]);
        assert!(
            matches!(event, ReaderEvent::Lost(peer, _) if peer == dying),
            "{event:?}"
        );
        assert_eq!(reader.pages().free(), 12);
        assert!(reader.grant(dying, 1, 6, LIMIT).is_err());
        transfer(&mut reader, living, &mut writer, 2);
    });
}

#[test]
fn death_of_a_reader_ends_its_leases_and_others_go_on() {
    on_all_fabrics(|fabric| {
        let [a, b, c] = ["10.9.0.1", "10.9.0.2", "10.9.0.3"].map(|addr| host(&fabric, addr));
        let (mut victim, mut living) = (reader(&a, 12, hasty()), reader(&b, 12, hasty()));
        let (peer, writer, at_writer) = connect(&mut victim, &c, hasty());
        let (other, mut writer, _) = connect_also(&mut living, &c, writer);
        victim.grant(peer, 1, 12, LIMIT).unwrap();
        let (lease, tag, count) = granted(&mut writer, &mut victim);
        fabric.kill(&a);
        offer(&mut writer, lease, tag, count);
        drop(victim);
        let event = writer_event(&mut writer, &mut [&mut living]);
        let WriterEvent::Ended(ended, Cause::PeerLost(reason)) = event else {
            panic!("{event:?}")
        };
        assert_eq!(ended, lease);
        assert!(reason.contains("RETRY"), "{reason}");
        let event = writer_event(&mut writer, &mut [&mut living]);
        assert!(
            matches!(event, WriterEvent::Lost(lost, _) if lost == at_writer),
            "{event:?}"
        );
        transfer(&mut living, other, &mut writer, 2);
    });
}
