//! XRC domains, private or shared by a file.

use std::{
    cell::UnsafeCell,
    ffi::c_int,
    mem::MaybeUninit,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ibverbs_sys as ffi;

use super::{
    context::{self, OpenDevice},
    null,
    object::{Object, zeroed},
    outcome,
};
use crate::{
    card::Card,
    engine::{EngineError, QpKind, XrcdId},
    fabric::Port,
};

/// A handle of an XRC domain.
#[repr(C)]
pub(super) struct Xrcd {
    raw: UnsafeCell<ffi::ibv_xrcd>,
    pub(super) device: Arc<OpenDevice>,
    pub(super) id: XrcdId,
}

// SAFETY: `repr(C)`, and the C struct comes first.
unsafe impl Object for Xrcd {
    type Raw = ffi::ibv_xrcd;
}

impl Xrcd {
    pub(super) fn context(&self) -> *mut ffi::ibv_context {
        // SAFETY: set at the domain's creation, and not changed.
        unsafe { (*self.raw.get()).context }
    }
}

/// Device and inode of a file.
type FileId = (u64, u64);

/// An open domain of a device.
struct Open {
    port: Port,
    id: XrcdId,
    /// File of a shared domain.
    file: Option<FileId>,
    /// Number of handles.
    handles: usize,
}

/// All open domains of the process.
static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());

fn open_domains() -> MutexGuard<'static, Vec<Open>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Identity of an open file; `None` for a wrong descriptor.
pub(super) fn file_id(fd: c_int) -> Option<FileId> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: a place for the result; a wrong descriptor is an error.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: written by the successful call.
    let stat = unsafe { stat.assume_init() };
    Some((stat.st_dev, stat.st_ino))
}

/// Opens a domain: the one of the file, or a new one. The errors are those of Linux.
fn open(port: &Port, file: Option<FileId>, flags: c_int) -> Result<XrcdId, c_int> {
    let mut all = open_domains();
    let of_file = |open: &&mut Open| file.is_some() && open.file == file && open.port.is(port);
    if let Some(found) = all.iter_mut().find(of_file) {
        if flags & libc::O_EXCL != 0 {
            return Err(libc::EINVAL);
        }
        found.handles += 1;
        return Ok(found.id);
    }
    if file.is_some() && flags & libc::O_CREAT == 0 {
        return Err(libc::EAGAIN);
    }
    let id = port.look(|nic| nic.engine.open_xrcd());
    all.push(Open {
        port: port.clone(),
        id,
        file,
        handles: 1,
    });
    Ok(id)
}

/// Closes a handle; the last one closes the domain.
fn close(port: &Port, id: XrcdId) -> Result<(), EngineError> {
    let mut all = open_domains();
    let of_id = |open: &Open| open.id == id && open.port.is(port);
    let Some(index) = all.iter().position(of_id) else {
        return Err(EngineError::NotFound("XRC domain", id.0));
    };
    if all[index].handles > 1 {
        all[index].handles -= 1;
        return Ok(());
    }
    port.look(|nic| nic.engine.close_xrcd(id))?;
    all.swap_remove(index);
    Ok(())
}

pub(super) unsafe extern "C" fn open_xrcd(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_xrcd_init_attr,
) -> *mut ffi::ibv_xrcd {
    use ffi::ibv_xrcd_init_attr_mask as has;
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    // SAFETY: an open context.
    let device = unsafe { context::device(ctx) };
    let row = device.port.card().map(Card::specification);
    if row.is_some_and(|row| !row.kinds.contains(&QpKind::XrcSend)) {
        return null(libc::EOPNOTSUPP);
    }
    let needed = has::IBV_XRCD_INIT_ATTR_FD.0 | has::IBV_XRCD_INIT_ATTR_OFLAGS.0;
    if attr.comp_mask != needed {
        return null(libc::EINVAL);
    }
    let file = match attr.fd {
        -1 => None,
        fd => match file_id(fd) {
            Some(file) => Some(file),
            None => return null(libc::EBADF),
        },
    };
    let id = match open(&device.port, file, attr.oflags) {
        Ok(id) => id,
        Err(errno) => return null(errno),
    };
    let mut raw: ffi::ibv_xrcd = zeroed();
    raw.context = ctx;
    let xrcd = Xrcd {
        raw: UnsafeCell::new(raw),
        device: Arc::clone(device),
        id,
    };
    xrcd.into_raw()
}

pub(super) unsafe extern "C" fn close_xrcd(raw: *mut ffi::ibv_xrcd) -> c_int {
    // SAFETY: a live handle.
    let xrcd = unsafe { Xrcd::borrow(raw) };
    let ret = outcome(close(&xrcd.device.port, xrcd.id));
    if ret == 0 {
        // SAFETY: live until here; the caller gives the handle up.
        unsafe { Xrcd::free(raw) };
    }
    ret
}
