//! Requests that the responder refuses, each on a connection of its own.

use anyhow::{Result, ensure};
use verbs::{RemoteAccess, RemoteToken, WcStatus, op};

use crate::{
    Role,
    control::Control,
    side::{Connection, LONG, Options, Peer, SHORT, Side},
};

/// A request with a NAK as answer.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// No receive is posted.
    NotReady,
    /// Packets before the first one are missing.
    Missing,
    /// The key is of no region.
    WrongKey,
    /// The queue pair grants no atomic operations.
    NotGranted,
    /// The message is longer than its receive.
    TooLong,
    /// The message invalidates a key of no window.
    WrongInvalidation,
}

const REFUSALS: [Refusal; 6] = [
    Refusal::NotReady,
    Refusal::Missing,
    Refusal::WrongKey,
    Refusal::NotGranted,
    Refusal::TooLong,
    Refusal::WrongInvalidation,
];

impl Refusal {
    fn options(self) -> Options {
        let options = Options::default();
        match self {
            Self::NotReady => Options {
                retries: 0,
                ..options
            },
            Self::Missing => Options {
                gap: 3,
                retries: 1,
                ..options
            },
            Self::NotGranted => Options {
                access: RemoteAccess::WRITE,
                ..options
            },
            Self::WrongKey | Self::TooLong | Self::WrongInvalidation => options,
        }
    }

    fn receives(self) -> usize {
        match self {
            Self::Missing | Self::TooLong | Self::WrongInvalidation => 1,
            Self::NotReady | Self::WrongKey | Self::NotGranted => 0,
        }
    }

    fn post(self, qp: &mut Connection, peer: &Peer, side: &Side) -> Result<()> {
        match self {
            Self::NotReady | Self::Missing => qp.post(op::Send::new(side.buf(SHORT)?))?,
            Self::TooLong => qp.post(op::Send::new(side.buf(2 * LONG)?))?,
            Self::WrongInvalidation => {
                let message = op::Send::new(side.buf(SHORT)?);
                qp.post(message.invalidate(!peer.memory.rkey))?;
            }
            Self::WrongKey => {
                let rkey = !peer.memory.rkey;
                let memory = RemoteToken {
                    rkey,
                    ..peer.memory
                };
                qp.post(op::Write::new(side.buf(SHORT)?, memory))?;
            }
            Self::NotGranted => {
                let number = peer.memory.slice(0..8)?;
                qp.post(op::FetchAdd::new(side.buf(8)?, number, 1))?;
            }
        }
        Ok(())
    }

    /// Statuses of the request, for one of them depends on the device.
    fn statuses(self) -> &'static [WcStatus] {
        match self {
            Self::NotReady => &[WcStatus::RNR_RETRY_EXC_ERR],
            Self::Missing => &[WcStatus::RETRY_EXC_ERR],
            Self::WrongKey => &[WcStatus::REM_ACCESS_ERR],
            Self::NotGranted => &[WcStatus::REM_INV_REQ_ERR],
            // Soft-RoCE acknowledges the message, and fails its own queue pair.
            Self::WrongInvalidation => &[WcStatus::SUCCESS, WcStatus::REM_ACCESS_ERR],
            // Soft-RoCE reports an error of the responder.
            Self::TooLong => &[WcStatus::REM_INV_REQ_ERR, WcStatus::REM_OP_ERR],
        }
    }
}

pub(crate) fn run(role: Role, control: &mut Control, side: &mut Side) -> Result<()> {
    for refusal in REFUSALS {
        let receives = match role {
            Role::Active => 0,
            Role::Passive => refusal.receives(),
        };
        let (mut qp, peer) = side.reliable(control, refusal.options(), receives)?;
        if role == Role::Active {
            control.mark(&format!("{refusal:?}"))?;
            refusal.post(&mut qp, &peer, side)?;
            let status = side.statuses(&mut qp, 1)?[0];
            ensure!(
                refusal.statuses().contains(&status),
                "{refusal:?}: {status:?}"
            );
        }
        control.barrier()?;
        drop(qp);
        // Completions of the destroyed queue pair.
        drop(side.cq.poll()?);
    }
    Ok(())
}
