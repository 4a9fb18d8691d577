//! The end of one queue pair while pages are in flight.

use std::time::Instant;

use kv_transfer::{Options, PeerId, Reader, ReaderEvent, Writer};

use crate::support::{
    HAS_ENDED, LIMIT, STEP, connect, fabrics, granted, has_content, host, offer, options, reader,
    reader_event, transfer,
};

/// Ends lane after lane, with pages in flight each time. All pages arrive by the last one.
fn fail_over(close: impl Fn(&mut Reader, PeerId, &mut Writer, PeerId, usize)) {
    for fabric in fabrics() {
        let [a, b] = ["10.9.0.1", "10.9.0.2"].map(|addr| host(&fabric, addr));
        let mut reader = reader(&a, 24, options());
        let three = Options {
            lanes: 3,
            ..options()
        };
        let (peer, mut writer, at_writer) = connect(&mut reader, &b, three);
        for (closed, tag) in [(0, 5), (1, 6)] {
            let lease = reader.grant(peer, tag, 24, LIMIT).unwrap();
            let (same, tag, count) = granted(&mut writer, &mut reader);
            offer(&mut writer, same, tag, count);
            close(&mut reader, peer, &mut writer, at_writer, closed);
            match reader_event(&mut reader, &mut [&mut writer]) {
                ReaderEvent::Arrived(arrived, pages) => {
                    assert_eq!(arrived, lease);
                    assert!(
                        has_content(&mut reader, &pages, tag),
                        "after the end of lane {closed}"
                    );
                    reader.pages().give_back(pages);
                }
                event => panic!("no pages, but {event:?}"),
            }
            // The lease is written for the writer, too: the reader answers that all groups are in place.
            let start = Instant::now();
            while writer.write(same, &[]).unwrap_err().to_string() != HAS_ENDED {
                assert!(start.elapsed() < LIMIT, "the writer still has the lease");
                assert!(reader.next_event(STEP).unwrap().is_none());
                drop(writer.next_event(STEP).unwrap());
            }
        }
        transfer(&mut reader, peer, &mut writer, 7);
    }
}

#[test]
fn lane_closed_by_the_writer_is_replaced_by_the_others() {
    fail_over(|_, _, writer, at_writer, lane| writer.close_lane(at_writer, lane));
}

#[test]
fn lane_closed_by_the_reader_is_replaced_by_the_others() {
    fail_over(|reader, peer, _, _, lane| reader.close_lane(peer, lane));
}

#[test]
fn grants_and_cancellations_outlive_their_lane() {
    for fabric in fabrics() {
        let [a, b] = ["10.9.0.1", "10.9.0.2"].map(|addr| host(&fabric, addr));
        let mut reader = reader(&a, 24, options());
        let (peer, mut writer, _) = connect(&mut reader, &b, options());
        let first = reader.grant(peer, 1, 6, LIMIT).unwrap();
        let second = reader.grant(peer, 2, 6, LIMIT).unwrap();
        reader.cancel(first);
        reader.close_lane(peer, 0);
        let mut ends = [(); 2].map(|()| reader_event(&mut reader, &mut [&mut writer]));
        ends.sort_by_key(|event| matches!(event, ReaderEvent::Arrived(..)));
        match ends {
            [
                ReaderEvent::Ended(ended, cause),
                ReaderEvent::Arrived(arrived, pages),
            ] => {
                assert_eq!((ended, arrived), (first, second));
                assert_eq!(cause, kv_transfer::Cause::Cancelled);
                assert!(has_content(&mut reader, &pages, 2));
                reader.pages().give_back(pages);
            }
            ends => panic!("{ends:?}"),
        }
        assert_eq!(reader.pages().free(), 24);
    }
}
