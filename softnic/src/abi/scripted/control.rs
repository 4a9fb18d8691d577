//! A test's controls of a scripted device.

use std::{
    fmt,
    sync::{Arc, MutexGuard},
    thread,
};

use ibverbs_sys as ffi;

use super::{
    cq::Extra,
    device::Properties,
    mr::Place,
    post::{PostedReceive, PostedSend},
    state::{Shared, State},
    tags::PostedTagOp,
};
use crate::{
    abi,
    failure::{Call, When},
};

/// A scripted device, with a test's controls. Made by [`Host::add_scripted`](crate::Host::add_scripted).
///
/// The device is in the list of its host until the drop. Open contexts keep working after the drop. No method blocks,
/// except while the closure of [`describe`](Self::describe) or [`change_qp`](Self::change_qp) runs in another thread:
/// these two wait for its end. Closures run unlocked, and may call any other method and use the device.
///
/// # Panics
/// A method panics if an object named by the test does not exist on this device, or has no request to complete. The drop panics, unless
/// the thread is panicking, if the records have a complaint: a use of a destroyed object, the destruction of an object
/// with unacknowledged events, memory of requests in flight that was deregistered, an overflow of a completion queue, or
/// a requested failure that did not happen.
///
/// # Examples
/// See the [module](super).
pub struct Device {
    shared: Arc<Shared>,
}

#[expect(
    clippy::missing_panics_doc,
    reason = "documented at the type: a missing object, for all methods"
)]
impl Device {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Changes the attributes of the device, once the closure has returned. Name, type, transport and directory are read at
    /// the first listing only.
    ///
    /// # Panics
    /// If called from within its own closure, or that of [`change_qp`](Self::change_qp).
    pub fn describe(&self, change: impl FnOnce(&mut Properties)) {
        let _turn = self.shared.turns.start("describe");
        let mut properties = self.state().properties.clone();
        change(&mut properties);
        self.state().properties = properties;
    }

    /// Lets calls of a C function fail with an error number, without effect, for as long as the device exists. The three
    /// calls for registrations are [`Call::RegMr`].
    ///
    /// Functions of posting and polling are counted by request. The call which notifies the device of posted requests has
    /// two failures: [`Call::Doorbell`] names no request, as by Soft-RoCE's and Soft-iWARP's providers;
    /// [`Call::SilentDoorbell`] is by a provider that does not write `bad_wr`. [`Call::ImportContext`] is a failed import
    /// after the device has taken the descriptor.
    ///
    /// # Panics
    /// - `call` is [not of scripted devices](Call::is_of_scripted), but of connections.
    /// - `errno`, or the number in `when`, is not positive.
    pub fn fail(&self, call: Call, when: When, errno: i32) {
        assert!(
            call.is_of_scripted(),
            "`{call}` fails on hosts only: use `Host::fail`"
        );
        self.state().failures.add(call, when, errno);
    }

    /// The calls of C functions, in order, except for posting, polling and acknowledging.
    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    /// The existing objects, by the names of their C types, sorted.
    pub fn live(&self) -> Vec<&'static str> {
        self.state().live()
    }

    /// The requests in flight on a send queue, the oldest first.
    pub fn sends(&self, qp_num: u32) -> Vec<PostedSend> {
        self.state().qp(qp_num).sends.iter().cloned().collect()
    }

    /// The receives in flight on a receive queue, the oldest first.
    pub fn receives(&self, qp_num: u32) -> Vec<PostedReceive> {
        self.state().qp(qp_num).receives.iter().cloned().collect()
    }

    /// The receives in flight on a shared receive queue, the oldest first.
    pub fn srq_receives(&self, srq: *mut ffi::ibv_srq) -> Vec<PostedReceive> {
        let mut state = self.state();
        state.srq_mut(srq.addr()).receives.iter().cloned().collect()
    }

    /// Takes all receives of a shared receive queue, for completion in any order.
    pub fn take_srq_receives(&self, srq: *mut ffi::ibv_srq) -> Vec<PostedReceive> {
        let mut state = self.state();
        let count = state.srq_mut(srq.addr()).receives.len();
        (0..count)
            .map(|_| state.take_from_srq(srq.addr()))
            .collect()
    }

    /// Completes the oldest request. A successful unsignaled one leaves no completion.
    pub fn complete_send(&self, qp_num: u32, status: ffi::ibv_wc_status) {
        self.complete_send_at(qp_num, 0, status);
    }

    /// Completes one of the requests in flight, counted from the oldest.
    ///
    /// # Panics
    /// If the request overtakes another, except over iWARP: elsewhere a program takes the earlier requests as completed.
    pub fn complete_send_at(&self, qp_num: u32, index: usize, status: ffi::ibv_wc_status) {
        self.state().complete_send(qp_num, index, status.0);
    }

    /// Delivers a message to the oldest receive, of the queue pair or of its shared receive queue.
    pub fn complete_receive(&self, qp_num: u32, message: &[u8]) {
        self.receive(qp_num, message, |_| {});
    }

    /// Delivers a message, with a modified completion.
    ///
    /// # Panics
    /// If the closure completes the receive itself, or destroys the queue pair.
    ///
    /// # Safety
    /// - The modified completion is one of the same receive, and true: a program reads as many bytes of the receive as
    ///   `byte_len` states, and takes memory named by the completion as its own.
    pub unsafe fn complete_receive_with(
        &self,
        qp_num: u32,
        message: &[u8],
        change: impl FnOnce(&mut ffi::ibv_wc),
    ) {
        self.receive(qp_num, message, change);
    }

    /// Delivers a message, with a completion changed by a closure that runs unlocked. The receive stays in flight until the
    /// closure has returned.
    fn receive(&self, qp_num: u32, message: &[u8], change: impl FnOnce(&mut ffi::ibv_wc)) {
        let mut wc = self.state().fill_receive(qp_num, message);
        let filled = wc.wr_id;
        change(&mut wc);
        self.state().complete_receive(qp_num, (filled, message), wc);
    }

    /// Delivers a message to an XRC queue, through a receiving queue pair.
    pub fn complete_xrc(
        &self,
        qp_num: u32,
        srq: *mut ffi::ibv_srq,
        message: &[u8],
        imm_data: Option<u32>,
    ) {
        self.state()
            .complete_xrc(qp_num, srq.addr(), message, imm_data);
    }

    /// Delivers a packet to the oldest receive of a work queue.
    pub fn complete_wq(&self, wq: *mut ffi::ibv_wq, message: &[u8]) {
        self.state().complete_wq(wq.addr(), message, 0);
    }

    /// The operations of a tag-matching queue that the device has not executed yet.
    pub fn tag_operations(&self, srq: *mut ffi::ibv_srq) -> Vec<PostedTagOp> {
        self.state().tag_operations(srq.addr())
    }

    /// Executes the oldest operation on the list of tags, and completes it.
    pub fn run_tag_operation(&self, srq: *mut ffi::ibv_srq) {
        self.state().run_tag_operation(srq.addr());
    }

    /// Delivers a message, with its header, to a tag-matching queue. For a rendezvous, only the match is reported.
    pub fn arrive_tagged(&self, srq: *mut ffi::ibv_srq, message: &[u8]) {
        self.state().arrive_tagged(srq.addr(), message);
    }

    /// Delivers the data of the matched rendezvous.
    pub fn finish_rendezvous(&self, srq: *mut ffi::ibv_srq, data: &[u8]) {
        self.state().finish_rendezvous(srq.addr(), data);
    }

    /// Completes the oldest tagged buffer, with a status and flags of `ibv_wc_flags`. The buffer stays with the device for
    /// [`finish_rendezvous`](Self::finish_rendezvous) if the status is success or `IBV_WC_TM_RNDV_INCOMPLETE`, without
    /// `IBV_WC_TM_DATA_VALID`.
    pub fn fail_tagged(&self, srq: *mut ffi::ibv_srq, status: ffi::ibv_wc_status, flags: u32) {
        self.state().fail_tagged(srq.addr(), status.0, flags);
    }

    /// Completes all requests and receives in flight on a queue pair, as flushed.
    pub fn flush(&self, qp_num: u32) {
        self.state().flush(qp_num);
    }

    /// Puts any completion into a queue. Its request, if any, is finished, and without iWARP also all earlier ones.
    ///
    /// # Safety
    /// - The completion is true of the request that the program has posted under the identifier, or the program takes it for
    ///   none of its own: a program reads as many bytes of a receive as `byte_len` states.
    pub unsafe fn push(&self, cq: *mut ffi::ibv_cq, wc: ffi::ibv_wc) {
        // SAFETY: the caller's promise.
        unsafe { self.push_extended(cq, wc, Extra::default()) };
    }

    /// Puts a completion into a queue, with the fields of an extended queue.
    ///
    /// # Safety
    /// - As for [`push`](Self::push).
    pub unsafe fn push_extended(&self, cq: *mut ffi::ibv_cq, wc: ffi::ibv_wc, extra: Extra) {
        let mut state = self.state();
        state.cq_mut(cq.addr());
        state.end_request(wc.wr_id);
        state.push(cq.addr(), wc, extra);
    }

    /// Lets the next poll of a queue return `ret`, and no completion.
    ///
    /// # Panics
    /// If `ret` is positive: the number of completions that the program reads, and the poll writes none.
    pub fn poll_returns(&self, cq: *mut ffi::ibv_cq, ret: i32) {
        assert!(ret <= 0, "a poll that returns {ret} writes completions");
        let mut state = self.state();
        state.cq_mut(cq.addr()).returns.push_back(ret);
    }

    /// Raises an asynchronous event. `element` is the address of an object of the device, or the port's number.
    ///
    /// # Panics
    /// If the event is one of an object, and the device has no object of this kind at the address.
    pub fn raise(&self, event: ffi::ibv_event_type, element: usize) {
        let mut state = self.state();
        state.check_subject(event, element);
        state.raise(event, element);
    }

    /// The only registration: its first address and its length in bytes, its access flags, and its place.
    pub fn region(&self) -> (u64, u64, u32, Place) {
        let state = self.state();
        assert_eq!(state.mrs.len(), 1);
        let mr = state.mrs.values().next().unwrap();
        (mr.start, mr.len, mr.access, mr.backing)
    }

    /// Ends every registration, as if the program had done so with requests in flight.
    pub fn lose_registrations(&self) {
        self.state().mrs.clear();
    }

    /// The advice calls: the advice, the flags, and the number of bytes.
    pub fn advised(&self) -> Vec<(u32, u32, u32)> {
        self.state().advised.clone()
    }

    /// Copies the bytes of a posted request's elements, from any kind of registered memory.
    ///
    /// # Panics
    /// If the request is not in flight on this device, or the memory is not registered any more.
    pub fn collect(&self, send: &PostedSend) -> Vec<u8> {
        self.state().bytes_of(send)
    }

    /// The only flow: its attributes, and the type and bytes of each specification.
    pub fn flow(&self) -> (ffi::ibv_flow_attr, Vec<(u32, Vec<u8>)>) {
        let state = self.state();
        assert_eq!(state.flows.len(), 1);
        let flow = state.flows.values().next().unwrap();
        (flow.attr, flow.specs.clone())
    }

    /// The function, the key and the fields of a queue pair's packet hash.
    pub fn rx_hash(&self, qp_num: u32) -> (u8, Vec<u8>, u64) {
        self.state().qp(qp_num).rx_hash.clone().unwrap()
    }

    /// Writes a message to elements, as the device does at delivery, and returns the status of the completion. Memory that is
    /// not registered under the key of its element is not written.
    ///
    /// # Safety
    /// - The bytes of the elements, if registered, are valid for writes, and no reference to them is in use: they belong to
    ///   a receive in flight, for example.
    pub unsafe fn deliver(&self, sges: &[ffi::ibv_sge], message: &[u8]) -> ffi::ibv_wc_status {
        self.state().deliver(sges, message)
    }

    /// Moderation of a completion queue: a number of completions, and microseconds.
    pub fn moderation(&self, cq: *mut ffi::ibv_cq) -> (u16, u16) {
        self.state().cq_mut(cq.addr()).moderation
    }

    /// Number of posting calls since the last call of this method, each with any number of requests.
    pub fn doorbells(&self) -> u32 {
        std::mem::take(&mut self.state().doorbells)
    }

    /// Number of `ibv_next_poll` calls.
    pub fn next_polls(&self) -> u32 {
        self.state().next_polls
    }

    /// Creation flags of a completion queue, of `ibv_create_cq_attr_flags`.
    pub fn cq_flags(&self, cq: *mut ffi::ibv_cq) -> u32 {
        self.state().cq_mut(cq.addr()).flags
    }

    /// Removes the complaint with this text, which must exist.
    pub fn forgive(&self, complaint: &str) {
        let mut state = self.state();
        let found = state.complaints.iter().position(|c| c.contains(complaint));
        state.complaints.remove(found.unwrap());
    }

    /// Puts a queue pair into a state, as a device does by itself.
    pub fn set_qp_state(&self, qp_num: u32, to: ffi::ibv_qp_state) {
        self.state().qp_by_number(qp_num).state = to;
    }

    /// Changes the attributes of a queue pair, as reported by the device, once the closure has returned.
    ///
    /// # Panics
    /// If called from within its own closure, or that of [`describe`](Self::describe).
    pub fn change_qp(&self, qp_num: u32, change: impl FnOnce(&mut ffi::ibv_qp_attr)) {
        let _turn = self.shared.turns.start("change_qp");
        let mut attr = self.state().qp_attr(qp_num);
        change(&mut attr);
        let mut state = self.state();
        let qp = state.qp_by_number(qp_num);
        qp.state = attr.qp_state;
        qp.attr = attr;
    }

    /// Limit of a queue pair's rate: the rate in kb/s, the burst and the typical packet in bytes.
    pub fn rate_limit(&self, qp_num: u32) -> (u32, u32, u16) {
        let limit = self.state().qp(qp_num).rate_limit;
        (limit.rate_limit, limit.max_burst_sz, limit.typical_pkt_sz)
    }

    /// Creation flags of a queue pair, of `ibv_qp_create_flags`.
    pub fn create_flags(&self, qp_num: u32) -> u32 {
        self.state().qp(qp_num).create_flags
    }

    /// State of a queue pair in the device.
    pub fn qp_state(&self, qp_num: u32) -> ffi::ibv_qp_state {
        self.state().qp(qp_num).state
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Device")
            .field("name", &state.properties.name)
            .field("live", &state.live())
            .finish_non_exhaustive()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.shared.unplug();
        let complaints = self.state().complaints();
        abi::free_abandoned();
        if !thread::panicking() {
            assert!(complaints.is_empty(), "{complaints:#?}");
        }
    }
}
