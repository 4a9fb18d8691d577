//! The unsafe floor: C's calls, as in a program ported line by line.

use std::{
    error::Error,
    mem::MaybeUninit,
    ptr::{self, NonNull},
};

use ibverbs_sys as ffi;

use crate::{Ends, LENGTH, Result};

/// As `bare-send` of `reference.c`.
pub(crate) fn send(ends: &mut Ends, count: u32) -> Result<()> {
    let (qp, cq) = (ends.qp.as_raw(), ends.cq.as_raw());
    let (addr, lkey) = register(ends)?;
    for i in 0..count {
        let mut sge = ffi::ibv_sge {
            addr,
            length: LENGTH,
            lkey,
        };
        let mut wr = MaybeUninit::<ffi::ibv_send_wr>::uninit();
        let fields = wr.as_mut_ptr();
        // SAFETY: a field of `wr`, not borrowed elsewhere.
        unsafe { (*fields).wr_id = i.into() };
        // SAFETY: as above.
        unsafe { (*fields).next = ptr::null_mut() };
        // SAFETY: as above.
        unsafe { (*fields).sg_list = &raw mut sge };
        // SAFETY: as above.
        unsafe { (*fields).num_sge = 1 };
        // SAFETY: as above.
        unsafe { (*fields).opcode = ffi::ibv_wr_opcode::IBV_WR_SEND };
        // SAFETY: as above.
        unsafe { (*fields).send_flags = ffi::ibv_send_flags::IBV_SEND_SIGNALED.0 };
        let mut bad = MaybeUninit::uninit();
        // SAFETY: the queue pair is the one of `ends`, and all fields needed for a send are set.
        // The memory is leaked.
        if unsafe { ffi::ibv_post_send(qp, fields, bad.as_mut_ptr()) } != 0 {
            return Err(failed("ibv_post_send failed"));
        }
        poll(cq)?;
    }
    Ok(())
}

/// As `bare-recv` of `reference.c`.
pub(crate) fn recv(ends: &mut Ends, count: u32) -> Result<()> {
    let (qp, cq) = (ends.qp.as_raw(), ends.cq.as_raw());
    let (addr, lkey) = register(ends)?;
    for i in 0..count {
        let mut sge = ffi::ibv_sge {
            addr,
            length: LENGTH,
            lkey,
        };
        let mut wr = ffi::ibv_recv_wr {
            wr_id: i.into(),
            next: ptr::null_mut(),
            sg_list: &raw mut sge,
            num_sge: 1,
        };
        let mut bad = MaybeUninit::uninit();
        // SAFETY: as in `send`.
        if unsafe { ffi::ibv_post_recv(qp, &raw mut wr, bad.as_mut_ptr()) } != 0 {
            return Err(failed("ibv_post_recv failed"));
        }
        poll(cq)?;
    }
    Ok(())
}

/// Registers leaked memory, and returns its address and its key.
fn register(ends: &Ends) -> Result<(u64, u32)> {
    let memory = Box::leak(Box::new([0_u8; LENGTH as usize])).as_mut_ptr();
    let access = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
    // SAFETY: the domain is the one of `ends`, and the memory has no other user.
    let mr = unsafe { ffi::ibv_reg_mr(ends.pd.as_raw(), memory.cast(), LENGTH as usize, access) };
    let mr = NonNull::new(mr).ok_or("ibv_reg_mr failed")?;
    // SAFETY: the region has just been registered.
    let lkey = unsafe { mr.as_ref() }.lkey;
    Ok((memory.expose_provenance() as u64, lkey))
}

/// Waits for a completion.
#[inline]
fn poll(cq: *mut ffi::ibv_cq) -> Result<()> {
    let mut wc = MaybeUninit::<ffi::ibv_wc>::uninit();
    let count = loop {
        // SAFETY: the queue is the one of the caller's `Ends`, and there is room for one
        // completion.
        let count = unsafe { ffi::ibv_poll_cq(cq, 1, wc.as_mut_ptr()) };
        if count != 0 {
            break count;
        }
    };
    if count < 0 {
        return Err(failed("ibv_poll_cq failed"));
    }
    // SAFETY: the call has written the field.
    let status = unsafe { (*wc.as_ptr()).status };
    if status != ffi::ibv_wc_status::IBV_WC_SUCCESS {
        return Err(failed("a request failed"));
    }
    Ok(())
}

/// Out of the way of the loops, as in C.
#[cold]
fn failed(what: &'static str) -> Box<dyn Error> {
    what.into()
}
