//! Interposed libc functions with a file descriptor as first argument.

/// Exports libc functions. For a descriptor found by `$find`, the function calls `$through` with the entry
/// and a closure that calls `$with`, whose first argument is chosen by `$through`. For other descriptors, the
/// next definition of the function is called.
#[macro_export]
macro_rules! interpose {
    ($find:path, $through:path: $(
        fn $name:ident($fd:ident: c_int $(, $arg:ident: $type:ty)* $(,)?) -> $ret:ty => $with:path;
    )*) => {
        $($crate::interpose! {
            @checked $find, $through, {}:
            fn $name($fd: c_int $(, $arg: $type)*) -> $ret => $with, ($($arg),*)
        })*
    };
    (@checked $find:path, $through:path, $check:block:
        fn $name:ident($fd:ident: c_int $(, $arg:ident: $type:ty)* $(,)?) -> $ret:ty
        => $with:path, ($($passed:ident),*)
    ) => {
        /// # Safety
        /// As for the libc function.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($fd: $crate::libc::c_int $(, $arg: $type)*) -> $ret {
            if let Some(held) = $find($fd) {
                $check
                return $through(&held, |own| {
                    // SAFETY: guaranteed by the caller.
                    unsafe { $with(own $(, $passed)*) }
                });
            }
            let real = $crate::real!(
                $name: unsafe extern "C" fn($crate::libc::c_int $(, $type)*) -> $ret
            );
            // SAFETY: guaranteed by the caller.
            unsafe { real($fd $(, $arg)*) }
        }
    };
}

/// Exports the functions to receive and send, except `sendto` and `sendmsg`. Paths are as for
/// [`interpose!`].
#[macro_export]
macro_rules! messages {
    ($find:path, $through:path:
        recv => $recv:path;
        recvfrom => $recvfrom:path;
        recvmsg => $recvmsg:path;
        read => $read:path;
        readv => $readv:path;
        send => $send:path;
        write => $write:path;
        writev => $writev:path;
    ) => {
        $crate::interpose! {
            $find, $through:
            fn recv(
                fd: c_int, buf: *mut $crate::libc::c_void, len: usize, flags: $crate::libc::c_int,
            ) -> isize => $recv;
            fn recvfrom(
                fd: c_int, buf: *mut $crate::libc::c_void, len: usize, flags: $crate::libc::c_int,
                from: *mut $crate::libc::sockaddr, from_len: *mut $crate::libc::socklen_t,
            ) -> isize => $recvfrom;
            fn recvmsg(
                fd: c_int, msg: *mut $crate::libc::msghdr, flags: $crate::libc::c_int,
            ) -> isize => $recvmsg;
            fn read(fd: c_int, buf: *mut $crate::libc::c_void, len: usize) -> isize => $read;
            fn readv(
                fd: c_int, pieces: *const $crate::libc::iovec, count: $crate::libc::c_int,
            ) -> isize => $readv;
            fn send(
                fd: c_int, buf: *const $crate::libc::c_void, len: usize, flags: $crate::libc::c_int,
            ) -> isize => $send;
            fn write(fd: c_int, buf: *const $crate::libc::c_void, len: usize) -> isize => $write;
            fn writev(
                fd: c_int, pieces: *const $crate::libc::iovec, count: $crate::libc::c_int,
            ) -> isize => $writev;
        }
        $crate::interpose! {
            @checked $find, $through, { $crate::fits(len, room) }:
            fn __read_chk(
                fd: c_int, buf: *mut $crate::libc::c_void, len: usize, room: usize,
            ) -> isize => $read, (buf, len)
        }
        $crate::interpose! {
            @checked $find, $through, { $crate::fits(len, room) }:
            fn __recv_chk(
                fd: c_int, buf: *mut $crate::libc::c_void, len: usize, room: usize,
                flags: $crate::libc::c_int,
            ) -> isize => $recv, (buf, len, flags)
        }
        $crate::interpose! {
            @checked $find, $through, { $crate::fits(len, room) }:
            fn __recvfrom_chk(
                fd: c_int, buf: *mut $crate::libc::c_void, len: usize, room: usize,
                flags: $crate::libc::c_int,
                from: *mut $crate::libc::sockaddr, from_len: *mut $crate::libc::socklen_t,
            ) -> isize => $recvfrom, (buf, len, flags, from, from_len)
        }
    };
}
