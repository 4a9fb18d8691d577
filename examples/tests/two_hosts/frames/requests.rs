//! Requests of each kind over each transport.

use anyhow::Result;
use verbs::{
    Init, QueuePair, RemoteAccess, Rtr, Rts, Ud,
    ah::{Addressed, GRH_LEN},
    mw::WindowType,
    op,
    qp::{Attributes, Psn},
};

use crate::{
    Role,
    control::Control,
    side::{Connection, LONG, Options, SHORT, Side},
};

/// Immediate data.
const IMM: u32 = 0x0102_0304;

/// Q_Key of the datagrams.
const QKEY: u32 = 0x1111_1111;

pub(crate) fn reliable(role: Role, control: &mut Control, side: &mut Side) -> Result<()> {
    match role {
        Role::Active => request(control, side),
        Role::Passive => respond(control, side),
    }
}

/// Keys of two windows, one for each length of a message that invalidates.
fn respond(control: &mut Control, side: &mut Side) -> Result<()> {
    let (mut qp, _) = side.reliable(control, Options::default(), 8)?;
    let region = side.pd.alloc_for_windows(64)?;
    let mut windows = Vec::new();
    let mut keys = [0; 2];
    for key in &mut keys {
        let mut window = side.pd.alloc_mw(WindowType::Type2)?;
        let bound = qp.bind_window(&mut window, &region, RemoteAccess::WRITE, side.buf(SHORT)?);
        *key = bound.map_err(|refused| refused.error)?.rkey.into();
        side.complete(&mut qp, 1)?;
        windows.push(window);
    }
    control.swap(keys)?;
    side.complete(&mut qp, 8)?;
    control.barrier()
}

fn request(control: &mut Control, side: &mut Side) -> Result<()> {
    let (mut qp, peer) = side.reliable(control, Options::default(), 0)?;
    let keys = control.swap([0; 2])?;
    for (len, key) in [LONG, SHORT].into_iter().zip(keys) {
        let memory = peer.memory.slice(0..len as u64)?;
        qp.post(op::Send::new(side.buf(len)?))?;
        qp.post(op::Send::new(side.buf(len)?).imm_data(IMM).solicited())?;
        qp.post(op::Send::new(side.buf(len)?).invalidate(u32::try_from(key)?))?;
        qp.post(op::Write::new(side.buf(len)?, memory))?;
        qp.post(op::Write::new(side.buf(len)?, memory).imm_data(IMM))?;
        side.complete(&mut qp, 5)?;
        qp.post(op::Read::new(side.buf(len)?, memory))?;
        side.complete(&mut qp, 1)?;
    }
    atomics(&mut qp, side, peer.memory.slice(0..8)?)?;
    control.barrier()
}

fn atomics(qp: &mut Connection, side: &mut Side, number: verbs::RemoteToken) -> Result<()> {
    qp.post(op::CompareSwap::new(side.buf(8)?, number, 1, 2))?;
    qp.post(op::FetchAdd::new(side.buf(8)?, number, 3))?;
    side.complete(qp, 2)?;
    if side.has_atomic_write() {
        let mut batch = qp.extended_batch()?;
        batch.push(op::AtomicWrite::new(side.buf(8)?, number, *b"at once!"))?;
        batch.post().map_err(|refused| refused.error)?;
        side.complete(qp, 1)?;
    }
    Ok(())
}

pub(crate) fn unreliable(role: Role, control: &mut Control, side: &mut Side) -> Result<()> {
    let (mut qp, peer) = side.unreliable(control, 6)?;
    match role {
        Role::Active => {
            for len in [LONG, SHORT] {
                let memory = peer.memory.slice(0..len as u64)?;
                qp.post(op::Send::new(side.buf(len)?))?;
                qp.post(op::Send::new(side.buf(len)?).imm_data(IMM))?;
                qp.post(op::Write::new(side.buf(len)?, memory))?;
                qp.post(op::Write::new(side.buf(len)?, memory).imm_data(IMM))?;
                side.complete(&mut qp, 4)?;
            }
        }
        Role::Passive => side.complete(&mut qp, 6)?,
    }
    control.barrier()
}

pub(crate) fn datagrams(role: Role, control: &mut Control, side: &mut Side) -> Result<()> {
    let builder = side.pd.qp_builder::<Ud>(&side.cq, &side.cq);
    let qp = builder.max_send_wr(4).max_recv_wr(4).create_for()?;
    let peer = side.swap(control, qp.qp_num())?;
    let qp = qp.to_init(&Attributes::<Ud, Init>::new(1, QKEY))?;
    let qp = qp.to_rtr(&Attributes::<Ud, Rtr>::new())?;
    let mut qp: QueuePair<Ud, Rts, Addressed<_>> =
        qp.to_rts(&Attributes::<Ud, Rts>::new(Psn::default()))?;
    for _ in 0..2 {
        qp.post_recv(side.pd.alloc_buf(GRH_LEN + SHORT)?)?;
    }
    control.barrier()?;
    if role == Role::Active {
        let ah = side.pd.create_ah(&side.vector(&peer))?;
        let message = || Ok::<_, anyhow::Error>(Addressed::new(side.buf(SHORT)?, &ah));
        let requests = [
            op::SendTo::new(message()?, peer.qp_num, QKEY),
            op::SendTo::new(message()?, peer.qp_num, QKEY).imm_data(IMM),
        ];
        for request in requests {
            qp.post(request)?;
        }
    }
    side.complete(&mut qp, 2)?;
    control.barrier()
}
