//! Calls that move data, other than `recv` and `send`.

use std::{
    ffi::CStr,
    fs::File,
    io::{Seek, Write},
    mem::{self, ManuallyDrop},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    ptr,
};

use libc::{c_int, iovec, off_t};

use crate::program::{Fd, Outcome, Rdma, Tcp, connected, exclusive, outcome};

type Vectored = unsafe extern "C" fn(c_int, *const iovec, c_int, off_t, c_int) -> isize;

/// Transfers up to three bytes.
fn vectored(call: Vectored, fd: &Fd, position: off_t, flags: c_int) -> Outcome {
    let mut bytes = *b"abc";
    let (first, rest) = bytes.split_at_mut(1);
    let pieces = [first, rest].map(|piece| iovec {
        iov_base: piece.as_mut_ptr().cast(),
        iov_len: piece.len(),
    });
    // SAFETY: the pieces are readable and writable.
    outcome(unsafe { call(fd.0, pieces.as_ptr(), 2, position, flags) })
}

#[test]
fn vectored_calls_with_position_and_flags_match_tcp() {
    let _exclusive = exclusive();
    let of_kind = |kind| {
        let [client, server] = connected(kind);
        let mut all = Vec::new();
        for flags in [0, 1, 2, 4, 8, 0x10, 0x18, 0x40, 0x1_0000] {
            for position in [-1, 0, 5, -2] {
                all.push(vectored(libc::pwritev2, &client, position, flags));
                if all.last().unwrap().is_ok() {
                    server.wait_readable();
                }
                all.push(vectored(libc::preadv2, &server, position, flags));
                all.push(vectored(libc::pwritev64v2, &client, position, flags));
                if all.last().unwrap().is_ok() {
                    server.wait_readable();
                }
                all.push(vectored(libc::preadv64v2, &server, position, flags));
            }
        }
        // No data.
        all.push(vectored(libc::preadv2, &server, -1, libc::RWF_NOWAIT));
        client.shut_down(libc::SHUT_WR).unwrap();
        server.wait_readable();
        all.push(vectored(libc::preadv2, &server, -1, libc::RWF_NOWAIT));
        all.push(vectored(libc::preadv2, &server, -1, 0));
        all
    };
    assert_eq!(of_kind(Tcp), of_kind(Rdma));
}

/// A file with eight bytes, at position 2.
fn file() -> File {
    // SAFETY: a string and a number; the descriptor is new.
    let fd = unsafe { libc::memfd_create(c"file".as_ptr(), 0) };
    // SAFETY: a new descriptor, checked below.
    let mut file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.write_all(b"12345678").unwrap();
    file.seek(std::io::SeekFrom::Start(2)).unwrap();
    file
}

/// Results of `sendfile` from a descriptor with a count: without a position, and with one.
fn send_file(to: c_int, from: c_int, count: usize) -> [(Outcome, off_t); 2] {
    [None, Some(1)].map(|position| {
        let mut at: off_t = position.unwrap_or(-1);
        let offset = match position {
            Some(_) => &raw mut at,
            None => ptr::null_mut(),
        };
        // SAFETY: null or valid.
        let sent = outcome(unsafe { libc::sendfile(to, from, offset, count) });
        (sent, at)
    })
}

#[test]
fn sendfile_from_files_sockets_and_pipes_matches_tcp() {
    let _exclusive = exclusive();
    let of_kind = |kind| {
        let [client, server] = connected(kind);
        let other = connected(kind);
        other[0].send(b"abc").unwrap();
        other[1].wait_readable();
        let mut pipe = [0; 2];
        // SAFETY: room for two.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let [read, write] = pipe.map(Fd);
        // SAFETY: one byte.
        assert_eq!(unsafe { libc::write(write.0, c"x".as_ptr().cast(), 1) }, 1);
        let (file, target) = (file(), file());
        let froms = [
            other[1].0,
            other[0].0,
            server.0,
            read.0,
            -1,
            file.as_raw_fd(),
        ];
        let mut all = Vec::new();
        for from in froms {
            for count in [3, 0, 100] {
                all.push(send_file(client.0, from, count));
                all.push(send_file(target.as_raw_fd(), from, count));
            }
        }
        let position = (&file).stream_position().unwrap();
        // The data sent, and the data left.
        server.wait_readable();
        (
            all,
            position,
            server.recv(99).unwrap(),
            other[1].recv(9).unwrap(),
        )
    };
    assert_eq!(of_kind(Tcp), of_kind(Rdma));
}

/// Neither a false end of stream nor lost data: programs copy the data themselves after `EINVAL`.
#[test]
fn splice_with_rsocket_is_refused() {
    let _exclusive = exclusive();
    let [client, server] = connected(Rdma);
    client.send(b"abc").unwrap();
    server.wait_readable();
    let mut pipe = [0; 2];
    // SAFETY: room for two.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let [read, write] = pipe.map(Fd);
    let splice = |from: &Fd, to: &Fd| {
        let none = ptr::null_mut();
        // SAFETY: no positions.
        let by_name = unsafe { libc::splice(from.0, none, to.0, none, 3, 0) };
        // SAFETY: as above.
        let by_number = unsafe { libc::syscall(libc::SYS_splice, from.0, none, to.0, none, 3, 0) };
        [outcome(by_name), outcome(by_number)]
    };
    assert_eq!(splice(&server, &write), [Err(libc::EINVAL); 2]);
    assert_eq!(splice(&read, &client), [Err(libc::EINVAL); 2]);
    assert_eq!(server.recv(9).unwrap(), b"abc");
}

#[test]
fn ring_of_io_uring_is_refused() {
    let _exclusive = exclusive();
    // SAFETY: the call reads no memory, as it is refused.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 8, ptr::null_mut::<u8>()) };
    assert_eq!(outcome(ring), Err(libc::ENOSYS));
}

#[test]
fn asynchronous_calls_on_rsocket_are_refused() {
    let _exclusive = exclusive();
    let [client, server] = connected(Rdma);
    client.send(b"abc").unwrap();
    server.wait_readable();
    let mut bytes = [0_u8; 3];
    // SAFETY: a control block is plain data.
    let mut block: libc::aiocb = unsafe { mem::zeroed() };
    block.aio_fildes = server.0;
    block.aio_buf = bytes.as_mut_ptr().cast();
    block.aio_nbytes = bytes.len();
    block.aio_lio_opcode = libc::LIO_READ;
    let at = &raw mut block;
    let list = [ptr::null_mut(), at];
    let (wait, event) = (libc::LIO_WAIT, ptr::null_mut());
    let all = [
        // SAFETY: a valid block.
        unsafe { libc::aio_read(at) },
        // SAFETY: as above.
        unsafe { libc::aio_write(at) },
        // SAFETY: as above.
        unsafe { libc::aio_fsync(libc::O_SYNC, at) },
        // SAFETY: two entries, null or valid.
        unsafe { libc::lio_listio(wait, list.as_ptr(), 2, event) },
    ];
    assert_eq!(all, [-1; 4]);
    let error = std::io::Error::last_os_error().raw_os_error();
    assert_eq!(error, Some(libc::EOPNOTSUPP));
    assert_eq!(server.recv(9).unwrap(), b"abc");
}

unsafe extern "C" {
    fn vdprintf(fd: c_int, format: *const libc::c_char, arguments: *mut libc::c_void) -> c_int;
}

#[test]
fn vdprintf_on_rsocket_writes_the_text() {
    let _exclusive = exclusive();
    let [client, server] = connected(Rdma);
    let mut none = [0_u64; 8];
    // SAFETY: the format takes no arguments.
    let written = unsafe { vdprintf(client.0, c"hello%%".as_ptr(), none.as_mut_ptr().cast()) };
    assert_eq!(written, 6);
    server.wait_readable();
    assert_eq!(server.recv(9).unwrap(), b"hello%");
}

/// The C library would crash.
#[test]
fn freopen_of_stream_on_rsocket_fails_and_closes_it() {
    let _exclusive = exclusive();
    for path in [Some(c"/dev/null"), None] {
        let [client, server] = connected(Rdma);
        let client = ManuallyDrop::new(client);
        let mode = c"w".as_ptr();
        // SAFETY: the stream owns the descriptor from now on.
        let file = unsafe { libc::fdopen(client.0, mode) };
        // SAFETY: an open stream.
        assert!(unsafe { libc::fputs(c"hello".as_ptr(), file) } >= 0);
        let name = path.map_or(ptr::null(), CStr::as_ptr);
        // SAFETY: an open stream, and a string or null.
        assert!(unsafe { libc::freopen(name, mode, file) }.is_null());
        let error = std::io::Error::last_os_error().raw_os_error();
        assert_eq!(error, Some(libc::EOPNOTSUPP));
        server.wait_readable();
        assert_eq!(server.recv(9).unwrap(), b"hello");
        server.wait_readable();
        assert_eq!(server.recv(9).unwrap(), b"");
    }
}
