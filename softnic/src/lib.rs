//! RDMA devices in a test's own process: no kernel module, no root, no guest.
//!
//! A [`Fabric`] is a network of [`Host`]s, each with one RDMA device that `verbs` finds and opens as any other. Frames are
//! those of `RoCEv2` and can be lost, duplicated, corrupted and delayed on demand, and recorded for Wireshark. Connections are
//! made by the crate `cm` as ever.
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
//! # Parts
//!
//! - [`wire`]: frames, encoded and decoded, with their checksums.
//! - [`engine`]: a device without I/O and without a clock: the transport, keys of memory, completion queues.
//! - [`Fabric`]: hosts, links and their faults, time.
//! - [`cm`]: a connection manager without I/O and without a clock: messages, retries, port spaces.
//! - The functions of libibverbs and librdmacm over these, under their C names. A program that links this crate uses them
//!   instead of the libraries', and needs no library.
//!
//! # What works, and what does not
//!
//! Works: RC, UC and UD queue pairs with messages, RDMA, atomics and inline data; memory regions and windows; shared receive
//! queues; completion queues, channels and asynchronous events; address handles and multicast groups; connections and
//! services of datagrams by `rdma_cm(7)`, as far as the crate `cm` uses it.
//!
//! Does not yet: extended queue pairs and completion queues, XRC, and other optional features, whose calls fail with
//! `EOPNOTSUPP`; frames to other processes. The crate's README has the whole list.

mod abi;
pub mod cm;
pub mod engine;
mod fabric;
pub mod wire;

pub use fabric::{Books, Entered, Fabric, Faults, Host};
