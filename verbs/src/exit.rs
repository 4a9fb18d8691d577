//! The end of the process.

use std::io;

/// `atexit`—Calls a function when the process exits: by the return from `main`, or by [`std::process::exit`].
///
/// Libraries deliver buffered data there. The functions run in the thread that exits, the last registered first, while
/// other threads continue. A forked child inherits the registration.
///
/// # Errors
/// `ENOMEM`: the C library has no memory for another function.
///
/// # Examples
/// ```
/// extern "C" fn exiting() {
///     println!("the process exits");
/// }
/// verbs::exit::at_exit(exiting)?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// Manual page: `atexit(3)`.
pub fn at_exit(call: extern "C" fn()) -> io::Result<()> {
    // SAFETY: the function takes nothing, and exists until its library is unloaded, before which the C library calls it.
    match unsafe { libc::atexit(call) } {
        0 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
    }
}
