//! The message, sent and received once by each side.

#![expect(clippy::print_stdout, reason = "of programs for the terminal")]

use cm::{Endpoint, EndpointBuilder};
use verbs::{Buf, op};

/// Length of the message, in bytes.
pub const MESSAGE_LEN: usize = 16;

/// An endpoint with an owned buffer for each receive and each send without inline data.
pub type Side = Endpoint<Option<Buf>, Buf>;

/// Builder for one send, one receive, and inline data of the message's length.
pub fn builder() -> EndpointBuilder {
    EndpointBuilder::new()
        .max_send_wr(1)
        .max_recv_wr(1)
        .max_inline_data(16)
}

/// Sends the message, inline if the device supports inline data of this length.
///
/// # Errors
/// The connection or the device has failed.
pub fn send(name: &str, side: &mut Side) -> anyhow::Result<()> {
    let message = [0; MESSAGE_LEN];
    if side.post(op::Send::new(None).inline(&message)).is_err() {
        println!("{name}: device doesn't support IBV_SEND_INLINE, using sge sends");
        let buf = side.reg_msgs(message)?;
        side.post_send(Some(buf))?;
    }
    side.send_comp()?.ok()?;
    Ok(())
}

/// Blocks until the peer's message has been received.
///
/// # Errors
/// The connection or the device has failed, or the peer has disconnected.
pub fn receive(side: &mut Side) -> anyhow::Result<()> {
    let done = side.recv_comp()?;
    done.ok()?;
    let len = done.byte_len();
    anyhow::ensure!(len == MESSAGE_LEN, "the peer has sent {len} bytes");
    Ok(())
}
