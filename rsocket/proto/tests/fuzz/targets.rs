//! Fuzz targets, also of `fuzz/fuzz_targets`.

#[path = "datagrams.rs"]
pub(crate) mod datagram;
#[path = "intake.rs"]
pub(crate) mod intake;

pub(crate) use datagram::run as datagrams;
pub(crate) use intake::run as stream;
use rsocket_proto::{BadConnectData, ByteOrder, ConnectData, Mapping, Message, Target, VERSION};

/// Connect data: accepted data is usable and survives encoding.
pub(crate) fn connect_data(input: &[u8]) {
    match ConnectData::decode(input) {
        Ok(data) => {
            assert_eq!(input[0], VERSION);
            assert!(data.credits > 0 && data.targets.len >= 2 && data.first.len > 0);
            let again = data.encode();
            assert_eq!(ConnectData::decode(&again), Ok(data));
            // Reserved bytes and unknown flags are not preserved.
            assert_eq!(again[8..], input[8..ConnectData::SIZE]);
        }
        Err(BadConnectData::Short(len)) => {
            assert!(len == input.len() && len < ConnectData::SIZE);
        }
        Err(BadConnectData::Version(version)) => {
            assert!(version == input[0] && version != VERSION);
        }
        Err(_) => assert!(input.len() >= ConnectData::SIZE),
    }
}

/// A message: encoding and decoding are inverse.
pub(crate) fn messages(input: &[u8]) {
    for word in input.windows(4) {
        let word = word.try_into().map_or(0, u32::from_be_bytes);
        let message = Message::decode(word);
        assert_eq!(Message::decode(message.encode()), message);
    }
}

/// Table entries in either byte order.
pub(crate) fn entries(input: &[u8]) {
    let (Some(target), Some(mapping)) = (input.first_chunk(), input.first_chunk()) else {
        return;
    };
    for order in [ByteOrder::Little, ByteOrder::Big] {
        assert_eq!(Target::decode(target, order).encode(order), *target);
        assert_eq!(Mapping::decode(mapping, order).encode(order), *mapping);
    }
}
