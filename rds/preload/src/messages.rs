//! Interposed functions for sending and receiving.

use std::{io, io::IoSlice};

use interpose::{Encoded, interpose, os};
use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use rds::{
    Event, Interest, SendOptions,
    proto::control::{Kind, RdmaStatus, ZcopyCompletion},
};

use crate::{
    address,
    control::{ControlWriter, SendControl},
    memory::{bytes, bytes_mut, check_place, check_room, gather, scatter, value, write_out},
    sockets::raw,
    table::{SocketEntry, find, may_find, with},
};

/// Sends one message.
///
/// # Safety
/// As for [`SendControl::read`].
unsafe fn send_one(
    entry: &SocketEntry,
    pieces: &[IoSlice<'_>],
    to: &[u8],
    control: &[u8],
    flags: c_int,
) -> io::Result<ssize_t> {
    if flags & !(libc::MSG_DONTWAIT | libc::MSG_ZEROCOPY) != 0 {
        return Err(os(libc::EOPNOTSUPP));
    }
    let to = match to {
        [] => None,
        to => Some(address::read(to, libc::EINVAL)?),
    };
    let zero_copy = flags & libc::MSG_ZEROCOPY != 0;
    if zero_copy && entry.settings().zero_copy {
        // As the kernel does for RDMA transports.
        return Err(os(libc::EOPNOTSUPP));
    }
    if !entry.settings().bound {
        return Err(os(libc::ENOTCONN));
    }
    let with_flags = |mut options: SendOptions| {
        if let Some(to) = to {
            options = options.to(to);
        }
        if flags & libc::MSG_DONTWAIT != 0 {
            options = options.dont_wait();
        }
        options
    };
    if control.is_empty() && !zero_copy {
        let options = with_flags(SendOptions::new());
        let sent = entry.socket.send_msg(pieces, &options)?;
        return Ok(length(sent.len));
    }
    // SAFETY: as the caller promises.
    let mut control_msgs = unsafe { SendControl::read(&entry.socket, control) }?;
    if control_msgs.zero_copy != zero_copy {
        return Err(control_msgs.undo(&entry.socket, os(libc::EINVAL)));
    }
    let options = with_flags(std::mem::take(&mut control_msgs.options));
    match entry.socket.send_msg(pieces, &options) {
        Ok(sent) => Ok(length(sent.len)),
        Err(err) => Err(control_msgs.undo(&entry.socket, err)),
    }
}

unsafe fn send_msg(entry: &SocketEntry, msg: *const msghdr, flags: c_int) -> io::Result<ssize_t> {
    // SAFETY: as the caller promises.
    let msg = unsafe { value(msg) }?;
    // SAFETY: as the caller promises.
    let pieces = unsafe { gather(msg.msg_iov, msg.msg_iovlen) }?;
    // SAFETY: as the caller promises.
    let to = unsafe { raw(msg.msg_name.cast(), msg.msg_namelen) }?;
    // SAFETY: as the caller promises.
    let control = unsafe { bytes(msg.msg_control, msg.msg_controllen) }?;
    // SAFETY: as the caller promises.
    unsafe { send_one(entry, &pieces, to, control, flags) }
}

unsafe fn send_to(
    entry: &SocketEntry,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> io::Result<ssize_t> {
    // SAFETY: as the caller promises.
    let bytes = unsafe { bytes(buf, len) }?;
    let to = if to.is_null() {
        &[]
    } else {
        // SAFETY: as the caller promises.
        unsafe { raw(to, to_len) }?
    };
    // SAFETY: no memory is named in control messages.
    unsafe { send_one(entry, &[IoSlice::new(bytes)], to, &[], flags) }
}

unsafe fn send_plain(
    entry: &SocketEntry,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
) -> io::Result<ssize_t> {
    // SAFETY: as the caller promises.
    unsafe { send_to(entry, buf, len, flags, std::ptr::null(), 0) }
}

unsafe fn write_to(entry: &SocketEntry, buf: *const c_void, len: size_t) -> io::Result<ssize_t> {
    // SAFETY: as the caller promises.
    unsafe { send_plain(entry, buf, len, 0) }
}

unsafe fn write_all(
    entry: &SocketEntry,
    pieces: *const iovec,
    count: c_int,
) -> io::Result<ssize_t> {
    let count = usize::try_from(count).map_err(|_| os(libc::EINVAL))?;
    // SAFETY: as the caller promises.
    let pieces = unsafe { gather(pieces, count) }?;
    // SAFETY: no memory is named in control messages.
    unsafe { send_one(entry, &pieces, &[], &[], 0) }
}

/// Result of a receive call.
#[derive(Debug, Default)]
struct ReceiveOutcome {
    /// The return value.
    len: usize,
    from: Option<Encoded>,
    flags: c_int,
}

impl ReceiveOutcome {
    fn of_message(copied: usize, len: usize, from: std::net::SocketAddr, flags: c_int) -> Self {
        let cut = copied < len;
        Self {
            len: if flags & libc::MSG_TRUNC != 0 {
                len
            } else {
                copied
            },
            from: Some(interpose::encode(from)),
            flags: if cut { libc::MSG_TRUNC } else { 0 },
        }
    }
}

/// Receives the next message or event.
fn receive_one(
    entry: &SocketEntry,
    pieces: &mut [io::IoSliceMut<'_>],
    writer: &mut ControlWriter<'_>,
    flags: c_int,
) -> io::Result<ReceiveOutcome> {
    if flags & libc::MSG_OOB != 0 {
        return Ok(ReceiveOutcome::default());
    }
    let dont_wait = flags & libc::MSG_DONTWAIT != 0;
    if flags & libc::MSG_PEEK != 0 {
        if dont_wait && !entry.socket.readiness(Interest::Read)?.readable {
            return Err(os(libc::EAGAIN));
        }
        let peeked = entry.socket.peek_msg(pieces)?;
        return Ok(peeked.map_or_else(ReceiveOutcome::default, |meta| {
            ReceiveOutcome::of_message(meta.len, meta.full_len, meta.source, flags)
        }));
    }
    let received = if dont_wait {
        entry.socket.try_recv_event()?
    } else {
        entry.socket.recv_event()?
    };
    match received {
        Event::Operation(ended) => {
            let status = RdmaStatus {
                token: ended.token,
                status: ended.status,
            };
            writer.add(Kind::RdmaStatus, &status.encode());
            Ok(ReceiveOutcome::default())
        }
        Event::Congestion(ports) => {
            writer.add(Kind::CongestionUpdate, &ports.to_ne_bytes());
            Ok(ReceiveOutcome::default())
        }
        Event::ZeroCopyDone(name) => {
            let (free, _) = ZcopyCompletion::split(std::slice::from_ref(&name));
            writer.add(Kind::ZcopyCompletion, &free.encode());
            Ok(ReceiveOutcome::default())
        }
        Event::Message(message) => {
            if let Some(cookie) = message.cookie() {
                writer.add(Kind::RdmaDestination, &cookie.to_u64().to_ne_bytes());
            }
            let settings = *entry.settings();
            if settings.timestamp {
                writer.add_timestamp(message.timestamp());
            }
            if let Some(points) = settings.latency {
                let times = points.encode(message.latency().as_nanos());
                writer.add(Kind::RxPathLatency, &times);
            }
            let copied = message.copy_to(pieces);
            Ok(ReceiveOutcome::of_message(
                copied,
                message.len(),
                message.from(),
                flags,
            ))
        }
        _ => Ok(ReceiveOutcome::default()),
    }
}

fn length(len: usize) -> ssize_t {
    ssize_t::try_from(len).unwrap_or(ssize_t::MAX)
}

unsafe fn receive_msg(entry: &SocketEntry, msg: *mut msghdr, flags: c_int) -> io::Result<ssize_t> {
    check_place(msg)?;
    // SAFETY: accessible, and not used otherwise, as the caller promises.
    let msg = unsafe { msg.as_mut() }.ok_or_else(|| os(libc::EFAULT))?;
    if !msg.msg_name.is_null() {
        // SAFETY: as the caller promises.
        unsafe { check_room(msg.msg_name, &raw const msg.msg_namelen) }?;
    }
    // SAFETY: as the caller promises.
    let mut pieces = unsafe { scatter(msg.msg_iov, msg.msg_iovlen) }?;
    // SAFETY: as the caller promises.
    let control = unsafe { bytes_mut(msg.msg_control, msg.msg_controllen) }?;
    let mut writer = ControlWriter::new(control);
    let outcome = receive_one(entry, &mut pieces, &mut writer, flags)?;
    msg.msg_controllen = writer.len();
    msg.msg_flags = outcome.flags
        | if writer.truncated {
            libc::MSG_CTRUNC
        } else {
            0
        };
    match outcome.from {
        Some(from) if !msg.msg_name.is_null() => {
            // SAFETY: as the caller promises.
            unsafe { write_out(&from, msg.msg_name, &raw mut msg.msg_namelen) }?;
        }
        _ => msg.msg_namelen = 0,
    }
    Ok(length(outcome.len))
}

unsafe fn receive_from(
    entry: &SocketEntry,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> io::Result<ssize_t> {
    // SAFETY: as the caller promises.
    let buffer = unsafe { bytes_mut(buf, len) }?;
    if !from.is_null() {
        // SAFETY: as the caller promises.
        unsafe { check_room(from.cast(), from_len) }?;
    }
    let mut writer = ControlWriter::new(&mut []);
    let outcome = receive_one(
        entry,
        &mut [io::IoSliceMut::new(buffer)],
        &mut writer,
        flags,
    )?;
    if !from.is_null() {
        let name = outcome.from.unwrap_or_default();
        // SAFETY: as the caller promises.
        unsafe { write_out(&name, from.cast(), from_len) }?;
    }
    Ok(length(outcome.len))
}

unsafe fn receive(
    entry: &SocketEntry,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
) -> io::Result<ssize_t> {
    let no_addr = std::ptr::null_mut();
    // SAFETY: as the caller promises.
    unsafe { receive_from(entry, buf, len, flags, no_addr, std::ptr::null_mut()) }
}

unsafe fn read_from(entry: &SocketEntry, buf: *mut c_void, len: size_t) -> io::Result<ssize_t> {
    // SAFETY: as the caller promises.
    unsafe { receive(entry, buf, len, 0) }
}

unsafe fn read_all(entry: &SocketEntry, pieces: *const iovec, count: c_int) -> io::Result<ssize_t> {
    let count = usize::try_from(count).map_err(|_| os(libc::EINVAL))?;
    // SAFETY: as the caller promises.
    let mut pieces = unsafe { scatter(pieces, count) }?;
    let outcome = receive_one(entry, &mut pieces, &mut ControlWriter::new(&mut []), 0)?;
    Ok(length(outcome.len))
}

/// As [`find`]: flags make no difference.
fn find_for(fd: c_int, _flags: c_int) -> Option<std::sync::Arc<SocketEntry>> {
    find(fd)
}

interpose::messages! {
    may_find, find_for, find_for, with:
    recv => receive;
    recvfrom => receive_from;
    recvmsg => receive_msg;
    read => read_from;
    readv => read_all;
    send => send_plain;
    write => write_to;
    writev => write_all;
}

interpose! {
    true, may_find, find, with:
    fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t => send_msg;
    fn sendto(
        fd: c_int, buf: *const c_void, len: size_t, flags: c_int,
        to: *const sockaddr, to_len: socklen_t,
    ) -> ssize_t => send_to;
}
