//! Exit of the process: the peers get the data of sockets not closed.

use std::{env, sync::OnceLock, time::Duration};

/// Maximum time to wait for the peers, unless set.
const DEFAULT: Duration = Duration::from_secs(10);

/// Read with the first socket: the environment cannot be read in a signal handler.
static LIMIT: OnceLock<Duration> = OnceLock::new();

/// Reads the configuration, on the first call.
pub(crate) fn prepare() {
    LIMIT.get_or_init(|| limit(env::var("RS_EXIT_LINGER").ok().as_deref()));
}

fn limit(seconds: Option<&str>) -> Duration {
    let seconds = seconds.and_then(|seconds| seconds.trim().parse().ok());
    seconds.map_or(DEFAULT, Duration::from_secs)
}

/// Disconnects all sockets because the process exits; see [`rsocket::disconnect_all`]. Returns whether the peers
/// have acknowledged all data.
pub fn disconnect_all() -> bool {
    LIMIT
        .get()
        .is_none_or(|limit| limit.is_zero() || rsocket::disconnect_all(*limit))
}

extern "C" fn exiting() {
    disconnect_all();
}

/// Run by `exit` and by the return from `main`, before the destructors of the libraries below. The priority, as of a
/// C destructor, makes the call run after those of a library that contains this one.
#[used]
#[unsafe(link_section = ".fini_array.00101")]
static EXITING: extern "C" fn() = exiting;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_linger_is_a_number_of_seconds() {
        for text in [None, Some(""), Some("-1"), Some("long"), Some("1.5")] {
            assert_eq!(limit(text), DEFAULT, "{text:?}");
        }
        assert_eq!(limit(Some(" 3\n")), Duration::from_secs(3));
        assert_eq!(limit(Some("0")), Duration::ZERO);
    }
}
