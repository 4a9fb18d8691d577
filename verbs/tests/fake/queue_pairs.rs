//! Attributes and transitions of queue pairs, missing or wrong on Soft-RoCE.

use std::io::ErrorKind;

use ibverbs_sys as ffi;
use softnic::Call;
use verbs::{
    Buf, Gid, Init, QueuePair, Reset, Rtr, Rts, Ud, WcStatus,
    ah::{AddressVector, Addressed},
    event::EventType,
    op,
    qp::{
        AckTimeout, AlternatePath, Attributes, MigState, Psn, QpFlags, QpState, RateLimit, Sqd,
        WrOpcode,
    },
    work::With,
};

use crate::{
    allocations::allocated_bytes,
    fixture::{Fixture, error_text},
};

pub(crate) fn address_vector(last: u8) -> AddressVector {
    AddressVector::global(1, 1, Gid([last; 16]))
}

/// The types name the state of a queue pair, so no transition without a state change succeeds.
#[test]
fn transition_names_its_state() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Reset> = fixture.pd.qp_builder(&cq, &cq).create().unwrap();
    for mask in [0, ffi::ibv_qp_attr_mask::IBV_QP_PORT.0] {
        let attributes = Attributes::<verbs::Rc, Init>::from_raw(ffi::ibv_qp_attr::zeroed(), mask);
        let refused = qp.to_init(&attributes).unwrap_err();
        assert!(
            refused.error.to_string().contains("without IBV_QP_STATE"),
            "{}",
            refused.error
        );
        qp = refused.value;
    }
}

/// There the kernel makes transitions itself.
#[test]
fn iwarp_transition_may_omit_the_state() {
    let fixture = Fixture::iwarp();
    let cq = fixture.cq(8);
    let qp: QueuePair<verbs::Rc, Reset> = fixture.pd.qp_builder(&cq, &cq).create().unwrap();
    let no_attributes = Attributes::<verbs::Rc, Init>::from_raw(ffi::ibv_qp_attr::zeroed(), 0);
    assert!(qp.to_init(&no_attributes).is_ok());
}

#[test]
fn drained_queue_pair_changes_its_path() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 2);
    let events = fixture.ctx.async_events().unwrap();
    let mut qp = qp
        .to_sqd(&Attributes::<verbs::Rc, Sqd>::new().notify_when_drained())
        .unwrap();
    let event = events.try_next().unwrap().unwrap();
    assert_eq!(event.event_type, EventType::SQ_DRAINED);
    let timeout = AckTimeout::new(9).unwrap();
    let changed = Attributes::<verbs::Rc, Sqd>::unchanged()
        .path(&address_vector(7))
        .timeout(timeout);
    qp.modify(&changed.max_rd_atomic(3).max_dest_rd_atomic(2))
        .unwrap();
    let attr = qp.query().unwrap();
    assert_eq!((attr.state, attr.path), (QpState::SQD, address_vector(7)));
    assert_eq!(
        (attr.timeout, attr.max_rd_atomic, attr.max_dest_rd_atomic),
        (9, 3, 2)
    );
    let qp = qp
        .to_rts(&Attributes::<verbs::Rc, Rts>::unchanged())
        .unwrap();
    assert_eq!(qp.query().unwrap().state, QpState::RTS);
}

#[test]
fn alternate_path_is_armed_and_migrated_to() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 2);
    let path = AlternatePath {
        vector: address_vector(8),
        pkey_index: 1,
        timeout: AckTimeout::new(11).unwrap(),
    };
    let changed = Attributes::<verbs::Rc, Rts>::unchanged().alternate_path(&path);
    qp.modify(&changed.path_mig_state(MigState::REARM)).unwrap();
    let attr = qp.query().unwrap();
    assert_eq!(
        (attr.alternate_path, attr.path_mig_state),
        (path, MigState::REARM)
    );
    qp.modify(&Attributes::<verbs::Rc, Rts>::unchanged().path_mig_state(MigState::MIGRATED))
        .unwrap();
    assert_eq!(qp.query().unwrap().path_mig_state, MigState::MIGRATED);
}

#[test]
fn unknown_device_values_are_kept() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 2);
    fixture.fake.change_qp(qp.qp_num(), |attr| {
        attr.qp_state = ffi::ibv_qp_state(77);
        attr.path_mig_state = ffi::ibv_mig_state(9);
        attr.alt_timeout = 255;
        attr.sq_draining = 1;
    });
    let attr = qp.query().unwrap();
    assert_eq!(format!("{:?}", attr.state), "QpState(77)");
    assert_eq!((attr.path_mig_state, attr.sq_draining), (MigState(9), true));
    assert_eq!(attr.alternate_path.timeout, AckTimeout::MAX);
}

#[test]
fn failed_ud_send_queue_resumes() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let qp: QueuePair<Ud, _> = fixture.pd.qp_builder(&cq, &cq).create().unwrap();
    let qp = qp.to_init(&Attributes::<Ud, Init>::new(1, 7)).unwrap();
    let qp = qp.to_rtr(&Attributes::<Ud, Rtr>::new()).unwrap();
    let mut qp = qp
        .to_rts(&Attributes::<Ud, Rts>::new(Psn::default()))
        .unwrap();
    fixture
        .fake
        .set_qp_state(qp.qp_num(), ffi::ibv_qp_state::IBV_QPS_SQE);
    assert_eq!(qp.query().unwrap().state, QpState::SQE);
    qp.modify(&Attributes::<Ud, Rts>::unchanged().qkey(9))
        .unwrap();
    let attr = qp.query().unwrap();
    assert_eq!((attr.state, attr.qkey), (QpState::RTS, 9));
}

/// The provider reads the address at any time until completion.
#[test]
fn ah_outlives_its_datagram_in_flight() {
    for destroyed in [None, Some(true), Some(false)] {
        let fixture = Fixture::new();
        let mut cq = fixture.cq(8);
        let qp = fixture.pd.qp_builder::<Ud>(&cq, &cq).create_for().unwrap();
        let qp = qp.to_init(&Attributes::<Ud, Init>::new(1, 7)).unwrap();
        let qp = qp.to_rtr(&Attributes::<Ud, Rtr>::new()).unwrap();
        let rts = Attributes::<Ud, Rts>::new(Psn::default());
        let mut qp: QueuePair<Ud, Rts, Addressed<Buf>> = qp.to_rts(&rts).unwrap();
        let ah = fixture.pd.create_ah(&address_vector(3)).unwrap();
        let work = Addressed::new(fixture.pd.alloc_buf(4).unwrap(), &ah);
        qp.post(op::SendTo::new(work, qp.qp_num(), 7)).unwrap();
        drop(ah);
        let lives = || fixture.fake.live().contains(&"ibv_ah");
        assert!(lives());
        match destroyed {
            None => {
                fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
                assert!(lives(), "the destructor ran before a poll");
                let wc = cq.poll().unwrap().next().unwrap();
                let done = qp.complete(wc).unwrap();
                assert!(lives(), "the work has it");
                drop(done);
            }
            Some(true) => drop(qp),
            Some(false) => {
                fixture.fake.fail(Call::DestroyQp, libc::EBUSY);
                drop(qp);
            }
        }
        assert_eq!(lives(), destroyed == Some(false));
    }
}

#[test]
fn illegal_transition_is_explained() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 2);
    let mut attr = ffi::ibv_qp_attr::zeroed();
    attr.timeout = 3;
    let mask = ffi::ibv_qp_attr_mask::IBV_QP_STATE | ffi::ibv_qp_attr_mask::IBV_QP_TIMEOUT;
    let err = qp
        .modify(&Attributes::<verbs::Rc, Rts>::from_raw(attr, mask.0))
        .unwrap_err();
    assert_eq!(
        error_text(&err),
        "`ibv_modify_qp` failed (Rc Rts to Rts, not allowed: TIMEOUT): \
         Invalid argument (os error 22)"
    );
    fixture
        .fake
        .set_qp_state(qp.qp_num(), ffi::ibv_qp_state::IBV_QPS_ERR);
    let err = qp
        .modify(&Attributes::<verbs::Rc, Rts>::unchanged())
        .unwrap_err();
    assert!(
        err.to_string().contains("Rc Rts to Rts, but it is in ERR"),
        "{err}"
    );
}

#[test]
fn rate_beyond_the_devices_range_is_refused() {
    let fixture = Fixture::new();
    fixture.fake.describe(|device| {
        device.attr.packet_pacing_caps.qp_rate_limit_min = 100;
        device.attr.packet_pacing_caps.qp_rate_limit_max = 10_000;
    });
    let cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 2);
    let limit = RateLimit {
        rate: 5000,
        max_burst: 9000,
        typical_packet: 1500,
    };
    qp.set_rate_limit(&limit).unwrap();
    assert_eq!(fixture.fake.rate_limit(qp.qp_num()), (5000, 9000, 1500));
    let err = qp
        .set_rate_limit(&RateLimit { rate: 99, ..limit })
        .unwrap_err();
    assert_eq!(err.kind(), ErrorKind::InvalidInput);
    assert_eq!(
        err.to_string(),
        "`ibv_modify_qp_rate_limit` failed (99 kbit/s): the device can do 100 to 10000 kbit/s"
    );
    fixture.fake.fail(Call::ModifyQpRateLimit, libc::EINVAL);
    let err = qp.set_rate_limit(&RateLimit::default()).unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::EINVAL));
    // No limit is always possible.
    qp.set_rate_limit(&RateLimit::default()).unwrap();
    assert_eq!(fixture.fake.rate_limit(qp.qp_num()), (0, 0, 0));
}

#[test]
fn query_data_in_order() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 2);
    assert!(qp.data_in_order(WrOpcode::RDMA_WRITE));
    assert!(!qp.data_in_order(WrOpcode::SEND));
}

#[test]
fn failed_multicast_attach_is_undone() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let mut qp: QueuePair<Ud, _> = fixture.pd.qp_builder(&cq, &cq).create().unwrap();
    let group = Gid([0xff; 16]);
    fixture.fake.fail(Call::AttachMcast, libc::ENOMEM);
    assert_eq!(
        qp.attach_multicast(group, 1).unwrap_err().raw_os_error(),
        Some(libc::ENOMEM)
    );
    qp.attach_multicast(group, 1).unwrap();
    // A group whose detachment fails keeps its queue pair.
    fixture.fake.fail(Call::DetachMcast, libc::EIO);
    assert_eq!(
        qp.detach_multicast(group, 1).unwrap_err().raw_os_error(),
        Some(libc::EIO)
    );
    fixture.fake.fail(Call::DetachMcast, libc::EIO);
    let refused = qp.destroy().unwrap_err();
    assert_eq!(refused.error.raw_os_error(), Some(libc::EBUSY));
}

/// The device destroys a queue pair only after its detachment from each group.
#[test]
fn queue_pair_that_is_not_destroyed_stays_in_its_groups() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let mut qp: QueuePair<Ud, _> = fixture.pd.qp_builder(&cq, &cq).create().unwrap();
    let groups = [Gid([0xff; 16]), Gid([0xfe; 16])];
    for group in groups {
        qp.attach_multicast(group, 1).unwrap();
    }
    for attempt in 0..2 {
        fixture.fake.fail(Call::DestroyQp, libc::EBUSY);
        let refused = qp.destroy().unwrap_err();
        assert_eq!(refused.error.raw_os_error(), Some(libc::EBUSY), "{attempt}");
        qp = refused.value.unwrap();
    }
    qp.detach_multicast(groups[0], 1).unwrap();
    assert!(qp.detach_multicast(groups[0], 1).is_err());
    qp.destroy().map_err(|refused| refused.error).unwrap();
}

#[test]
fn qp_creation_flags_reach_the_device() {
    let fixture = Fixture::new();
    let (fake, cq) = (&fixture.fake, fixture.cq(8));
    let plain: QueuePair<Ud, _> = fixture.pd.qp_builder(&cq, &cq).create().unwrap();
    assert_eq!(fake.create_flags(plain.qp_num()), 0);
    let flags = QpFlags::BLOCK_SELF_MULTICAST | QpFlags::CVLAN_STRIPPING;
    let padding = ffi::ibv_qp_create_flags::IBV_QP_CREATE_PCI_WRITE_END_PADDING.0;
    // Padding overwrites neighbours of receives: only unsafe code chooses it, in either order.
    let safe = flags | QpFlags::from_bits_retain(padding);
    let builder = || fixture.pd.qp_builder::<Ud>(&cq, &cq).flags(safe);
    let qp = builder().create().unwrap();
    assert_eq!(fake.create_flags(qp.qp_num()), 0x202);
    // SAFETY: nothing is received.
    let padded = unsafe { builder().pci_write_end_padding() };
    let padded = padded.flags(flags).create().unwrap();
    assert_eq!(fake.create_flags(padded.qp_num()), 0x202 | padding);
    fake.fail(Call::CreateQpEx, libc::EOPNOTSUPP);
    let err = builder().create().map(drop).unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::EOPNOTSUPP));
    assert!(err.to_string().contains("BLOCK_SELF_MULTICAST"), "{err}");
}

#[test]
fn queue_pair_refused_by_the_device_allocates_no_slots() {
    const DEPTH: u32 = 1 << 16;
    type Work = With<Buf, [u8; 1024]>;
    let fixture = Fixture::new();
    let cq = fixture.cq(2 * DEPTH);
    fixture.fake.fail(Call::CreateQp, libc::ENOMEM);
    let bytes = allocated_bytes(|| {
        let builder = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq);
        let builder = builder.max_send_wr(DEPTH).max_recv_wr(DEPTH);
        let refused = builder.create_for::<Work, Work>().map(drop);
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    });
    assert!(bytes < 1 << 16, "{bytes} bytes");
}
