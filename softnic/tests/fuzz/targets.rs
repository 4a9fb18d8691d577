//! Fuzz targets, also of `fuzz/fuzz_targets`.

use softnic::{cm::Message, wire::Frame};

/// A frame: the decoded headers and payload survive encoding.
pub(crate) fn frame(input: &[u8]) -> bool {
    let Ok(frame) = Frame::decode(input) else {
        return false;
    };
    let mut again = Vec::new();
    assert_eq!(frame.encode(&mut again), Ok(()));
    assert_eq!(Frame::decode(&again), Ok(frame));
    true
}

/// A message of the connection manager: the decoded fields survive encoding.
pub(crate) fn message(input: &[u8]) -> bool {
    let Some((tid, message)) = Message::decode(input) else {
        return false;
    };
    assert_eq!(Message::decode(&message.encode(tid)), Some((tid, message)));
    true
}
