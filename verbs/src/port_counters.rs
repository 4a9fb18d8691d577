//! Counters of ports, kept by the device and the kernel: bytes, packets, retransmissions, errors.
//!
//! [`Context::port_counters`](crate::Context::port_counters) reads all counters of a port. Their
//! names are the kernel's, and depend on the device: `port_rcv_data` is on most cards,
//! `rcvd_pkts` on Soft-RoCE. `cargo run --bin counters` of the examples prints a table that
//! refreshes.
//!
//! # Counters of a queue pair
//!
//! Some cards also count by queue pair: `rdma statistic qp bind` of iproute2 makes such a counter, by netlink and with
//! `CAP_NET_ADMIN`. This crate has no call for them, since no tested device has any. For Soft-RoCE the kernel's `alloc_and_bind`
//! (`drivers/infiniband/core/counters.c`) refuses, because the driver has no `counter_alloc_stats`, and the command fails with
//! `ENOMEM`. For Soft-iWARP, without counters of ports, `rdma_counter_bind_qpn_alloc` refuses with `EOPNOTSUPP`. The
//! crates `rsocket` and `rds` count in the program itself; see their `stats`.
//!
//! # References
//! The kernel's `Documentation/ABI/stable/sysfs-class-infiniband`

use std::{collections::BTreeMap, fs, io, path::Path};

use crate::{
    context::Context,
    error::{Error, Result},
};

/// Place of the devices of the kernel.
const CLASS: &str = "/sys/class/infiniband";

/// Folders of a port with counters: those of InfiniBand's management, and the device's own.
const FOLDERS: [&str; 2] = ["counters", "hw_counters"];

/// A file among the counters that sets the time in milliseconds for which the kernel caches them.
const LIFESPAN: &str = "lifespan";

/// Bytes for each unit of `port_xmit_data` and `port_rcv_data`, by the InfiniBand specification.
const WORD: u64 = 4;

/// The counters of a port at one time, by name, in the order of their names.
///
/// Counters count from the start of the device's driver. Some stop at their maximum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    counters: BTreeMap<String, u64>,
}

impl PortCounters {
    /// Reads the counters below the folder of a port. A counter that the device refuses to read is
    /// left out.
    fn below(port: &Path) -> io::Result<Self> {
        fs::metadata(port)?;
        let mut counters = BTreeMap::new();
        for folder in FOLDERS {
            // A device has either folder, both, or none.
            for entry in fs::read_dir(port.join(folder)).into_iter().flatten() {
                let entry = entry?;
                let text = fs::read_to_string(entry.path()).unwrap_or_default();
                let (Ok(name), Ok(value)) = (entry.file_name().into_string(), text.trim().parse())
                else {
                    continue;
                };
                if name != LIFESPAN {
                    counters.entry(name).or_insert(value);
                }
            }
        }
        Ok(Self { counters })
    }

    /// The value of a counter, by the kernel's name; `None` if the device has no such counter.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.counters.get(name).copied()
    }

    /// All counters, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.counters
            .iter()
            .map(|(name, value)| (name.as_str(), *value))
    }

    /// The number of counters.
    pub fn len(&self) -> usize {
        self.counters.len()
    }

    /// Whether the device has no counters.
    pub fn is_empty(&self) -> bool {
        self.counters.is_empty()
    }

    /// Bytes sent: `port_xmit_data`, which counts words of 4 bytes. `None` on Soft-RoCE and
    /// Soft-iWARP.
    pub fn xmit_bytes(&self) -> Option<u64> {
        Some(self.get("port_xmit_data")?.saturating_mul(WORD))
    }

    /// Bytes received: `port_rcv_data`, which counts words of 4 bytes. `None` on Soft-RoCE and
    /// Soft-iWARP.
    pub fn recv_bytes(&self) -> Option<u64> {
        Some(self.get("port_rcv_data")?.saturating_mul(WORD))
    }

    /// The growth of each counter since an earlier reading; 0 for a counter that was reset
    /// meanwhile.
    ///
    /// ```no_run
    /// # fn f(ctx: &verbs::Context) -> verbs::Result<()> {
    /// let before = ctx.port_counters(1)?;
    /// // … the traffic …
    /// for (name, growth) in ctx.port_counters(1)?.since(&before).iter() {
    ///     println!("{name}: {growth}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let growth = |(name, value): (&str, u64)| {
            let before = earlier.get(name).unwrap_or(0);
            (name.to_owned(), value.saturating_sub(before))
        };
        Self {
            counters: self.iter().map(growth).collect(),
        }
    }
}

impl FromIterator<(String, u64)> for PortCounters {
    /// Collects counters by name, for example for a test.
    fn from_iter<I: IntoIterator<Item = (String, u64)>>(counters: I) -> Self {
        Self {
            counters: counters.into_iter().collect(),
        }
    }
}

impl Context {
    /// Reads the counters of a port, numbered from 1, from sysfs. Enters the kernel for each
    /// counter; a card may take milliseconds. The kernel serves hardware counters from a copy for some
    /// time, 10 ms unless `hw_counters/lifespan` has another number.
    ///
    /// # Errors
    /// - `NotFound`: there is no such port, or the device is not the kernel's, such as softnic's.
    pub fn port_counters(&self, port_num: u8) -> Result<PortCounters> {
        let ports = Path::new(CLASS).join(self.name()).join("ports");
        let port = ports.join(port_num.to_string());
        PortCounters::below(&port).map_err(|err| {
            Error::refused("port_counters", err.kind(), err).detail(port.display().to_string())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of a test, removed at the end.
    struct Port(std::path::PathBuf);

    impl Port {
        fn new(test: &str, files: &[(&str, &str)]) -> Self {
            let name = format!("verbs-{test}-{}", std::process::id());
            let port = Self(std::env::temp_dir().join(name));
            for (path, text) in files {
                let path = port.0.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            port
        }
    }

    impl Drop for Port {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn counters_of_both_folders_are_read() {
        let port = Port::new(
            "both",
            &[
                ("counters/port_xmit_data", "1000\n"),
                ("counters/port_rcv_data", "18446744073709551615\n"),
                ("counters/broken", "N/A (no PMA)\n"),
                ("hw_counters/out_of_buffer", "7\n"),
                ("hw_counters/lifespan", "10\n"),
                ("gids/0", "12\n"),
            ],
        );
        let counters = PortCounters::below(&port.0).unwrap();
        let all: Vec<_> = counters.iter().collect();
        assert_eq!(
            all,
            [
                ("out_of_buffer", 7),
                ("port_rcv_data", u64::MAX),
                ("port_xmit_data", 1000)
            ]
        );
        assert_eq!(counters.xmit_bytes(), Some(4000));
        assert_eq!(counters.recv_bytes(), Some(u64::MAX));
        assert_eq!(counters.get("lifespan"), None);
    }

    #[test]
    fn port_without_folders_has_no_counters() {
        let port = Port::new("none", &[("state", "4: ACTIVE\n")]);
        let counters = PortCounters::below(&port.0).unwrap();
        assert!(counters.is_empty() && counters.xmit_bytes().is_none());
        let missing = PortCounters::below(&port.0.join("9")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn growth_is_counted_from_the_earlier_reading() {
        let of = |values: &[(&str, u64)]| PortCounters {
            counters: values.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect(),
        };
        let before = of(&[("sent", 5), ("reset", 9), ("gone", 1)]);
        let after = of(&[("sent", 12), ("reset", 2), ("new", 3)]);
        assert_eq!(
            after.since(&before),
            of(&[("sent", 7), ("reset", 0), ("new", 3)])
        );
    }
}
