//! Guests with a software RDMA device: boot, commands, outcome.
//!
//! A [`Run`] is a plan: one command on one guest, or two commands on two guests joined by a wire. Set the options
//! and call [`Run::execute`] with a callback for [`Event`]s:
//!
//! ```ignore
//! let workspace = Workspace::load()?;
//! let plan = Run::pair("server -p 7471", "sleep 1; client $A 7471").timeout(Duration::from_secs(30)).by_line();
//! let outcome = plan.execute(&workspace, &mut |event| match &event.kind {
//!     EventKind::Up => println!("{} is up", event.host),
//!     EventKind::Output(stream, line) => println!("{:?} {} {stream:?}: {}", event.at, event.host, text(line)),
//!     EventKind::Ended(code) => println!("{} ended with {code}", event.host),
//! })?;
//! std::process::exit(outcome.exit_code().into());
//! ```
//!
//! - `event.at` is an [`Instant`](std::time::Instant): use differences.
//! - With [`Run::by_line`], an output event is one line without its newline; otherwise one chunk of arbitrary size.
//! - `execute` returns an error if no guest could be started, and an [`Outcome`] otherwise;
//!   `outcome.complaint()` then describes the failures, if any.
//! - `execute` blocks the calling thread, and the guests are killed when the calling thread exits.
//!
//! [`event`] has the event types; [`report::Printer`] is the callback of `soft-roce run`. The choice of commands is the
//! caller's: the command line, [`crate::test`], [`crate::bench`].

mod accelerator;
mod architecture;
pub(crate) mod backend;
mod cache;
mod clock;
pub(crate) mod command;

mod counter;
mod device;
pub(crate) mod event;
mod guest;
mod host;
mod image;
mod initramfs;
mod input;
mod kernel;
mod machine;
mod modules;
mod qemu;
pub(crate) mod report;
mod run;
mod runner;
mod shown;
mod siw;
mod stall;
mod uml;
mod wire;

pub(crate) use device::Device;
pub(crate) use event::{Event, EventKind, Host, Stream};
pub(crate) use kernel::Source;
pub(crate) use report::Outcome;
pub(crate) use run::{Run, Until, quote};
