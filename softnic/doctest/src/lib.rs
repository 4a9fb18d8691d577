//! Devices and peers on softnic for the examples in the documentation: a hidden line of an example makes its device run.
//!
//! Keep the first value of a result until the example's end, `let (_peer, …) = …`: dropping the value fails the example if
//! objects were left. Every example runs in a process of its own, so the default host is the example's.
//!
//! ```
//! # let (_fabric, ctx) = doctest::device();
//! let pd = ctx.alloc_pd()?;
//! # Ok::<(), verbs::Error>(())
//! ```

mod peer;
mod server;

pub use peer::{Connected, Peer, connected, connected_for, peer};
pub use server::{Server, server};

use softnic::Fabric;
use verbs::Context;

/// Addresses in the examples: of the server, or of the peer, and of the example.
const SERVER: [u8; 4] = [10, 9, 0, 1];
const CLIENT: [u8; 4] = [10, 9, 0, 2];

/// Makes a host with the addresses 10.9.0.1 and 10.9.0.2, on which the example is.
pub fn host() -> Fabric {
    let fabric = Fabric::new();
    let addrs = [SERVER.into(), CLIENT.into()];
    fabric.host_with_addrs(&addrs).make_default();
    fabric
}

/// As [`host`], for libraries whose objects exist until the process ends.
pub fn lasting_host() -> Fabric {
    host().keep_objects()
}

/// Makes a host as [`host`], and opens its device.
///
/// # Panics
/// If the device cannot be opened.
pub fn device() -> (Fabric, Context) {
    let fabric = host();
    (fabric, open())
}

/// Makes a device as [`device`], with a link that has gone down.
///
/// # Panics
/// If the device cannot be opened.
pub fn device_without_link() -> (Fabric, Context) {
    let fabric = Fabric::new();
    let host = fabric.host(CLIENT.into());
    host.make_default();
    let ctx = open();
    fabric.link_down(&host);
    (fabric, ctx)
}

/// Opens the device of the thread's host.
fn open() -> Context {
    let devices = verbs::devices().expect("softnic has a list of devices");
    let device = devices.first().expect("the host has a device");
    device.open().expect("softnic's devices can be opened")
}
