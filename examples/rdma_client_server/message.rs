//! The message, which both sides send once and receive once.

#![expect(clippy::print_stdout, reason = "of programs for the terminal")]

use cm::{Endpoint, EndpointBuilder};
use verbs::{Buf, op::Send};

/// Its length.
pub const MESSAGE_LEN: usize = 16;

/// An endpoint that owns a buffer for each receive, and for each send that is not inline.
pub type Side = Endpoint<Option<Buf>, Buf>;

/// One send, one receive, and room for the message in the request itself.
pub fn builder() -> EndpointBuilder {
    EndpointBuilder::new()
        .max_send_wr(1)
        .max_recv_wr(1)
        .max_inline_data(16)
}

/// Sends the message, within the request if the device can do that.
///
/// # Errors
/// The connection or the device has failed.
pub fn send(name: &str, side: &mut Side) -> anyhow::Result<()> {
    let message = [0; MESSAGE_LEN];
    if side.post(Send::new(None).inline(&message)).is_err() {
        println!("{name}: device doesn't support IBV_SEND_INLINE, using sge sends");
        let buf = side.reg_msgs(message)?;
        side.post_send(Some(buf))?;
    }
    side.send_comp()?.ok()?;
    Ok(())
}

/// Waits for the other side's.
///
/// # Errors
/// The connection or the device has failed, or there is none.
pub fn receive(side: &mut Side) -> anyhow::Result<()> {
    let done = side.recv_comp()?;
    done.ok()?;
    let len = done.byte_len();
    anyhow::ensure!(len == MESSAGE_LEN, "the peer has sent {len} bytes");
    Ok(())
}
