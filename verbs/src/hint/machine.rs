//! The state of the machine and of the process that hints depend on.

use std::{fs, path::Path};

/// The machine and the process, as far as hints name them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machine {
    /// Bytes of memory that the process may lock; `None` where there is no limit.
    pub(super) memlock: Option<u64>,
    /// The RDMA devices that the kernel has.
    pub(super) devices: Vec<String>,
    /// Whether the kernel offers them to programs.
    pub(super) uverbs: bool,
    /// How a thread gets a device of a library that needs no kernel.
    pub(super) advice: Option<&'static str>,
}

impl Machine {
    /// The machine as it is now.
    pub(crate) fn now() -> Self {
        // An interpreted program can ask for neither.
        if cfg!(miri) {
            return Self::default();
        }
        let mut machine = Self::below(Path::new("/sys/class"));
        machine.memlock = memlock();
        machine.advice = ibverbs_sys::NO_DEVICE_ADVICE.get().copied();
        machine
    }

    /// The devices that are below a directory with the layout of `/sys/class`.
    pub(super) fn below(class: &Path) -> Self {
        let names = |name: &str| {
            let entries = fs::read_dir(class.join(name)).into_iter().flatten();
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            names.collect::<Vec<_>>()
        };
        let mut devices = names("infiniband");
        devices.sort();
        Self {
            memlock: None,
            devices,
            uverbs: names("infiniband_verbs")
                .iter()
                .any(|name| name.starts_with("uverbs")),
            advice: None,
        }
    }
}

/// The limit of locked memory, in bytes.
fn memlock() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the limit is a valid place for the call to write to.
    let ret = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (ret == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}
