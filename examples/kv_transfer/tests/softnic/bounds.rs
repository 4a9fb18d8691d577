//! Bounds of peers, and peers that break the protocol.

use cm::EndpointBuilder;
use kv_transfer::{Options, ReaderEvent};
use softnic::Fabric;

use crate::support::{
    LIMIT, READER, accept, connect, fabrics, host, options, reader, reader_event, transfer,
};

#[test]
fn grants_beyond_the_bounds_are_refused() {
    let fabric = Fabric::seeded(7).checked();
    let [a, b] = ["10.9.0.1", "10.9.0.2"].map(|addr| host(&fabric, addr));
    let bounded = Options {
        leases: 2,
        pages: 10,
        ..options()
    };
    let mut reader = reader(&a, 12, bounded);
    let (peer, mut writer, _) = connect(&mut reader, &b, options());
    let mut refusal = |count| reader.grant(peer, 1, count, LIMIT).unwrap_err().to_string();
    assert_eq!(refusal(0), "0 pages are not in 1..=24");
    assert_eq!(refusal(25), "25 pages are not in 1..=24");
    assert_eq!(
        refusal(11),
        "0 and 11 pages are above 10, the maximum of a writer"
    );
    let all = reader.pages().take(12).unwrap();
    assert_eq!(
        reader.grant(peer, 1, 1, LIMIT).unwrap_err().to_string(),
        "0 pages are free, not 1"
    );
    reader.pages().give_back(all);
    let leases = [1, 2].map(|tag| reader.grant(peer, tag, 1, LIMIT).unwrap());
    let third = reader.grant(peer, 3, 1, LIMIT).unwrap_err();
    assert_eq!(third.to_string(), "the writer has 2 leases, the maximum");
    for _ in leases {
        let event = reader_event(&mut reader, &mut [&mut writer]);
        let ReaderEvent::Arrived(_, pages) = event else {
            panic!("{event:?}")
        };
        reader.pages().give_back(pages);
    }
    transfer(&mut reader, peer, &mut writer, 4);
}

/// Private data of a writer with one lane.
fn hello(session: u8) -> Vec<u8> {
    [&b"KVT1"[..], &[session; 8], &[0, 1]].concat()
}

#[test]
fn writer_with_bad_private_data_is_refused() {
    let fabric = Fabric::seeded(7).checked();
    let [a, b] = ["10.9.0.1", "10.9.0.2"].map(|addr| host(&fabric, addr));
    let mut reader = reader(&a, 12, options());
    let connecting = b.spawn(|| {
        let param = cm::ConnParam::new().private_data(*b"GET / HTTP/1.1");
        EndpointBuilder::new()
            .timeout(LIMIT)
            .param(param)
            .connect(READER)
            .map(drop)
    });
    let refusal = loop {
        match reader.accept(LIMIT) {
            Ok(peer) => assert_eq!(peer, None),
            Err(error) => break error,
        }
    };
    assert_eq!(
        format!("{refusal:#}"),
        "refused a writer: the peer speaks another protocol"
    );
    assert!(connecting.join().unwrap().is_err());
    let (peer, mut writer, _) = connect(&mut reader, &b, options());
    transfer(&mut reader, peer, &mut writer, 1);
}

#[test]
fn peer_that_breaks_the_protocol_is_ended() {
    // Kind, lease, credits, and a part of the reason.
    let messages: [([u8; 9], &str); 4] = [
        ([9, 0, 0, 0, 0, 0, 0, 0, 1], "9 is no kind of message"),
        ([2, 0, 0, 0, 0, 0, 0, 0, 1], "unexpected message"),
        ([3, 0, 0, 0, 1, 0, 0, 0, 1], "1 credits, 33 in all"),
        ([4, 0, 3, 0, 0, 0, 0, 0, 1], "lane 3 is not below 1"),
    ];
    for fabric in fabrics() {
        let [a, b, c] = ["10.9.0.1", "10.9.0.2", "10.9.0.3"].map(|addr| host(&fabric, addr));
        let mut reader = reader(&a, 12, options());
        let (good, mut writer, _) = connect(&mut reader, &c, options());
        for (session, (start, reason)) in (1..).zip(messages) {
            let connecting = b.spawn(move || {
                let param = cm::ConnParam::new().private_data(hello(session));
                EndpointBuilder::new()
                    .timeout(LIMIT)
                    .param(param)
                    .connect(READER)
                    .unwrap()
            });
            let bad = accept(&mut reader);
            let mut endpoint = connecting.join().unwrap();
            let mut message = [0; 128];
            message[..9].copy_from_slice(&start);
            endpoint
                .post_send(endpoint.reg_msgs(message).unwrap())
                .unwrap();
            let event = reader_event(&mut reader, &mut [&mut writer]);
            let ReaderEvent::Lost(lost, why) = event else {
                panic!("{event:?}")
            };
            assert_eq!(lost, bad);
            assert!(why.contains(reason), "{why}");
        }
        transfer(&mut reader, good, &mut writer, 1);
    }
}
