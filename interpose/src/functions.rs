//! Interposed libc functions with a file descriptor as first argument.

/// Exports libc functions. For a descriptor found by `$find`, the function calls `$through` with the entry
/// and a closure that calls `$with`, whose first argument is chosen by `$through`. For other descriptors, the
/// next definition of the function is called. `$find` is called only for descriptors that `$may_find` returns true for. With
/// `$is_point`, the functions are cancellation points.
#[macro_export]
macro_rules! interpose {
    ($is_point:literal, $may_find:path, $find:path, $through:path: $(
        fn $name:ident($fd:ident: c_int $(, $arg:ident: $type:ty)* $(,)?) -> $ret:ty => $with:path;
    )*) => {
        $($crate::interpose! {
            @found $is_point, $may_find, { $find($fd) }, $through, {}:
            fn $name($fd: c_int $(, $arg: $type)*) -> $ret => $with, ($($arg),*)
        })*
    };
    (@found $is_point:literal, $may_find:path, $found:block, $through:path, $check:block:
        fn $name:ident($fd:ident: c_int $(, $arg:ident: $type:ty)* $(,)?) -> $ret:ty
        => $with:path, ($($passed:ident),*)
    ) => {
        /// # Safety
        /// As for the libc function.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($fd: $crate::libc::c_int $(, $arg: $type)*) -> $ret {
            if $may_find($fd) {
                let done = $crate::cross($is_point, true, || {
                    let object = $found?;
                    $check
                    Some($through(&object, |object_ref| {
                        // SAFETY: guaranteed by the caller.
                        unsafe { $with(object_ref $(, $passed)*) }
                    }))
                });
                if let Some(done) = done {
                    return done;
                }
            }
            let real = $crate::real!(
                $name: unsafe extern "C-unwind" fn($crate::libc::c_int $(, $type)*) -> $ret
            );
            // SAFETY: guaranteed by the caller.
            unsafe { real($fd $(, $arg)*) }
        }
    };
}

/// Exports the functions to receive and send, except `sendto` and `sendmsg`. `$receiver` and `$sender` find the entry of a
/// descriptor by the flags of the call; `$may_find` and `$through` are as for [`interpose!`].
#[macro_export]
macro_rules! messages {
    ($may_find:path, $receiver:path, $sender:path, $through:path:
        recv => $recv:path;
        recvfrom => $recvfrom:path;
        recvmsg => $recvmsg:path;
        read => $read:path;
        readv => $readv:path;
        send => $send:path;
        write => $write:path;
        writev => $writev:path;
    ) => {
        $crate::messages! { @each $may_find, $through:
            { $receiver(fd, flags) }, {}:
            recv(fd; buf: *mut $crate::libc::c_void, len: usize, flags: $crate::libc::c_int)
                => $recv, (buf, len, flags);
            { $receiver(fd, flags) }, {}:
            recvfrom(fd;
                buf: *mut $crate::libc::c_void, len: usize, flags: $crate::libc::c_int,
                from: *mut $crate::libc::sockaddr, from_len: *mut $crate::libc::socklen_t)
                => $recvfrom, (buf, len, flags, from, from_len);
            { $receiver(fd, flags) }, {}:
            recvmsg(fd; msg: *mut $crate::libc::msghdr, flags: $crate::libc::c_int)
                => $recvmsg, (msg, flags);
            { $receiver(fd, 0) }, {}:
            read(fd; buf: *mut $crate::libc::c_void, len: usize) => $read, (buf, len);
            { $receiver(fd, 0) }, {}:
            readv(fd; pieces: *const $crate::libc::iovec, count: $crate::libc::c_int)
                => $readv, (pieces, count);
            { $sender(fd, flags) }, {}:
            send(fd; buf: *const $crate::libc::c_void, len: usize, flags: $crate::libc::c_int)
                => $send, (buf, len, flags);
            { $sender(fd, 0) }, {}:
            write(fd; buf: *const $crate::libc::c_void, len: usize) => $write, (buf, len);
            { $sender(fd, 0) }, {}:
            writev(fd; pieces: *const $crate::libc::iovec, count: $crate::libc::c_int)
                => $writev, (pieces, count);
            { $receiver(fd, 0) }, { $crate::fits(len, capacity) }:
            __read_chk(fd; buf: *mut $crate::libc::c_void, len: usize, capacity: usize)
                => $read, (buf, len);
            { $receiver(fd, flags) }, { $crate::fits(len, capacity) }:
            __recv_chk(fd;
                buf: *mut $crate::libc::c_void, len: usize, capacity: usize,
                flags: $crate::libc::c_int)
                => $recv, (buf, len, flags);
            { $receiver(fd, flags) }, { $crate::fits(len, capacity) }:
            __recvfrom_chk(fd;
                buf: *mut $crate::libc::c_void, len: usize, capacity: usize,
                flags: $crate::libc::c_int,
                from: *mut $crate::libc::sockaddr, from_len: *mut $crate::libc::socklen_t)
                => $recvfrom, (buf, len, flags, from, from_len);
        }
    };
    (@each $may_find:path, $through:path: $(
        $found:block, $check:block:
        $name:ident($fd:ident; $($arg:ident: $type:ty),* $(,)?) => $with:path, $passed:tt;
    )*) => {
        $($crate::interpose! {
            @found true, $may_find, $found, $through, $check:
            fn $name($fd: c_int, $($arg: $type),*) -> isize => $with, $passed
        })*
    };
}
