//! Guests with a software RDMA device: boot, commands, outcome. The library of `cargo soft-roce`.
//!
//! [`Guests`] is for tests: it runs commands, or the test's own code, on one host or several.
//!
//! A [`Run`] is a plan, with each option of `cargo soft-roce run`: one command on one guest, or a command on each of
//! several guests. Set the options and call [`Run::execute`] with a callback for [`Event`]s:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use soft_roce::{EventKind, Run, Workspace};
//!
//! # fn main() -> anyhow::Result<()> {
//! let workspace = Workspace::load()?;
//! let plan = Run::pair("server -p 7471", "sleep 1; client $A 7471").timeout(Duration::from_secs(30));
//! let outcome = plan.execute(&workspace, &mut |event| match &event.kind {
//!     EventKind::Up => println!("{} is up", event.host),
//!     EventKind::Output(_, line) => println!("{}: {}", event.host, String::from_utf8_lossy(line)),
//!     EventKind::Ended(code) => println!("{} ended with {code}", event.host),
//! })?;
//! assert!(outcome.is_success(), "{:?}", outcome.complaint());
//! # Ok(())
//! # }
//! ```
//!
//! - `event.at` is an [`Instant`](std::time::Instant): use differences.
//! - In a run of several commands, or with [`Run::by_line`], an output event is one line without its newline; otherwise one
//!   chunk of arbitrary size.
//! - `execute` returns an error if no guest could be started, and an [`Outcome`] otherwise;
//!   `outcome.complaint()` then describes the failures, if any.
//! - `execute` blocks the calling thread, and the guests are killed when the calling thread exits.
//!
//! [`report::Printer`] is the callback of `soft-roce run`. The choice of commands is the caller's: [`cli`] has the
//! commands of `cargo soft-roce`, for programs that offer them too.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "commands report on standard output and standard error"
)]

mod accelerator;
mod architecture;
pub mod backend;
mod boot;
mod clock;
mod commands;
mod counter;
mod descendants;
mod device;
mod event;
mod guest;
mod guests;
mod host;
mod input;
pub mod interrupt;
mod machine;
mod network;
pub mod process;
mod qemu;
mod root;
mod run;
mod runner;
mod sandbox;
mod scratch;
mod shown;
mod stall;
mod uml;
mod workspace;

pub use boot::{
    kernel::{self, Source},
    kernel_name::KernelName,
    preparation,
    rdma_core::{self, RdmaCore},
};
pub use commands::{
    cli,
    report::{self, Outcome},
    setup,
};
pub use device::Device;
pub use event::{Event, EventKind, Host, Stream};
pub use guests::{Guests, Line, Ran};
pub use network::link::{LinkChange, LinkCondition, LinkOption, Links};
pub use run::{Run, Until, quote};
pub use workspace::Workspace;
