//! An RDMA device in memory.
//!
//! This program defines the functions of libibverbs itself, and the linker prefers a program's own
//! to a library's: `verbs` calls these. Inline functions of `verbs.h` go through the tables of a
//! context filled here. A [`Fake`] is one such device. Each belongs to one test, so tests run in
//! parallel.
//!
//! ```ignore
//! let fake = Fake::new();
//! let ctx = fake.open();
//! // Use `ctx` as any other. Then look at what the device was told …
//! assert_eq!(fake.sends(qp.qp_num())[0].bytes(), b"hello");
//! // … let it do something …
//! fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
//! // … or fail.
//! fake.fail("ibv_destroy_qp", libc::EBUSY);
//! ```
//!
//! Dropping a fake checks the records. It panics after a use of a destroyed object, the destruction
//! of an object with unacknowledged events, an overflow of a completion queue, or if a requested
//! failure never happened.
#![expect(dead_code, reason = "more than the tests so far use")]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::panic,
    reason = "the C side of the calls under test, in a test"
)]

mod comp_cntr;
mod context;
mod copies;
mod cq;
mod cq_ex;
mod device;
pub(crate) mod domain;
mod event;
mod flow;
#[cfg(miri)]
mod interpreted;
mod mr;
mod post;
mod post_ex;
mod qp;
mod srq;
mod state;
mod table;
mod tags;
mod wq;

use std::{
    sync::{Arc, MutexGuard},
    thread,
};

use ibverbs_sys as ffi;
use verbs::{Context, WcStatus, cq::CqHandle, qp::QpNum};

pub(crate) use cq::{Extra, wc};
pub(crate) use device::Properties;
pub(crate) use domain::PARENT_DOMAIN_BLOCK;
pub(crate) use mr::Place;
pub(crate) use post::{DOORBELL, PostedReceive, PostedSend, SILENT_DOORBELL};
use state::{Shared, State};
pub(crate) use tags::PostedTagOp;

/// A device, with a test's controls.
pub(crate) struct Fake {
    shared: Arc<Shared>,
}

impl Fake {
    /// A device called `fake0`, in the list of this thread.
    pub(crate) fn new() -> Self {
        Self::named("fake0")
    }

    /// A device with this name, in the list of this thread.
    pub(crate) fn named(name: &str) -> Self {
        let shared = Shared::new(name);
        device::announce(&shared);
        Self { shared }
    }

    /// Opens the device, in the way every program does.
    pub(crate) fn open(&self) -> Context {
        let devices = verbs::devices().unwrap();
        devices.find(&self.name()).unwrap().open().unwrap()
    }

    fn name(&self) -> String {
        self.state().properties.name.clone()
    }

    /// Changes the attributes of the device.
    pub(crate) fn describe(&self, change: impl FnOnce(&mut Properties)) {
        change(&mut self.state().properties);
    }

    /// Lets the next call of a C function fail, without effect.
    pub(crate) fn fail(&self, call: &'static str, errno: i32) {
        self.fail_after(0, call, errno);
    }

    /// Lets a call of a C function fail, after `successes` more successful ones. For posting,
    /// requests are counted, not calls.
    pub(crate) fn fail_after(&self, successes: usize, call: &'static str, errno: i32) {
        self.state().fail(call, successes, errno);
    }

    /// The calls of C functions, in order, except for posting and polling.
    pub(crate) fn calls(&self) -> Vec<&'static str> {
        self.state().calls.clone()
    }

    /// The existing objects, by the names of their C types, sorted.
    pub(crate) fn live(&self) -> Vec<&'static str> {
        self.state().live()
    }

    /// The requests in flight on a send queue, in the device's view.
    pub(crate) fn sends(&self, qp_num: QpNum) -> Vec<PostedSend> {
        self.state()
            .qp(qp_num.get())
            .sends
            .iter()
            .cloned()
            .collect()
    }

    /// The receives in flight on a receive queue, in the device's view.
    pub(crate) fn receives(&self, qp_num: QpNum) -> Vec<PostedReceive> {
        self.state()
            .qp(qp_num.get())
            .receives
            .iter()
            .cloned()
            .collect()
    }

    /// The receives in flight on a shared receive queue.
    pub(crate) fn srq_receives(&self, srq: *mut ffi::ibv_srq) -> Vec<PostedReceive> {
        let state = self.state();
        state.srqs[&srq.addr()].receives.iter().cloned().collect()
    }

    /// Lets the device take all receives of a shared receive queue, for completion in any order.
    pub(crate) fn take_srq_receives(&self, srq: *mut ffi::ibv_srq) -> Vec<PostedReceive> {
        let mut state = self.state();
        let count = state.srqs[&srq.addr()].receives.len();
        (0..count)
            .map(|_| state.take_from_srq(srq.addr()))
            .collect()
    }

    /// Completes the oldest request. A successful unsignaled one leaves no completion.
    pub(crate) fn complete_send(&self, qp_num: QpNum, status: WcStatus) {
        self.complete_send_at(qp_num, 0, status);
    }

    /// Completes one of the requests in flight, counted from the oldest: on iWARP a request can
    /// overtake another.
    pub(crate) fn complete_send_at(&self, qp_num: QpNum, index: usize, status: WcStatus) {
        self.state().complete_send(qp_num.get(), index, status.0);
    }

    /// Delivers a message to the oldest receive, of the queue pair or of its shared receive queue.
    pub(crate) fn complete_receive(&self, qp_num: QpNum, message: &[u8]) {
        self.complete_receive_with(qp_num, message, |_| {});
    }

    /// Delivers a message to an XRC queue, through a receiving queue pair.
    pub(crate) fn complete_xrc(
        &self,
        qp_num: QpNum,
        srq: *mut ffi::ibv_srq,
        message: &[u8],
        imm_data: Option<u32>,
    ) {
        self.state()
            .complete_xrc(qp_num.get(), srq.addr(), message, imm_data);
    }

    /// The operations of a tag-matching queue that the device has not executed yet.
    pub(crate) fn tag_operations(&self, srq: *mut ffi::ibv_srq) -> Vec<PostedTagOp> {
        self.state().tag_operations(srq.addr())
    }

    /// Executes the oldest operation on the list of tags, and completes it.
    pub(crate) fn run_tag_operation(&self, srq: *mut ffi::ibv_srq) {
        self.state().run_tag_operation(srq.addr());
    }

    /// Delivers a message, with its header, to a tag-matching queue. For a rendezvous, only the
    /// match is reported.
    pub(crate) fn arrive_tagged(&self, srq: *mut ffi::ibv_srq, message: &[u8]) {
        self.state().arrive_tagged(srq.addr(), message);
    }

    /// Delivers the data of the matched rendezvous.
    pub(crate) fn finish_rendezvous(&self, srq: *mut ffi::ibv_srq, data: &[u8]) {
        self.state().finish_rendezvous(srq.addr(), data);
    }

    /// Completes the oldest tagged buffer, with a status and flags.
    pub(crate) fn fail_tagged(&self, srq: *mut ffi::ibv_srq, status: WcStatus, flags: u32) {
        self.state().fail_tagged(srq.addr(), status.0, flags);
    }

    /// Delivers a message, with a modified completion.
    pub(crate) fn complete_receive_with(
        &self,
        qp_num: QpNum,
        message: &[u8],
        change: impl FnOnce(&mut ffi::ibv_wc),
    ) {
        self.state().complete_receive(qp_num.get(), message, change);
    }

    /// Completes all works in flight on a queue pair, as flushed.
    pub(crate) fn flush(&self, qp_num: QpNum) {
        self.state().flush(qp_num.get());
    }

    /// Puts any completion into a queue. Its request, if any, is finished.
    pub(crate) fn push(&self, cq: &CqHandle, wc: ffi::ibv_wc) {
        self.push_raw(cq.as_raw(), wc, Extra::default());
    }

    /// Puts a completion into a queue, with the fields of an extended queue.
    pub(crate) fn push_raw(&self, cq: *mut ffi::ibv_cq, wc: ffi::ibv_wc, extra: Extra) {
        let mut state = self.state();
        state.end_request(wc.wr_id);
        state.push(cq.addr(), wc, extra);
    }

    /// Lets the next poll of a queue return this, and no completion.
    pub(crate) fn poll_returns(&self, cq: &CqHandle, ret: i32) {
        let mut state = self.state();
        state.cq_mut(cq.as_raw().addr()).returns.push_back(ret);
    }

    /// Lets an asynchronous event happen. `element` is the object's address, or the port's number.
    pub(crate) fn raise(&self, event: ffi::ibv_event_type, element: usize) {
        self.state().raise(event, element);
    }

    /// The only registration: its first address and its length, its access flags, and its place.
    pub(crate) fn region(&self) -> (u64, u64, u32, Place) {
        let state = self.state();
        assert_eq!(state.mrs.len(), 1);
        let mr = state.mrs.values().next().unwrap();
        (mr.start, mr.len, mr.access, mr.place)
    }

    /// Ends every registration, as if the program had done so with work in flight.
    pub(crate) fn lose_registrations(&self) {
        self.state().mrs.clear();
    }

    /// The advice calls: the advice, the flags, and the number of bytes.
    pub(crate) fn advised(&self) -> Vec<(u32, u32, u32)> {
        self.state().advised.clone()
    }

    /// The bytes that a request reads, wherever registered.
    pub(crate) fn collect(&self, send: &PostedSend) -> Vec<u8> {
        self.state().collect(&send.sges)
    }

    /// The only flow: its attributes, and the type and bytes of each specification.
    pub(crate) fn flow(&self) -> (ffi::ibv_flow_attr, Vec<(u32, Vec<u8>)>) {
        let state = self.state();
        assert_eq!(state.flows.len(), 1);
        let flow = state.flows.values().next().unwrap();
        (flow.attr, flow.specs.clone())
    }

    /// The function, the key and the fields of a queue pair's packet hash.
    pub(crate) fn rx_hash(&self, qp_num: QpNum) -> (u8, Vec<u8>, u64) {
        self.state().qp(qp_num.get()).rx_hash.clone().unwrap()
    }

    /// Delivers a packet to the oldest receive of a work queue.
    pub(crate) fn complete_wq(&self, wq: *mut ffi::ibv_wq, message: &[u8]) {
        self.state().complete_wq(wq.addr(), message, 0);
    }

    /// Writes a message to elements, as the device does at delivery.
    pub(crate) fn deliver(&self, sges: &[ffi::ibv_sge], message: &[u8]) -> WcStatus {
        WcStatus(self.state().deliver(sges, message).0)
    }

    /// How a completion queue is moderated: a number of completions, and microseconds.
    pub(crate) fn moderation(&self, cq: &CqHandle) -> (u16, u16) {
        self.state().cq_mut(cq.as_raw().addr()).moderation
    }

    /// How often requests were posted since this was last asked, however many at once.
    pub(crate) fn doorbells(&self) -> u32 {
        std::mem::take(&mut self.state().doorbells)
    }

    /// How often extended polls were asked for the next completion.
    pub(crate) fn next_polls(&self) -> u32 {
        self.state().next_polls
    }

    /// The flags of a completion queue's creation, of `ibv_create_cq_attr_flags`.
    pub(crate) fn cq_flags(&self, cq: &CqHandle) -> u32 {
        self.state().cq_mut(cq.as_raw().addr()).flags
    }

    /// Removes a complaint, which must exist.
    pub(crate) fn forgive(&self, complaint: &str) {
        let mut state = self.state();
        let found = state.complaints.iter().position(|c| c.contains(complaint));
        state.complaints.remove(found.unwrap());
    }

    /// Puts a queue pair into a state, as a device does by itself.
    pub(crate) fn set_qp_state(&self, qp_num: QpNum, to: ffi::ibv_qp_state) {
        self.state().qp_by_number(qp_num.get()).state = to;
    }

    /// Changes the attributes of a queue pair, as reported by the device.
    pub(crate) fn change_qp(&self, qp_num: QpNum, change: impl FnOnce(&mut ffi::ibv_qp_attr)) {
        let mut state = self.state();
        let qp = state.qp_by_number(qp_num.get());
        qp.attr.qp_state = qp.state;
        change(&mut qp.attr);
        qp.state = qp.attr.qp_state;
    }

    /// How fast a queue pair may send: the rate, the burst, and the typical packet.
    pub(crate) fn rate_limit(&self, qp_num: QpNum) -> (u32, u32, u16) {
        let limit = self.state().qp(qp_num.get()).rate_limit;
        (limit.rate_limit, limit.max_burst_sz, limit.typical_pkt_sz)
    }

    /// The creation flags of a queue pair.
    pub(crate) fn create_flags(&self, qp_num: QpNum) -> u32 {
        self.state().qp(qp_num.get()).create_flags
    }

    /// The state of a queue pair, in the device's view.
    pub(crate) fn qp_state(&self, qp_num: QpNum) -> ffi::ibv_qp_state {
        self.state().qp(qp_num.get()).state
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        device::withdraw(&self.shared);
        let complaints = self.state().complaints();
        if !thread::panicking() {
            assert!(complaints.is_empty(), "{complaints:#?}");
        }
    }
}
