//! Kinds of frames, by name. Used by the recording of frames as well.

use softnic::{
    cm::Message,
    wire::{Frame, Syndrome},
};

/// Name of a frame's kind: IP version, opcode, and the kind of a NAK or of a message of the connection manager.
pub(crate) fn kind(frame: &Frame<'_>) -> String {
    let version = match frame.ip.encoded_len() {
        20 => 4,
        _ => 6,
    };
    let name = format!("IPv{version}, {}", frame.bth.opcode);
    let syndrome = frame.extensions.aeth.map(|aeth| aeth.syndrome);
    match (syndrome, frame.bth.dest_qp) {
        (None | Some(Syndrome::Ack(_)), 2..) => name,
        (Some(Syndrome::RnrNak(_)), _) => format!("{name}, RNR NAK"),
        (Some(Syndrome::Nak(nak)), _) => format!("{name}, NAK {nak:?}"),
        _ => format!("{name}, {}", message(frame.payload)),
    }
}

fn message(bytes: &[u8]) -> &'static str {
    match Message::decode(bytes) {
        Some((_, Message::Request(_))) => "REQ",
        Some((_, Message::Mra(_))) => "MRA",
        Some((_, Message::Reject(_))) => "REJ",
        Some((_, Message::Reply(_))) => "REP",
        Some((_, Message::Ready(_))) => "RTU",
        Some((_, Message::Disconnect(..))) => "DREQ",
        Some((_, Message::Disconnected(_))) => "DREP",
        Some((_, Message::ServiceRequest(_))) => "SIDR REQ",
        Some((_, Message::ServiceReply(_))) => "SIDR REP",
        None => "unknown",
    }
}
