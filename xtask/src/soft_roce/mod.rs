//! Guests with a software RDMA device: booting them, running commands in them, and telling how it went.
//!
//! A [`Run`] is a plan: one command on one guest, or two commands on two guests joined by a wire. Fill in what
//! differs from the defaults and execute it with a function that takes [`Event`]s as they happen:
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
//! - `event.at` is an [`Instant`](std::time::Instant): take differences.
//! - With [`Run::by_line`] an output event is one line without its newline; otherwise it is whatever came.
//! - `execute` returns an error when the guests could not be used at all, and an [`Outcome`] when they were;
//!   `outcome.complaint()` then says in words what is wrong, if anything is.
//! - The calling thread must stay alive while `execute` runs, which it does by waiting.
//!
//! The types of an event are in [`event`]; [`report::Printer`] is the event function behind `soft-roce run`.
//!
//! Not here: what is run. That is for the command line, [`crate::test`] and others.

mod accelerator;
pub(crate) mod backend;
mod cache;
mod clock;
pub(crate) mod command;
mod conduct;
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
