//! The server: counts, answers and sends back.

use anyhow::{Context, Result};

use super::{
    endpoint::Endpoint,
    message::{Message, Op},
    options::Options,
};

/// Maximum number of clients, limited by the client number of one byte.
const CLIENTS: usize = 256;

/// Serves without end, until an error.
///
/// # Errors
/// The address is in use, no device was found, or a client has disappeared.
#[expect(clippy::print_stdout, reason = "this is what the programs are for")]
pub fn run(options: &Options) -> Result<()> {
    let endpoint = Endpoint::serve(options)?;
    let mut counts = [0_u32; CLIENTS];
    let mut next = 0_u8;
    let mut message = Message::default();
    loop {
        let received = endpoint.receive(message.space());
        let (len, from) = received.context("cannot receive")?;
        if !Message::is_whole(len) {
            continue;
        }
        let op = message.op();
        if op == Op::Login {
            println!("client login from {}", from.ip().to_canonical());
            message.set_client(next);
            next = next.wrapping_add(1);
        }
        let count = &mut counts[usize::from(message.client())];
        match op {
            Op::Login | Op::Start => *count = 0,
            Op::End => message.set_count(*count),
            Op::Data | Op::Echo | Op::Other(_) => *count = count.wrapping_add(1),
        }
        if !matches!(op, Op::Data | Op::Other(_)) {
            let sent = endpoint.send(message.bytes(len), Some(from));
            sent.context("cannot send")?;
        }
    }
}
