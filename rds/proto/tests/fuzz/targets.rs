//! Fuzz targets, also of `fuzz/fuzz_targets`.

use std::{num::NonZero, time::Duration};

use rds_proto::{
    SocketId,
    connection::{Completion, Connection, Draft, Message, Received, Settings, Violation},
    wire::{
        BadHeader, CongestionMap, ConnectData, Extension, Extensions, Family, Header, MAX_MESSAGE,
        Version,
    },
};

/// Headers: encoding restores the input, except for padding and checksum.
pub(crate) fn header(input: &[u8]) {
    match Header::decode(input, true) {
        Ok(header) => {
            let again = header.encode();
            assert_eq!(again[..26], input[..26]);
            assert_eq!(again[32..], input[32..48]);
            assert_eq!(Header::decode(&again, false), Ok(header));
        }
        Err(BadHeader::Short(len)) => assert!(len == input.len() && len < Header::SIZE),
        Err(_) => assert!(input.len() >= Header::SIZE),
    }
}

/// Extensions: the decoded ones fit into the area.
pub(crate) fn extensions(input: &[u8]) {
    let mut area = Extensions::NONE;
    let len = input.len().min(Extensions::SIZE);
    area.0[..len].copy_from_slice(&input[..len]);
    let size = |extension: Extension| match extension {
        Extension::PortIndex(_) => 2,
        Extension::Paths(_) => 3,
        Extension::Version(_)
        | Extension::Rdma(_)
        | Extension::Generation(_)
        | Extension::Capabilities(_) => 5,
        _ => 9,
    };
    let sizes: usize = area.iter().map(size).sum();
    assert!(sizes <= Extensions::SIZE);
}

/// Private data: the reply is addressed to the sender, with a proposed version.
pub(crate) fn connect_data(input: &[u8]) {
    for family in [Family::V4, Family::V6] {
        let Ok(data) = ConnectData::decode(input, family) else {
            assert!(input.len() < family.size());
            continue;
        };
        assert_eq!(ConnectData::decode(&data.encode(), family), Ok(data));
        if let Ok(answer) = data.answer(data.hosts) {
            assert_eq!(answer.hosts.to(), data.hosts.from());
            assert_eq!(answer.version.major, data.version.major);
            assert!(Version::adopt(&answer).is_some());
        }
    }
}

/// Congestion maps, in two pieces.
pub(crate) fn map(input: &[u8]) {
    let (first, second) = input.split_at(input.len() / 2);
    let map = CongestionMap::decode(&[first, second]);
    assert_eq!(map.is_some(), input.len() == CongestionMap::SIZE);
    if let Some(map) = map {
        assert_eq!(map.as_bytes()[..], *input);
        assert_eq!(map.released(&map), 0);
    }
}

/// Sequences of frames, each with a 2-byte length. The connection is reset after a violation.
pub(crate) fn frames(mut input: &[u8]) {
    let mut settings = Settings::default();
    settings.max_pongs = 4;
    let mut connection: Connection<(), Vec<u8>> = Connection::new(&settings, NonZero::<u64>::MIN);
    let mut now = Duration::ZERO;
    connection.established(now, 0);
    let message = Message {
        owner: SocketId(0),
        from: 2,
        to: 3,
        draft: Draft::new(0, ()),
    };
    connection.send(message, false).unwrap();
    while let Some((len, rest)) = input.split_first_chunk() {
        let len = usize::from(u16::from_be_bytes(*len)).min(rest.len());
        let (frame, rest) = rest.split_at(len);
        input = rest;
        now += Duration::from_millis(1);
        let (header, body) = frame.split_at(frame.len().min(Header::SIZE));
        match connection.received(now, header, body.to_vec()) {
            Ok(Some(Received::Message(incoming))) => {
                let bodies = incoming.bodies.as_slice().iter();
                let len: usize = bodies.map(Vec::len).sum();
                assert_eq!(len, incoming.len as usize);
                connection.take(now, &incoming);
            }
            Ok(Some(Received::Ping(from))) => connection.pong(from),
            Ok(Some(Received::Map(_)) | None) => {}
            Err(Violation::MessageLen(len)) => {
                assert!(len > MAX_MESSAGE);
                reconnect(&mut connection, now);
            }
            Err(_) => reconnect(&mut connection, now),
        }
        let map = CongestionMap::default();
        while let Some(work) = connection.transmit(1, || &map) {
            let tag = work.tag;
            connection.completed(tag, Completion::Success);
        }
        if let Some((tag, _)) = connection.acknowledge(now) {
            connection.completed(tag, Completion::Success);
        }
    }
}

fn reconnect(connection: &mut Connection<(), Vec<u8>>, now: Duration) {
    let ignored = connection.received(now, &[], vec![]);
    assert!(matches!(ignored, Ok(None)));
    connection.reset();
    connection.established(now, 0);
}
