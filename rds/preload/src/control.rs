//! Control messages of `sendmsg` and `recvmsg`.

use std::{
    io,
    ptr::NonNull,
    time::{SystemTime, UNIX_EPOCH},
};

use interpose::os;
use libc::{c_int, c_void};
use rds::{
    Atomic, Cookie, ExportOptions, Rdma, SendOptions, Socket,
    proto::{
        connection::Direction,
        control::{
            AtomicArgs, BadControl, FENCE, FreeMrArgs, GetMrArgs, Kind, LEVEL, NOTIFY_ME,
            REMOTE_COMPLETE, RdmaArgs, SILENT, USE_ONCE,
        },
    },
};
// Memory of the program is registered like any other.
use verbs::mr::Memory;

use crate::memory::{bytes, bytes_mut};

/// Size of a `cmsghdr`: length (8 bytes), level and type.
const HEADER: usize = 16;

/// The `errno` of the kernel.
pub(crate) fn to_os_error(bad: BadControl) -> io::Error {
    os(match bad {
        BadControl::TooLong(_) => libc::EMSGSIZE,
        BadControl::Unaligned(_) | BadControl::Points(_) => libc::EFAULT,
        BadControl::Masks => libc::EOPNOTSUPP,
        _ => libc::EINVAL,
    })
}

/// Memory owned by the program.
#[derive(Debug)]
struct Program(NonNull<[u8]>);

// SAFETY: the range is accessed by devices only, independent of the thread.
unsafe impl Send for Program {}

// SAFETY: the range never changes. By passing memory to RDS, a program permits access by devices. If the program unmaps the
// addresses: Assumption: registered pages stay with the device after the program unmaps them.
unsafe impl Memory for Program {
    fn range(&mut self) -> NonNull<[u8]> {
        self.0
    }
}

impl Program {
    fn new(addr: u64, len: u64) -> io::Result<Self> {
        let addr = usize::try_from(addr).map_err(|_| os(libc::EFAULT))?;
        let len = usize::try_from(len).map_err(|_| os(libc::EINVAL))?;
        let start = std::ptr::with_exposed_provenance_mut::<u8>(addr);
        let start = NonNull::new(start).ok_or_else(|| os(libc::EFAULT))?;
        Ok(Self(NonNull::slice_from_raw_parts(start, len)))
    }
}

/// `RDS_GET_MR`: exports memory of the program, and stores the cookie.
///
/// # Safety
/// `args.cookie_addr` is null, or points to 8 writable bytes.
pub(crate) unsafe fn export(socket: &Socket, args: &GetMrArgs) -> io::Result<Cookie> {
    let mut options = ExportOptions::new();
    if args.flags & USE_ONCE != 0 {
        options = options.use_once();
    }
    let cookie_out = match args.cookie_addr {
        0 => None,
        at => {
            let at = usize::try_from(at).map_err(|_| os(libc::EFAULT))?;
            let at = std::ptr::with_exposed_provenance_mut::<c_void>(at);
            // SAFETY: guaranteed by the caller.
            Some(unsafe { bytes_mut(at, 8) }?)
        }
    };
    let cookie = socket.export_memory(Program::new(args.addr, args.len)?, options)?;
    if let Some(cookie_out) = cookie_out {
        cookie_out.copy_from_slice(&cookie.to_u64().to_ne_bytes());
    }
    Ok(cookie)
}

/// `RDS_FREE_MR`: ends an export. As in the kernel, all unused ones at once are those of a socket with a transport over RDMA.
pub(crate) fn free(socket: &Socket, payload: &[u8], is_rdma: bool) -> io::Result<()> {
    match FreeMrArgs::decode(payload).map_err(to_os_error)?.cookie {
        Some(cookie) => socket.free(cookie),
        // Unused exports have ended already.
        None if is_rdma => Ok(()),
        None => Err(os(libc::EINVAL)),
    }
}

/// Decoded control messages of a send.
#[derive(Debug, Default)]
pub(crate) struct SendControl {
    pub(crate) options: SendOptions,
    /// Export created for the message.
    pub(crate) mapped: Option<Cookie>,
    rdma: bool,
    atomic: bool,
    memory: bool,
    /// A zero-copy cookie is present.
    pub(crate) zero_copy: bool,
}

/// Splits control messages of level `SOL_RDS` into type and payload.
fn split_control(mut control: &[u8]) -> io::Result<Vec<(c_int, &[u8])>> {
    let mut found = Vec::new();
    while let Some((header, _)) = control.split_first_chunk::<HEADER>() {
        let (len, rest) = header
            .split_first_chunk::<8>()
            .ok_or_else(|| os(libc::EINVAL))?;
        let len = usize::try_from(u64::from_ne_bytes(*len)).unwrap_or(usize::MAX);
        if len < HEADER || len > control.len() {
            return Err(os(libc::EINVAL));
        }
        let number = |bytes: &[u8]| bytes.try_into().map(c_int::from_ne_bytes);
        let level = number(&rest[..4]).map_err(io::Error::other)?;
        let kind = number(&rest[4..]).map_err(io::Error::other)?;
        if level == LEVEL {
            found.push((kind, &control[HEADER..len]));
        }
        control = control.get(len.next_multiple_of(8)..).unwrap_or_default();
    }
    Ok(found)
}

impl SendControl {
    /// Decodes control messages, and registers the memory for the message.
    ///
    /// # Safety
    /// Memory in the control messages belongs to the program, and may be accessed by devices; lists
    /// in the control messages are readable.
    pub(crate) unsafe fn read(socket: &Socket, control: &[u8]) -> io::Result<Self> {
        let mut control_msgs = Self::default();
        for (kind, payload) in split_control(control)? {
            let first = match kind {
                1 => !std::mem::replace(&mut control_msgs.rdma, true),
                6..=9 => !std::mem::replace(&mut control_msgs.atomic, true),
                2 | 3 => !std::mem::replace(&mut control_msgs.memory, true),
                12 => !std::mem::replace(&mut control_msgs.zero_copy, true),
                _ => false,
            };
            if !first {
                return Err(control_msgs.undo(socket, os(libc::EINVAL)));
            }
            // SAFETY: guaranteed by the caller.
            if let Err(err) = unsafe { control_msgs.add(socket, kind, payload) } {
                return Err(control_msgs.undo(socket, err));
            }
        }
        let operation = control_msgs.rdma || control_msgs.atomic;
        if operation && (control_msgs.memory || control_msgs.zero_copy) {
            return Err(control_msgs.undo(socket, os(libc::EINVAL)));
        }
        Ok(control_msgs)
    }

    /// Undoes the preparations of a failed send.
    pub(crate) fn undo(&self, socket: &Socket, err: io::Error) -> io::Error {
        if let Some(cookie) = self.mapped {
            // The export exists.
            drop(socket.free(cookie));
        }
        err
    }

    unsafe fn add(&mut self, socket: &Socket, kind: c_int, payload: &[u8]) -> io::Result<()> {
        let options = std::mem::take(&mut self.options);
        self.options = match kind {
            1 => {
                let args = RdmaArgs::decode(payload).map_err(to_os_error)?;
                // SAFETY: guaranteed by the caller.
                let options = options.rdma(unsafe { operation(socket, &args) }?);
                if args.flags & SILENT != 0 {
                    options.silent()
                } else {
                    options
                }
            }
            2 => {
                let cookie = payload.try_into().map_err(|_| os(libc::EINVAL))?;
                options.cookie(Cookie::from_u64(u64::from_ne_bytes(cookie)))
            }
            3 => {
                let args = GetMrArgs::decode(payload).map_err(to_os_error)?;
                // SAFETY: guaranteed by the caller.
                let cookie = unsafe { export(socket, &args) }?;
                self.mapped = Some(cookie);
                options.cookie(cookie)
            }
            6..=9 => {
                let kind = match kind {
                    6 => Kind::AtomicFetchAdd,
                    7 => Kind::AtomicCompareSwap,
                    8 => Kind::MaskedAtomicFetchAdd,
                    _ => Kind::MaskedAtomicCompareSwap,
                };
                let args = AtomicArgs::decode(payload, kind).map_err(to_os_error)?;
                let local = socket.register(Program::new(args.local_addr, 8)?)?;
                let mut atomic = Atomic::new(args.op, local, args.cookie)
                    .at(args.remote_addr)
                    .token(args.token);
                if args.flags & FENCE != 0 {
                    atomic = atomic.fence();
                }
                if args.flags & NOTIFY_ME != 0 {
                    atomic = atomic.notify();
                }
                if args.flags & REMOTE_COMPLETE != 0 {
                    atomic = atomic.remote_complete();
                }
                let options = options.atomic(atomic);
                if args.flags & SILENT != 0 {
                    options.silent()
                } else {
                    options
                }
            }
            _ => options,
        };
        Ok(())
    }
}

/// Converts an RDMA operation, registering the memory of the program.
///
/// # Safety
/// As for [`SendControl::read`].
unsafe fn operation(socket: &Socket, args: &RdmaArgs) -> io::Result<Rdma> {
    let at = usize::try_from(args.local).map_err(|_| os(libc::EFAULT))?;
    // At most 1024.
    let count = usize::try_from(args.local_count).unwrap_or_default();
    let list = std::ptr::with_exposed_provenance::<c_void>(at);
    // SAFETY: guaranteed by the caller.
    let list = unsafe { bytes(list, 16 * count) }?;
    let mut local = Vec::with_capacity(count);
    for entry in list.chunks_exact(16) {
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes);
        let addr = number(&entry[..8]).map_err(io::Error::other)?;
        let len = number(&entry[8..]).map_err(io::Error::other)?;
        if len > args.remote_len {
            return Err(os(libc::EINVAL));
        }
        local.push(socket.register(Program::new(addr, len)?)?);
    }
    let rdma = match args.direction() {
        Direction::Write => Rdma::write(local, args.cookie),
        Direction::Read => Rdma::read(local, args.cookie),
    };
    let mut rdma = rdma
        .at(args.remote_addr)
        .remote_len(args.remote_len)
        .token(args.token);
    if args.flags & FENCE != 0 {
        rdma = rdma.fence();
    }
    if args.flags & NOTIFY_ME != 0 {
        rdma = rdma.notify();
    }
    if args.flags & REMOTE_COMPLETE != 0 {
        rdma = rdma.remote_complete();
    }
    Ok(rdma)
}

/// Writer of control messages into the buffer of the program.
#[derive(Debug)]
pub(crate) struct ControlWriter<'a> {
    buffer: &'a mut [u8],
    used: usize,
    /// A control message did not fit.
    pub(crate) truncated: bool,
}

impl<'a> ControlWriter<'a> {
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Self {
            buffer,
            used: 0,
            truncated: false,
        }
    }

    pub(crate) fn add(&mut self, kind: Kind, payload: &[u8]) {
        self.add_any(LEVEL, kind as i32, payload);
    }

    /// Adds the arrival time of a message, for `SO_TIMESTAMP`.
    pub(crate) fn add_timestamp(&mut self, time: SystemTime) {
        let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut payload = [0; 16];
        payload[..8].copy_from_slice(&time.as_secs().to_ne_bytes());
        payload[8..].copy_from_slice(&u64::from(time.subsec_micros()).to_ne_bytes());
        self.add_any(libc::SOL_SOCKET, libc::SCM_TIMESTAMP, &payload);
    }

    fn add_any(&mut self, level: c_int, kind: c_int, payload: &[u8]) {
        let len = HEADER + payload.len();
        let Some(header_and_payload) = self.buffer.get_mut(self.used..self.used + len) else {
            self.truncated = true;
            return;
        };
        header_and_payload[..8].copy_from_slice(&(len as u64).to_ne_bytes());
        header_and_payload[8..12].copy_from_slice(&level.to_ne_bytes());
        header_and_payload[12..16].copy_from_slice(&kind.to_ne_bytes());
        header_and_payload[16..].copy_from_slice(payload);
        self.used = (self.used + len.next_multiple_of(8)).min(self.buffer.len());
    }

    pub(crate) fn len(&self) -> usize {
        self.used
    }
}
