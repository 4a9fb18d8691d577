//! The limit of open descriptors of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Restores the limit on drop.
pub(crate) struct Limited(Rlimit);

impl Limited {
    pub(crate) fn to(descriptors: u64) -> Self {
        let before = getrlimit(Resource::Nofile);
        let lowered = Rlimit {
            current: Some(descriptors),
            maximum: before.maximum,
        };
        setrlimit(Resource::Nofile, lowered).unwrap();
        Self(before)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.0).unwrap();
    }
}
