//! Devices whose answers, failures and completions are decided by a test.
//!
//! A scripted [`Device`] takes requests and executes nothing by itself: a test inspects the posted requests, completes
//! them in any order with any status, delivers messages of its own, and lets calls fail. It has the features that the
//! devices of [`Fabric`](crate::Fabric)s lack: flows and counters, work queues and packet hashes (RSS), device memory,
//! tag matching, raw packets with segmentation, on-demand paging, thread and parent domains, imports, completion
//! counters.
//!
//! ```
//! use softnic::{Call, Fabric, When};
//! let fabric = Fabric::new();
//! let host = fabric.host("10.9.0.1".parse()?);
//! let device = host.add_scripted("scripted0");
//! let ctx = host.run(|| verbs::devices()?.find("scripted0").unwrap().open())?;
//! device.fail(Call::AllocPd, When::Nth(1), libc::ENOMEM);
//! assert_eq!(ctx.alloc_pd().unwrap_err().raw_os_error(), Some(libc::ENOMEM));
//! let pd = ctx.alloc_pd()?;
//! assert_eq!(device.live(), ["ibv_pd", "verbs_context"]);
//! # drop(pd);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The chapter [Test your protocol](crate::guide) has an example with requests and completions.
//!
//! The device shows the worst behaviour permitted to devices: keys of released regions are issued again at once, memory
//! of requests in flight is accessed until the queue pair's destruction has returned, and completions of a destroyed
//! queue pair stay. Dropping a [`Device`] checks its records.
//!
//! Objects are named as in C: queue pairs by number, other objects by the pointer to their C struct, whose types are in
//! [`ffi`]. A name is looked up in the device's records, and never dereferenced: a missing object panics. Methods with
//! contents that only the test can vouch for, such as a made-up completion, are `unsafe`.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that names a missing object has failed"
)]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "lengths of C, and counts that fit them"
)]

mod comp_cntr;
mod context;
mod control;
mod copies;
mod cq;
mod cq_ex;
mod device;
mod dm;
mod domain;
mod event;
mod flow;
mod mr;
mod mw;
mod post;
mod post_ex;
mod qp;
mod srq;
mod state;
mod table;
mod tags;
mod turns;
mod wq;

pub use ibverbs_sys as ffi;

pub use control::Device;
pub use cq::{Extra, wc};
pub use device::Properties;
pub use domain::{PARENT_DOMAIN_BLOCK, UNPROTECTED};
pub use mr::Place;
pub use post::{Bind, PostedReceive, PostedSend};
pub use tags::PostedTagOp;

pub(crate) use state::Shared;
pub(super) use state::counter;

pub(super) mod functions {
    //! The functions of scripted devices, for the table of functions.
    pub(in crate::abi) use super::{
        comp_cntr::*, context::*, cq::*, cq_ex::*, dm::*, domain::*, event::*, flow::*, mr::*,
        mw::*, qp::*, srq::*, wq::*,
    };
    pub(in crate::abi) use crate::abi::query::*;
}
