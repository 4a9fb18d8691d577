//! Sending and receiving.

use std::io::{self, IoSlice, IoSliceMut};

use interpose::{load, store};
use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use rsocket::{RecvFlags, RecvMeta, SendOptions, Socket};

use super::memory::{
    address, bytes, bytes_mut, gather, scatter, total_len, vector_count, write_address,
};
use crate::{
    errno::{os, run},
    table,
};

/// Converts the supported flags. Flags that select another queue are refused; others have no effect.
///
/// # Errors
/// - `EAGAIN`, also if the socket blocks: `MSG_ERRQUEUE`, since no errors are queued.
/// - `EINVAL`: `MSG_OOB`, since there are no urgent data.
fn recv_flags(flags: c_int) -> io::Result<RecvFlags> {
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Err(os(libc::EAGAIN));
    }
    if flags & libc::MSG_OOB != 0 {
        return Err(os(libc::EINVAL));
    }
    let mut supported = RecvFlags::empty();
    supported.set(RecvFlags::DONT_WAIT, flags & libc::MSG_DONTWAIT != 0);
    supported.set(RecvFlags::PEEK, flags & libc::MSG_PEEK != 0);
    supported.set(RecvFlags::WAIT_ALL, flags & libc::MSG_WAITALL != 0);
    Ok(supported)
}

/// Converts the supported flags; others have no effect.
fn send_options(flags: c_int) -> SendOptions {
    let options = SendOptions::new();
    if flags & libc::MSG_DONTWAIT != 0 {
        options.dont_wait()
    } else {
        options
    }
}

fn count(len: usize) -> io::Result<ssize_t> {
    ssize_t::try_from(len).map_err(|_| os(libc::EINVAL))
}

fn recv_msg(fd: c_int, buffers: &mut [IoSliceMut<'_>], flags: c_int) -> io::Result<RecvMeta> {
    let opened = table::socket(fd)?;
    if flags & libc::MSG_OOB != 0 && opened.socket.is_listening() {
        return Err(os(libc::ENOTCONN));
    }
    opened.socket.recv_msg(buffers, recv_flags(flags)?)
}

/// Returns the result of a receive: with `MSG_TRUNC`, the full length of the datagram.
fn received_len(received: &RecvMeta, flags: c_int) -> io::Result<ssize_t> {
    count(if flags & libc::MSG_TRUNC != 0 {
        received.full_len
    } else {
        received.len
    })
}

/// Receives up to `len` bytes of a stream and discards them, as TCP does with `MSG_TRUNC`: the program's buffer may be
/// null, or shorter. At most [`DISCARDED`] bytes in a call. Returns `None` for other receives.
fn discard(fd: c_int, len: size_t, flags: c_int) -> io::Result<Option<RecvMeta>> {
    /// Maximum number of bytes discarded by one call, which bounds its memory.
    const DISCARDED: usize = 1 << 16;
    if flags & libc::MSG_TRUNC == 0 {
        return Ok(None);
    }
    let opened = table::socket(fd)?;
    if opened.socket.is_datagram() {
        return Ok(None);
    }
    let mut discarded = vec![0; len.min(DISCARDED)];
    let buffers = &mut [IoSliceMut::new(&mut discarded)];
    opened
        .socket
        .recv_msg(buffers, recv_flags(flags)?)
        .map(Some)
}

fn recv(fd: c_int, buffers: &mut [IoSliceMut<'_>], flags: c_int) -> io::Result<ssize_t> {
    received_len(&recv_msg(fd, buffers, flags)?, flags)
}

fn send(fd: c_int, pieces: &[IoSlice<'_>], flags: c_int) -> io::Result<ssize_t> {
    let opened = table::socket(fd)?;
    let sent = opened.socket.send_msg(pieces, &send_options(flags));
    count(sent.map_err(|err| unconnected(&opened.socket, err))?)
}

/// Converts the error of a send on a stream that is not connected to that of TCP: `EPIPE`.
fn unconnected(socket: &Socket, err: io::Error) -> io::Error {
    match err.kind() {
        io::ErrorKind::NotConnected if !socket.is_datagram() => os(libc::EPIPE),
        _ => err,
    }
}

/// `rrecv(fd, buf, len, flags)`—Receives bytes; 0 at the end. `MSG_TRUNC` discards the bytes of a stream without access
/// to `buf`, as for TCP.
///
/// # Safety
/// `len` bytes of `buf` are writable, without access by other code during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rrecv(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    run(|| {
        if let Some(discarded) = discard(fd, len, flags)? {
            return count(discarded.len);
        }
        // SAFETY: as the caller promises.
        let buffer = unsafe { bytes_mut(buf, len) }?;
        recv(fd, &mut [IoSliceMut::new(buffer)], flags)
    })
}

/// `rrecvfrom(fd, buf, len, flags, addr, addrlen)`—Receives bytes with their source address.
///
/// # Safety
/// As for [`rrecv`]; and `from` is null, or `from_len` is valid and holds the number of writable bytes of
/// `from`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rrecvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    run(|| {
        let received = match discard(fd, len, flags)? {
            Some(discarded) => discarded,
            None => {
                // SAFETY: as the caller promises.
                let buffer = unsafe { bytes_mut(buf, len) }?;
                recv_msg(fd, &mut [IoSliceMut::new(buffer)], flags)?
            }
        };
        if let Some(peer) = received.source {
            // SAFETY: as the caller promises.
            unsafe { write_address(peer, from, from_len) }?;
        }
        received_len(&received, flags)
    })
}

/// `rrecvmsg(fd, msg, flags)`—Receives bytes into several buffers.
///
/// # Safety
/// `msg` is valid with everything it points to: buffers as for [`rrecv`], without overlap, and a name with
/// `msg_namelen` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rrecvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    run(|| {
        let address = msg;
        // SAFETY: valid or null, as the caller promises.
        let mut msg = unsafe { load(address) }.ok_or_else(|| os(libc::EFAULT))?;
        // SAFETY: as the caller promises.
        let len = unsafe { total_len(msg.msg_iov, msg.msg_iovlen) }?;
        let received = match discard(fd, len, flags)? {
            Some(discarded) => discarded,
            None => {
                // SAFETY: as the caller promises.
                let mut buffers = unsafe { scatter(msg.msg_iov, msg.msg_iovlen) }?;
                recv_msg(fd, &mut buffers, flags)?
            }
        };
        msg.msg_flags = if received.full_len > received.len {
            libc::MSG_TRUNC
        } else {
            0
        };
        if let Some(peer) = received.source {
            let len = &raw mut msg.msg_namelen;
            // SAFETY: as the caller promises; the length is in the message.
            unsafe { write_address(peer, msg.msg_name.cast(), len) }?;
        }
        // There is no control data.
        msg.msg_controllen = 0;
        // SAFETY: valid, as the caller promises.
        unsafe { store(address, msg) };
        received_len(&received, flags)
    })
}

/// `rsend(fd, buf, len, flags)`—Sends bytes.
///
/// # Safety
/// `len` bytes of `buf` are readable, without writes by other code during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rsend(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    run(|| {
        // SAFETY: as the caller promises.
        let piece = unsafe { bytes(buf, len) }?;
        send(fd, &[IoSlice::new(piece)], flags)
    })
}

/// `rsendto(fd, buf, len, flags, addr, addrlen)`—Sends bytes; a datagram to the address, if any. On a stream,
/// an address fails with `EISCONN`.
///
/// # Safety
/// As for [`rsend`]; and `to` is null, or `to_len` bytes of `to` are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rsendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    if to.is_null() && to_len == 0 {
        // SAFETY: as the caller promises.
        return unsafe { rsend(fd, buf, len, flags) };
    }
    run(|| {
        let opened = table::socket(fd)?;
        if !opened.socket.is_datagram() {
            let peer = opened.socket.peer_addr();
            peer.map_err(|err| unconnected(&opened.socket, err))?;
            return Err(os(libc::EISCONN));
        }
        // SAFETY: as the caller promises.
        let to = unsafe { address(to, to_len) }?;
        // SAFETY: as the caller promises.
        let piece = unsafe { bytes(buf, len) }?;
        let options = send_options(flags).to(to);
        count(opened.socket.send_msg(&[IoSlice::new(piece)], &options)?)
    })
}

/// `rsendmsg(fd, msg, flags)`—Sends bytes from several buffers: as one datagram to the address of the
/// message, if any. On a stream, the address and control data have no effect, as with TCP.
///
/// # Errors
/// - `ENOTSUP`: control data for a datagram, which a program would rely on.
///
/// # Safety
/// `msg` is valid, with the buffers and the address as for [`rsendto`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rsendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    run(|| {
        // SAFETY: valid or null, as the caller promises.
        let msg = unsafe { load(msg) }.ok_or_else(|| os(libc::EFAULT))?;
        // SAFETY: as the caller promises.
        let pieces = unsafe { gather(msg.msg_iov, msg.msg_iovlen) }?;
        let opened = table::socket(fd)?;
        if msg.msg_controllen != 0 && opened.socket.is_datagram() {
            return Err(os(libc::ENOTSUP));
        }
        if msg.msg_name.is_null() || !opened.socket.is_datagram() {
            return send(fd, &pieces, flags);
        }
        // SAFETY: as the caller promises.
        let to = unsafe { address(msg.msg_name.cast(), msg.msg_namelen) }?;
        let options = send_options(flags).to(to);
        count(opened.socket.send_msg(&pieces, &options)?)
    })
}

/// `rread(fd, buf, len)`—Receives bytes; 0 at the end, and at once for a length of 0.
///
/// # Safety
/// As for [`rrecv`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rread(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    if len == 0 {
        return run(|| table::socket(fd).map(|_| 0));
    }
    // SAFETY: as the caller promises.
    unsafe { rrecv(fd, buf, len, 0) }
}

/// `rwrite(fd, buf, len)`—Sends bytes.
///
/// # Safety
/// As for [`rsend`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rwrite(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: as the caller promises.
    unsafe { rsend(fd, buf, len, 0) }
}

/// `rreadv(fd, iov, iovcnt)`—Receives bytes into several buffers; 0 at the end, and at once for a length of 0.
///
/// # Safety
/// `count` vectors are readable, and their buffers are as for [`rrecv`], and do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rreadv(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
    run(|| {
        // SAFETY: as the caller promises.
        let mut buffers = unsafe { scatter(vectors, vector_count(count)?) }?;
        if buffers.iter().all(|buffer| buffer.is_empty()) {
            return table::socket(fd).map(|_| 0);
        }
        recv(fd, &mut buffers, 0)
    })
}

/// `rwritev(fd, iov, iovcnt)`—Sends bytes from several buffers.
///
/// # Safety
/// `count` vectors are readable, and their buffers are as for [`rsend`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rwritev(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
    run(|| {
        // SAFETY: as the caller promises.
        let pieces = unsafe { gather(vectors, vector_count(count)?) }?;
        send(fd, &pieces, 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receive_from_another_queue_takes_no_data() {
        let flags = [0, libc::MSG_PEEK, libc::MSG_WAITALL, libc::MSG_DONTWAIT];
        for (flag, error) in [
            (libc::MSG_ERRQUEUE, libc::EAGAIN),
            (libc::MSG_OOB, libc::EINVAL),
        ] {
            for other in flags {
                let refused = recv_flags(flag | other).unwrap_err();
                assert_eq!(refused.raw_os_error(), Some(error));
            }
        }
        let ignored = libc::MSG_TRUNC | libc::MSG_NOSIGNAL | libc::MSG_CMSG_CLOEXEC;
        let supported = recv_flags(libc::MSG_PEEK | ignored).unwrap();
        assert_eq!(supported, RecvFlags::PEEK);
    }
}
