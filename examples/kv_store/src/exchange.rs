//! Sending and receiving messages, one at a time.

use anyhow::Context as _;
use cm::Endpoint;
use verbs::{Buf, WcStatus};

use super::message::Message;

/// Sends a message, and returns the buffer once the send has completed.
///
/// # Errors
/// The connection has failed.
pub fn send(endpoint: &mut Endpoint, mut buf: Buf, message: &Message) -> anyhow::Result<Buf> {
    buf.copy_from_slice(&message.to_wire());
    endpoint.post_send(buf)?;
    Ok(endpoint.send_comp()?.into_work()?)
}

/// Blocks until a message arrives, and reposts the receive. `None` if the peer has disconnected.
///
/// # Errors
/// The connection has failed, or the message is invalid.
pub fn receive(endpoint: &mut Endpoint) -> anyhow::Result<Option<Message>> {
    let done = endpoint.recv_comp()?;
    if done.status() == WcStatus::WR_FLUSH_ERR {
        return Ok(None);
    }
    let message = Message::from_wire(done.received()?).context("the peer has sent no message")?;
    let buf = done.into_work()?;
    endpoint.post_recv(buf)?;
    Ok(Some(message))
}
