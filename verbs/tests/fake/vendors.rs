//! Transports and requests of vendors.

use std::io::ErrorKind;

use ibverbs_sys as ffi;
use softnic::Call;
use verbs::{
    Buf, Completed, CompletionQueue, Gid, Init, QueuePair, RemoteToken, Reset, Rtr, Rts, Ud,
    WcStatus,
    ah::{AddressHandle, AddressVector, Addressed, HasAddress},
    cq::CqHandle,
    op::{self, SendOps, VendorDestination, VendorOperation, VendorRequest},
    qp::{Attributes, Datagram, Partitioned, Psn, QpNum, VendorTransport},
    work::{Gather, SgeList},
};

use crate::fixture::{Fixture, error_text};

const REMOTE: RemoteToken = RemoteToken {
    addr: 0x1000,
    len: 8,
    rkey: 7,
};

/// A transport with receives only.
#[derive(Debug)]
struct Receiver;

// SAFETY: C's call makes a queue pair of the attributes, or none. The device completes each request once.
unsafe impl VendorTransport for Receiver {
    const NAME: &'static str = "Receiver";
    const CREATE: &'static str = "fakedv_create_qp";
    const IN_ORDER: bool = true;
    type Attributes = Self;

    unsafe fn create(
        ctx: *mut ffi::ibv_context,
        attr: &mut ffi::ibv_qp_init_attr_ex,
    ) -> *mut ffi::ibv_qp {
        // SAFETY: as the caller promises.
        unsafe { ffi::ibv_create_qp_ex(ctx, attr) }
    }
}

/// Datagrams that complete in any order.
#[derive(Debug)]
struct Unordered;

// SAFETY: the queue pair is of UD, in any order.
unsafe impl VendorTransport for Unordered {
    const NAME: &'static str = "Unordered";
    const CREATE: &'static str = "fakedv_create_qp";
    const IN_ORDER: bool = false;
    type Attributes = Ud;

    unsafe fn create(
        ctx: *mut ffi::ibv_context,
        attr: &mut ffi::ibv_qp_init_attr_ex,
    ) -> *mut ffi::ibv_qp {
        let mut attr = *attr;
        attr.qp_type = ffi::ibv_qp_type::IBV_QPT_UD;
        // SAFETY: as the caller promises.
        unsafe { ffi::ibv_create_qp_ex(ctx, &raw mut attr) }
    }
}

// SAFETY: the queue pair is of UD.
unsafe impl Datagram for Unordered {}

impl Partitioned for Unordered {}

/// A request of the vendor's, with its address set by `ibv_wr_set_ud_addr`, or by a call of the vendor's.
struct Request {
    work: Addressed<Buf>,
    operation: VendorOperation,
    by_call: bool,
}

/// The vendor's call.
///
/// # Safety
/// As for `ibv_wr_set_ud_addr`, with the number of the queue pair and the Q_Key.
unsafe fn set_addr(qp: *mut ffi::ibv_qp_ex, ah: *mut ffi::ibv_ah, [number, key]: [u64; 2]) {
    let narrow = |number| u32::try_from(number).unwrap_or(0);
    // SAFETY: the caller's promise.
    unsafe { ffi::ibv_wr_set_ud_addr(qp, ah, narrow(number), narrow(key)) };
}

// SAFETY: the work owns its memory, which is only read, and the handle. The device of the test executes every operation.
unsafe impl VendorRequest for Request {
    type Transport = Unordered;
    type Work = Addressed<Buf>;

    fn operation(&self) -> VendorOperation {
        self.operation
    }

    fn destination(&self) -> VendorDestination<'_> {
        let ah = self.work.ah();
        match self.by_call {
            false => VendorDestination::queue_pair(ah, QpNum::from_low_bits(5), 6),
            // SAFETY: the call sets an address of UD, and keeps only the handle.
            true => unsafe { VendorDestination::by_call(ah, set_addr, [5, 6]) },
        }
    }

    fn gather(&self, list: &mut SgeList) {
        self.work.gather(list);
    }

    fn into_work(self) -> Addressed<Buf> {
        self.work
    }

    fn is_signaled(&self) -> bool {
        false
    }
}

type Sender = QueuePair<Unordered, Rts, Addressed<Buf>, Buf>;

fn sender(fixture: &Fixture, cq: &CqHandle, depth: u32) -> Sender {
    let ops = SendOps::SEND | SendOps::RDMA_WRITE | SendOps::RDMA_WRITE_WITH_IMM;
    let builder = fixture.pd.qp_builder::<Unordered>(cq, cq);
    let builder = builder.max_send_wr(depth).send_ops(ops);
    let qp = builder.create_for().unwrap();
    let qp = qp.to_init(&Attributes::<Ud, Init>::new(1, 7).of_vendor());
    let qp = qp
        .unwrap()
        .to_rtr(&Attributes::<Ud, Rtr>::new().of_vendor());
    let attributes = Attributes::<Ud, Rts>::new(Psn::default()).of_vendor();
    qp.unwrap().to_rts(&attributes).unwrap()
}

fn handle(fixture: &Fixture) -> AddressHandle {
    let vector = AddressVector::global(1, 1, Gid([0xfe; 16]));
    fixture.pd.create_ah(&vector).unwrap()
}

fn request(fixture: &Fixture, ah: &AddressHandle, operation: VendorOperation) -> Request {
    let buf = fixture.pd.register_buf(*b"8 bytes!").unwrap();
    Request {
        work: Addressed::new(buf, ah),
        operation,
        by_call: false,
    }
}

/// Posts a write; returns the error.
fn write(fixture: &Fixture, qp: &mut Sender, ah: &AddressHandle) -> Option<verbs::Error> {
    let mut batch = qp.extended_batch().unwrap();
    let pushed = batch.push_vendor(request(fixture, ah, VendorOperation::RdmaWrite(REMOTE)));
    batch.post().unwrap();
    pushed.err().map(|refused| refused.error)
}

#[test]
fn vendor_queue_pair_receives() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let builder = fixture.pd.qp_builder::<Receiver>(&cq, &cq);
    let qp: QueuePair<Receiver, Reset> = builder.max_recv_wr(2).create().unwrap();
    let mut attr = ffi::ibv_qp_attr::zeroed();
    attr.port_num = 1;
    let mask = ffi::ibv_qp_attr_mask::IBV_QP_STATE | ffi::ibv_qp_attr_mask::IBV_QP_PORT;
    let mut qp = qp.to_init(&Attributes::from_raw(attr, mask.0)).unwrap();
    qp.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
    fixture.fake.complete_receive(qp.qp_num(), b"whatever");
    let wc = cq.poll().unwrap().next().unwrap();
    let Ok(Completed::Receive(done)) = qp.complete(wc) else {
        panic!("a receive has completed");
    };
    assert_eq!(done.received().unwrap(), b"whatever");
    let leftover: verbs::qp::Leftover<Buf, Buf> = qp.destroy().unwrap();
    assert_eq!((leftover.send.len(), leftover.receive.len()), (0, 0));
}

#[test]
fn refused_vendor_queue_pair_reserves_no_entries() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    fixture.fake.fail(Call::CreateQp, libc::EINVAL);
    let builder = fixture.pd.qp_builder::<Receiver>(&cq, &cq);
    let err = builder.create().unwrap_err();
    let text = error_text(&err);
    assert!(
        text.starts_with("`fakedv_create_qp` failed (Receiver, "),
        "{text}"
    );
    assert_eq!(cq.available(), cq.capacity());
}

#[test]
fn vendor_transition_without_an_attribute_names_it() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let builder = fixture.pd.qp_builder::<Unordered>(&cq, &cq);
    let qp: QueuePair<Unordered, Reset> = builder.create().unwrap();
    let refused = qp
        .to_init(&Attributes::<Unordered, Init>::unchanged().port(1))
        .unwrap_err();
    let text = error_text(&refused);
    assert!(
        text.contains("Unordered Reset to Init, missing: PKEY_INDEX, QKEY"),
        "{text}"
    );
}

#[test]
fn vendor_requests_reach_the_device_with_their_destination() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let mut qp = sender(&fixture, &cq, 4);
    let ah = handle(&fixture);
    let imm = VendorOperation::RdmaWriteImm(REMOTE, 9);
    let mut batch = qp.extended_batch().unwrap();
    for (operation, by_call) in [
        (VendorOperation::Send, true),
        (VendorOperation::RdmaWrite(REMOTE), false),
        (imm, true),
    ] {
        let request = request(&fixture, &ah, operation);
        batch.push_vendor(Request { by_call, ..request }).unwrap();
    }
    batch.post().unwrap();
    // A request of `verbs` follows the vendor's.
    let buf = fixture.pd.register_buf(*b"8 bytes!").unwrap();
    let send = op::SendTo::new(Addressed::new(buf, &ah), QpNum::from_low_bits(5), 6);
    qp.post(send).unwrap();
    let sends = fixture.fake.sends(qp.qp_num());
    assert_eq!(sends.len(), 4);
    for send in &sends {
        assert_eq!(send.bytes(), b"8 bytes!");
        assert_eq!(send.datagram, Some((ah.as_raw().addr(), 5, 6)));
        // No later completion brings a request back.
        assert!(send.is_signaled());
    }
    let remote = Some((REMOTE.addr, REMOTE.rkey));
    assert_eq!((sends[0].remote, sends[1].remote), (None, remote));
    assert_eq!((sends[2].remote, sends[2].imm_data), (remote, Some(9)));
}

#[test]
fn vendor_requests_beyond_the_limits_are_refused() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let mut qp = sender(&fixture, &cq, 4);
    let ah = handle(&fixture);
    let short = RemoteToken { len: 7, ..REMOTE };
    let other = Fixture::second_device();
    let foreign = handle(&other);
    let cases = [
        (
            VendorOperation::RdmaWrite(short),
            &ah,
            ErrorKind::InvalidInput,
        ),
        (
            VendorOperation::RdmaRead(REMOTE),
            &ah,
            ErrorKind::Unsupported,
        ),
        (VendorOperation::Send, &foreign, ErrorKind::InvalidInput),
    ];
    for (operation, ah, kind) in cases {
        let mut batch = qp.extended_batch().unwrap();
        let refused = batch
            .push_vendor(request(&fixture, ah, operation))
            .unwrap_err();
        assert_eq!(
            refused.error.kind(),
            kind,
            "{operation:?}: {}",
            refused.error
        );
        assert!(batch.is_empty());
    }
}

/// Completes the request of this index among those in flight.
fn complete(fixture: &Fixture, cq: &mut CompletionQueue, qp: &mut Sender, index: usize) {
    fixture
        .fake
        .complete_send_at(qp.qp_num(), index, WcStatus::SUCCESS);
    let wc = cq.poll().unwrap().next().unwrap();
    let done = qp.complete_each(wc, drop).ok().unwrap();
    done.into_work().unwrap();
}

#[test]
fn vendor_requests_keep_their_slots_until_all_earlier_ones_are_complete() {
    let fixture = Fixture::iwarp();
    let mut cq = fixture.cq(4);
    let mut qp = sender(&fixture, &cq, 3);
    assert_eq!(
        cq.capacity() - cq.available(),
        4,
        "three sends, one receive"
    );
    let ah = handle(&fixture);
    for _ in 0..3 {
        assert!(write(&fixture, &mut qp, &ah).is_none());
    }
    let full = write(&fixture, &mut qp, &ah).unwrap();
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    complete(&fixture, &mut cq, &mut qp, 1);
    assert_eq!(qp.send_queue().in_flight(), 2);
    let full = write(&fixture, &mut qp, &ah).unwrap();
    assert_eq!(
        full.kind(),
        ErrorKind::WouldBlock,
        "the oldest one is in flight"
    );
    complete(&fixture, &mut cq, &mut qp, 0);
    for _ in 0..2 {
        assert!(write(&fixture, &mut qp, &ah).is_none());
    }
    assert_eq!(qp.send_queue().in_flight(), 3);
    let leftover = qp.destroy().unwrap();
    assert_eq!(leftover.send.len(), 3);
}

#[test]
fn failed_vendor_post_returns_the_work() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let mut qp = sender(&fixture, &cq, 4);
    let ah = handle(&fixture);
    let mut batch = qp.extended_batch().unwrap();
    let request = request(&fixture, &ah, VendorOperation::RdmaWrite(REMOTE));
    batch.push_vendor(request).unwrap();
    fixture.fake.fail(Call::WrComplete, libc::ENOMEM);
    let refused = batch.post().unwrap_err();
    assert_eq!(refused.value.len(), 1);
    assert_eq!(&*refused.value[0].work, b"8 bytes!");
    assert_eq!(qp.send_queue().in_flight(), 0);
}

#[test]
fn failed_vendor_request_leaves_the_others_in_flight() {
    let fixture = Fixture::iwarp();
    let mut cq = fixture.cq(8);
    let mut qp = sender(&fixture, &cq, 4);
    let ah = handle(&fixture);
    for _ in 0..2 {
        assert!(write(&fixture, &mut qp, &ah).is_none());
    }
    let failed = WcStatus::REM_ACCESS_ERR;
    fixture.fake.complete_send_at(qp.qp_num(), 1, failed);
    let wc = cq.poll().unwrap().next().unwrap();
    assert_eq!(wc.status(), WcStatus::REM_ACCESS_ERR);
    let Ok(Completed::Send(done)) = qp.complete(wc) else {
        panic!("a request has completed");
    };
    assert!(done.into_work().is_err());
    assert_eq!(qp.send_queue().in_flight(), 1);
}
