//! One connection, reliable or unreliable.

#![expect(clippy::print_stdout, reason = "of programs for the terminal")]

use anyhow::Context as _;
use verbs::{
    Init, QueuePair, Rts,
    ah::AddressVector,
    attr::Mtu,
    op::{self, SendOps},
    qp::{Attributes, Connected},
};

use super::{
    address::Address,
    exchange::exchange,
    options::{Extensions, Messages, Options},
    rally::{Single, play, print_rates},
    setup::Setup,
    store::AnyPiece,
};

/// A queue pair with sends and receives over the same memory.
pub type Qp<T, S> = QueuePair<T, S, AnyPiece, AnyPiece>;

/// Function to connect a queue pair, with the attributes of each transport.
pub type Connect<T> = fn(Qp<T, Init>, &Link) -> verbs::Result<Qp<T, Rts>>;

/// Parameters of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Local address.
    pub local: Address,
    /// Remote address.
    pub remote: Address,
    /// Route to the peer.
    pub address_vector: AddressVector,
    /// Path MTU.
    pub mtu: Mtu,
}

/// Runs a program over one connection established by `connect`.
///
/// # Errors
/// An operation failed on this side or on the other.
pub fn run<T: Connected>(
    options: &Options,
    messages: Messages,
    extensions: Extensions,
    connect: Connect<T>,
) -> anyhow::Result<()> {
    extensions.check()?;
    let mut setup = Setup::extended(options, messages.size, extensions)?;
    let qp = setup
        .pd
        .qp_builder::<T>(setup.cq.handle(), setup.cq.handle());
    let qp = match extensions.new_send {
        true => qp.send_ops(SendOps::SEND),
        false => qp,
    };
    let qp: Qp<T, _> = qp.max_recv_wr(options.rx_depth).create_for()?;
    let init = Attributes::<T, Init>::new(options.ib_port);
    let mut qp = qp.to_init(&init).map_err(verbs::Error::from)?;
    for _ in 0..options.rx_depth {
        qp.post_recv(setup.buffer())
            .context("couldn't post receive")?;
    }

    let local = setup.address(qp.qp_num());
    println!("  local address:  {local}");
    let qp = exchange(options, &[local], 1, |remote| {
        let remote = *remote.first().context("there is no remote address")?;
        let link = Link {
            local,
            remote,
            address_vector: setup.address_vector(&remote)?,
            mtu: messages.mtu,
        };
        Ok(connect(qp, &link)?)
    })?;

    let serves = options.host.is_none();
    if options.chk && !serves {
        setup.mark()?;
    }
    let message = setup.message();
    let mut side = Single::new(qp, setup.buffer(), |qp: &mut Qp<T, Rts>| {
        let request = op::Send::new(message.clone());
        if extensions.new_send {
            let mut batch = qp.extended_batch()?;
            batch.push(request)?;
            Ok(batch.post()?)
        } else {
            Ok(qp.post(request)?)
        }
    });
    let elapsed = play(options, &mut setup.cq, &mut side)?;
    print_rates(options, messages.size, elapsed);
    if let Some(intervals) = setup.cq.intervals() {
        print!("{intervals}");
    }
    if options.chk && serves {
        setup.check_marks()?;
    }
    Ok(())
}
