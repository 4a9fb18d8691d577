//! Queries and settings of a queue pair besides sending and receiving.

use std::{thread, time::Duration};

use verbs::{
    Buf, Completed, Init, QueuePair, RemoteAccess, Reset, Rtr, Rts, Uc, Ud, WcStatus,
    ah::AddressVector,
    attr::Mtu,
    event::EventType,
    op,
    qp::{
        Attributes, MigState, Psn, QpAttr, QpCap, QpNum, QpState, Queued, RnrTimer, Sqd, Transport,
        WrOpcode,
    },
};

use crate::loopback::Fixture;

const TEST_TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

fn create<T: Queued>(fixture: &Fixture) -> QueuePair<T, Reset> {
    let cq = fixture.cq(64);
    let builder = fixture.pd.qp_builder(&cq, &cq);
    let builder = builder.max_send_wr(5).max_recv_wr(7).max_send_sge(2);
    builder
        .max_recv_sge(3)
        .max_inline_data(20)
        .create()
        .unwrap()
}

/// Checks the attributes of a new queue pair.
fn check_new<T: Transport>(qp: &QueuePair<T, Reset>) {
    let attr = qp.query().unwrap();
    assert_eq!(
        (attr.state, attr.cur_state),
        (QpState::RESET, QpState::RESET)
    );
    assert_eq!(attr.dest_qp_num, QpNum::default());
    let QpCap {
        max_send_wr,
        max_recv_wr,
        max_send_sge,
        max_recv_sge,
        max_inline_data,
    } = attr.cap;
    assert!(max_send_wr >= 5 && max_recv_wr >= 7, "{attr:?}");
    assert!(max_send_sge >= 2 && max_recv_sge >= 3, "{attr:?}");
    assert!(max_inline_data >= 20, "{attr:?}");
    assert!(!attr.signals_all && !attr.sq_draining);
    // This side's capacities are the requested ones, and the granted inline size.
    let (send, receive) = (qp.send_queue(), qp.receive_queue());
    assert_eq!((send.capacity(), send.max_sge()), (5, 2));
    assert_eq!((receive.capacity(), receive.max_sge()), (7, 3));
    assert_eq!(send.max_inline_data(), max_inline_data as usize);
}

#[test]
fn query_rc_qp() {
    let fixture = Fixture::new();
    let qp = create::<verbs::Rc>(&fixture);
    check_new(&qp);
    let peer = create::<verbs::Rc>(&fixture);
    let (psn, address_vector) = (Psn::from_low_bits(0xabc), fixture.address_vector());
    let access = RemoteAccess::READ | RemoteAccess::WRITE;
    let qp = qp
        .to_init(&Attributes::<verbs::Rc, Init>::new(1).access(access))
        .unwrap();
    assert_eq!(qp.query().unwrap().state, QpState::INIT);
    let timer = RnrTimer::new(14).unwrap();
    let rtr = Attributes::<verbs::Rc, Rtr>::new(&address_vector, peer.qp_num(), psn).mtu(Mtu::B512);
    let qp = qp.to_rtr(&rtr.min_rnr_timer(timer)).unwrap();
    let qp = qp
        .to_rts(&Attributes::<verbs::Rc, Rts>::new(psn).max_rd_atomic(3))
        .unwrap();
    let attr = qp.query().unwrap();
    assert_eq!(attr.state, QpState::RTS);
    assert_eq!((attr.path_mtu, attr.access), (Mtu::B512, access));
    assert_eq!((attr.rq_psn, attr.sq_psn), (psn, psn));
    assert_eq!((attr.dest_qp_num, attr.port_num), (peer.qp_num(), 1));
    assert_eq!((attr.timeout, attr.retry_count, attr.rnr_retry), (14, 7, 7));
    assert_eq!(
        (attr.max_rd_atomic, attr.min_rnr_timer),
        (4, 14),
        "{attr:?}"
    );
    let QpAttr { path, .. } = attr;
    let route = |vector: AddressVector| vector.grh.map(|grh| (grh.dgid, grh.sgid_index));
    assert_eq!(route(path), route(address_vector));
    assert_eq!(attr.path_mig_state, MigState::MIGRATED);
}

#[test]
fn query_uc_qp() {
    let fixture = Fixture::new();
    check_new(&create::<Uc>(&fixture));
}

#[test]
fn query_ud_qp() {
    let fixture = Fixture::new();
    let qp = create::<Ud>(&fixture);
    check_new(&qp);
    let qp = qp.to_init(&Attributes::<Ud, Init>::new(1, 0x1234)).unwrap();
    let attr = qp.query().unwrap();
    assert_eq!((attr.state, attr.qkey), (QpState::INIT, 0x1234));
}

#[test]
fn modify_ud_qp() {
    let fixture = Fixture::new();
    let psn = Psn::default();
    let qp = create::<Ud>(&fixture);
    let mut qp = qp.to_init(&Attributes::<Ud, Init>::new(1, 1)).unwrap();
    qp.modify(&Attributes::<Ud, Init>::unchanged().qkey(2))
        .unwrap();
    assert_eq!(qp.query().unwrap().qkey, 2);
    let qp = qp.to_rtr(&Attributes::<Ud, Rtr>::new().qkey(3)).unwrap();
    let mut qp = qp.to_rts(&Attributes::<Ud, Rts>::new(psn)).unwrap();
    qp.modify(&Attributes::<Ud, Rts>::unchanged().qkey(4))
        .unwrap();
    let attr = qp.query().unwrap();
    assert_eq!((attr.state, attr.qkey), (QpState::RTS, 4));
}

#[test]
fn query_data_in_order() {
    // Soft-RoCE promises nothing.
    let fixture = Fixture::new();
    let qp = create::<verbs::Rc>(&fixture);
    for opcode in [WrOpcode::SEND, WrOpcode::RDMA_WRITE, WrOpcode::RDMA_READ] {
        assert!(!qp.data_in_order(opcode), "{opcode:?}");
    }
}

#[test]
fn modify_within_state_changes_attributes() {
    let fixture = Fixture::new();
    let cq = fixture.cq(64);
    let (mut qp, _peer) = fixture.pair::<Buf, Buf>(&cq, 4);
    let timer = RnrTimer::new(3).unwrap();
    let changed = Attributes::<verbs::Rc, Rts>::unchanged().access(RemoteAccess::READ);
    qp.modify(&changed.min_rnr_timer(timer).cur_state(QpState::RTS))
        .unwrap();
    let attr = qp.query().unwrap();
    assert_eq!((attr.access, attr.min_rnr_timer), (RemoteAccess::READ, 3));
    assert_eq!(attr.state, QpState::RTS);
}

#[test]
fn transition_from_another_state_than_expected_is_refused() {
    let fixture = Fixture::new();
    let cq = fixture.cq(64);
    let (mut qp, _peer) = fixture.pair::<Buf, Buf>(&cq, 4);
    for expected in [QpState::RESET, QpState::INIT, QpState::RTR, QpState::ERR] {
        let changed = Attributes::<verbs::Rc, Rts>::unchanged().access(RemoteAccess::READ);
        let err = qp.modify(&changed.cur_state(expected)).unwrap_err();
        assert_eq!(err.raw_os_error(), Some(libc::EINVAL), "{expected:?}");
    }
    assert!(
        qp.query().unwrap().access.contains(RemoteAccess::WRITE),
        "nothing has changed"
    );
}

#[test]
fn drained_send_queue_resumes() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (qp, mut peer) = fixture.pair::<Buf, Buf>(&cq, 4);
    let events = fixture.ctx.async_events().unwrap();
    let drained = Attributes::<verbs::Rc, Sqd>::new().notify_when_drained();
    let mut qp = qp.to_sqd(&drained).unwrap();
    let event = events.wait_timeout(TEST_TIMEOUT.unwrap()).unwrap().unwrap();
    assert_eq!(event.event_type, EventType::SQ_DRAINED);
    let attr = qp.query().unwrap();
    assert_eq!((attr.state, attr.sq_draining), (QpState::SQD, false));
    qp.modify(&Attributes::<verbs::Rc, Sqd>::unchanged().max_dest_rd_atomic(2))
        .unwrap();

    // Requests posted now wait.
    for _ in 0..2 {
        peer.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
    }
    let message = |bytes: &[u8]| op::Send::new(fixture.pd.register_buf(bytes.to_vec()).unwrap());
    qp.post(message(b"waited")).unwrap();
    thread::sleep(Duration::from_millis(50));
    assert_eq!(cq.poll().unwrap().len(), 0);
    let mut qp = qp
        .to_rts(&Attributes::<verbs::Rc, Rts>::unchanged())
        .unwrap();
    // Soft-RoCE of kernel 6.1 resumes waiting requests when the next one is posted.
    qp.post(message(b"next")).unwrap();
    let (mut sent, mut received) = (0, Vec::new());
    while sent < 2 || received.len() < 2 {
        let completions = cq.wait(TEST_TIMEOUT).unwrap();
        assert!(completions.len() > 0, "the messages did not go on");
        for wc in completions {
            wc.ok().unwrap();
            if wc.qp_id() == qp.id() {
                qp.complete(wc).unwrap().ok().unwrap();
                sent += 1;
            } else if let Completed::Receive(done) = peer.complete(wc).unwrap() {
                received.push(done.received().unwrap().to_vec());
            }
        }
    }
    assert_eq!(received, [&b"waited"[..], b"next"]);
}

#[test]
fn transition_of_a_failed_queue_pair_names_its_state() {
    let fixture = Fixture::new();
    let cq = fixture.cq(64);
    let (mut qp, _peer) = fixture.pair::<Buf, Buf>(&cq, 4);
    qp.to_error().unwrap();
    assert_eq!(qp.query().unwrap().state, QpState::ERR);
    let refused = qp.to_sqd(&Attributes::<verbs::Rc, Sqd>::new()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "`ibv_modify_qp` failed (Rc Rts to Sqd, but it is in ERR): Invalid argument (os error 22)"
    );
}

/// The peer's queue pair is destroyed.
#[test]
fn explanation_of_exhausted_retries_names_peer_and_time() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut qp, peer) = fixture.pair::<Buf, Buf>(&cq, 2);
    let (number, (index, gid)) = (peer.qp_num(), fixture.gid());
    drop(peer);
    let buf = fixture.pd.register_buf(*b"hello").unwrap();
    qp.post(op::Send::new(buf)).unwrap();
    let wc = cq.wait(TEST_TIMEOUT).unwrap().next().unwrap();
    let explained = qp.explain(&wc.ok().unwrap_err());
    assert_eq!(explained.failed.status, WcStatus::RETRY_EXC_ERR);
    assert_eq!(explained.peer_gid(), Some(gid));
    let attempts = explained.failed.attempts.unwrap();
    assert_eq!(attempts.dest_qp_num, number);
    let transmissions = u32::from(attempts.retry_count) + 1;
    let time = attempts.ack_timeout.unwrap() * transmissions;
    assert_eq!(explained.min_retry_time(), Some(time));
    let text = explained.to_string();
    for line in [
        format!(
            "\n  queue pair {} in the state ERR, port 1, GID index {index}\n",
            qp.qp_num()
        ),
        format!("\n  peer: GID {gid}, queue pair {number}\n"),
        format!("\n  given up after at least {time:.1?}: {transmissions} transmissions"),
    ] {
        assert!(text.contains(&line), "{line}{text}");
    }
}

#[test]
fn explanation_of_a_refused_access_names_the_memory() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (qp, _peer) = fixture.pair::<Buf, Buf>(&cq, 2);
    let region = fixture.pd.alloc_remote(64, RemoteAccess::READ).unwrap();
    let buf = fixture.pd.register_buf(*b"hello").unwrap();
    let (mut sender, _receiver) = qp.split();
    sender.post(op::Write::new(buf, region.token())).unwrap();
    let wc = cq.wait(TEST_TIMEOUT).unwrap().next().unwrap();
    let explained = sender.explain(&wc.ok().unwrap_err());
    assert_eq!(explained.failed.status, WcStatus::REM_ACCESS_ERR);
    let text = explained.accessing(region.token()).to_string();
    let rkey = region.token().rkey;
    assert!(text.ends_with(&format!(", with RKey {rkey:#x}")), "{text}");
    assert!(
        text.contains(&format!("peer: GID {}", fixture.gid().1)),
        "{text}"
    );
}
