//! Asynchronous I/O of the C library, which runs in threads of its own through internal system calls: refused with
//! `EOPNOTSUPP` for rsockets.

use interpose::{load, real, set_errno};
use libc::{aiocb, c_int, sigevent};

use crate::fork;

/// Refuses a control block with an rsocket. Returns whether it has.
///
/// # Safety
/// `block` is null or valid.
unsafe fn refuse(block: *const aiocb) -> bool {
    // SAFETY: null or valid, as the caller promises.
    let block = unsafe { load(block) };
    let refused = block.is_some_and(|block| fork::is_own(block.aio_fildes));
    if refused {
        set_errno(libc::EOPNOTSUPP);
    }
    refused
}

macro_rules! refused {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {$(
        /// # Safety
        /// As for the function of the same name.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $type,)* block: *mut aiocb) -> c_int {
            // SAFETY: as the caller promises.
            if unsafe { refuse(block) } {
                return -1;
            }
            let real = real!($name: unsafe extern "C-unwind" fn($($type,)* *mut aiocb) -> c_int);
            // SAFETY: as the caller promises.
            unsafe { real($($arg,)* block) }
        }
    )*};
}

refused! {
    aio_read();
    aio_read64();
    aio_write();
    aio_write64();
    aio_fsync(operation: c_int);
    aio_fsync64(operation: c_int);
}

macro_rules! refused_lists {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As for the function of the same name.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            mode: c_int,
            blocks: *const *mut aiocb,
            count: c_int,
            event: *mut sigevent,
        ) -> c_int {
            for index in 0..usize::try_from(count).unwrap_or(0) {
                // SAFETY: `count` entries are readable, as the caller promises.
                let block = unsafe { load(blocks.wrapping_add(index)) };
                // SAFETY: as above; entries are null or valid.
                if block.is_some_and(|block| unsafe { refuse(block) }) {
                    return -1;
                }
            }
            let real = real!(
                $name: unsafe extern "C-unwind" fn(c_int, *const *mut aiocb, c_int, *mut sigevent) -> c_int
            );
            // SAFETY: as the caller promises.
            unsafe { real(mode, blocks, count, event) }
        }
    )*};
}

refused_lists! { lio_listio lio_listio64 }
