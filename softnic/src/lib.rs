//! RDMA devices in a test's own process: no kernel module, no root, no guest.
//!
//! A [`Fabric`] is a network of [`Host`]s. Each host has one RDMA device, found and opened by `verbs` as any other, and
//! connections are made by the crate `cm`. `RoCEv2` frames can be lost, duplicated, corrupted and delayed on demand,
//! and recorded for Wireshark.
//!
//! ```
//! use softnic::Fabric;
//! let fabric = Fabric::seeded(7).loss(0.01);
//! let host = fabric.host("10.9.0.1".parse()?);
//! host.run(|| {
//!     let devices = verbs::devices().expect("the host has a device");
//!     assert_eq!(devices.iter().next().map(|device| device.name()), Some("softnic0"));
//! });
//! # Ok::<(), std::net::AddrParseError>(())
//! ```
//!
//! The chapter [Test your protocol](guide) starts with a unit test over a lossy network, and goes on to killed hosts, cut
//! links and slow servers.
//!
//! # Parts
//!
//! - [`wire`]: frames, encoded and decoded, with their checksums.
//! - [`engine`]: a device without I/O and without a clock: the transport, keys of memory, completion queues.
//! - [`Fabric`]: hosts, links and their faults, time.
//! - [`cm`]: a connection manager without I/O and without a clock: messages, retries, port spaces.
//! - [`scripted`]: devices whose answers, failures and completions are decided by a test.
//! - The C functions of libibverbs and librdmacm over these parts. A program linked with this crate uses these
//!   functions, and needs no library of rdma-core.
//!
//! # Supported and unsupported features
//!
//! Supported: RC, UC, UD and XRC queue pairs with messages, RDMA, atomics, flushes, atomic writes and inline data;
//! memory regions and windows; shared receive queues; plain and extended completion queues and queue pairs, channels
//! and asynchronous events; address handles and multicast groups; the connections and datagram services of
//! `rdma_cm(7)` used by the crate `cm`.
//!
//! Unsupported: other optional features, whose calls fail with `EOPNOTSUPP`, except on [`scripted`] devices. The crate's
//! README has the whole list.
//!
//! # Other processes
//!
//! A host [over UDP](Fabric::host_over_udp) reaches hosts of other processes. The environment variable `SOFTNIC_ADDR` gives
//! a process such a host, for threads on no other: `SOFTNIC_LOSS` is the probability of a loss, and `SOFTNIC_PCAP` a file
//! for the frames.

mod abi;
mod adversary;
mod by_name;
mod card;
mod carrier;
mod check;
pub mod cm;
pub mod engine;
mod fabric;
mod failure;
#[doc(hidden)]
pub mod keeper;
mod mix;
mod seed;
#[doc = include_str!("../GUIDE.md")]
pub mod guide {}
pub mod wire;

pub use abi::scripted;
pub use adversary::{Rule, RuleClass, UnknownRule};
pub use card::{Card, UnknownCard};
pub use check::{Check, CheckReport, Location};
pub use fabric::{Books, Entered, Fabric, Faults, Host, Limits, RecordedFrame, Traffic};
pub use failure::{Call, Failing, Holding, When};
pub use seed::Seed;
