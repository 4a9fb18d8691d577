//! Counters of completions.

use std::io::ErrorKind;

use softnic::Call;
use verbs::{
    QueuePair, Reset, Rts, WcStatus,
    completion_counter::{CompletionCounter, CountedOps, CountedUnit},
    op,
};

use crate::{
    fixture::{Fixture, error_text},
    provider::Fake,
};

fn counter(fixture: &Fixture, unit: CountedUnit) -> CompletionCounter {
    fixture.ctx.create_completion_counter(unit).unwrap()
}

#[test]
fn completions_are_counted_by_number_and_by_bytes() {
    let fixture = Fixture::new();
    let caps = fixture.ctx.query_completion_counter_caps().unwrap();
    assert_eq!((caps.max_value, caps.max_counters), (u64::MAX >> 1, 8));
    assert!(caps.ops.contains(CountedOps::SEND | CountedOps::RECV));
    assert!(!caps.ops.contains(CountedOps::REMOTE_RDMA_WRITE));
    let sends = counter(&fixture, CountedUnit::REQUESTS);
    let bytes = counter(&fixture, CountedUnit::BYTES);
    let mut cq = fixture.cq(16);
    let builder = fixture.pd.qp_builder(&cq, &cq).max_send_wr(4);
    let mut qp: QueuePair<verbs::Rc, Reset> = builder.create().unwrap();
    qp.count_completions(&sends, CountedOps::SEND).unwrap();
    qp.count_completions(&bytes, CountedOps::RECV).unwrap();
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.connect(qp);
    qp.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
    for _ in 0..3 {
        qp.post(op::Send::new(fixture.pd.alloc_buf(8).unwrap()))
            .unwrap();
    }
    fixture.fake.complete_receive(qp.qp_num(), b"seven..");
    for status in [
        WcStatus::SUCCESS,
        WcStatus::SUCCESS,
        WcStatus::RETRY_EXC_ERR,
    ] {
        fixture.fake.complete_send(qp.qp_num(), status);
    }
    assert_eq!(
        (sends.read().unwrap(), sends.read_errors().unwrap()),
        (2, 1)
    );
    assert_eq!(
        (bytes.read().unwrap(), bytes.read_errors().unwrap()),
        (7, 0)
    );
    // Completion queues get the completions all the same.
    assert_eq!(cq.poll().unwrap().count(), 4);

    sends.set(10).unwrap();
    sends.add(5).unwrap();
    sends.set_errors(20).unwrap();
    sends.add_errors(7).unwrap();
    assert_eq!(
        (sends.read().unwrap(), sends.read_errors().unwrap()),
        (15, 27)
    );
    assert_eq!(bytes.read().unwrap(), 7, "another one");
}

#[test]
fn counter_without_device_support_is_an_error() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Reset> = fixture.pd.qp_builder(&cq, &cq).create().unwrap();
    let sends = counter(&fixture, CountedUnit::REQUESTS);
    qp.count_completions(&sends, CountedOps::SEND | CountedOps::RDMA_WRITE)
        .unwrap();
    let mut fails = |counter, ops| qp.count_completions(counter, ops).unwrap_err();
    let err = fails(&sends, CountedOps::REMOTE_RDMA_READ);
    assert_eq!(
        error_text(&err),
        "`ibv_qp_attach_comp_cntr` failed (CountedOps(REMOTE_RDMA_READ)): \
         Operation not supported (os error 95)"
    );
    let err = fails(&sends, CountedOps::SEND | CountedOps::RECV);
    assert_eq!(err.raw_os_error(), Some(libc::EBUSY));
    let other = Fake::named("fake1").open();
    let foreign = other.create_completion_counter(CountedUnit::BYTES).unwrap();
    let err = fails(&foreign, CountedOps::RECV);
    assert_eq!(err.kind(), ErrorKind::InvalidInput);
    assert!(err.to_string().contains("of another device"), "{err}");
    let err = fixture.ctx.create_completion_counter(CountedUnit(9));
    assert_eq!(
        error_text(&err.unwrap_err()),
        "`ibv_create_comp_cntr` failed (CountedUnit(9)): Invalid argument (os error 22)"
    );
    for (call, done) in [
        (Call::SetCompCntr, CompletionCounter::set as fn(&_, _) -> _),
        (Call::SetErrCompCntr, CompletionCounter::set_errors),
        (Call::IncCompCntr, CompletionCounter::add),
        (Call::IncErrCompCntr, CompletionCounter::add_errors),
    ] {
        fixture.fake.fail(call, libc::EOPNOTSUPP);
        let err: verbs::Error = done(&sends, 3).unwrap_err();
        let expected = format!("`{call}` failed (3): Operation not supported (os error 95)");
        assert_eq!(error_text(&err), expected);
    }
    for (call, done) in [
        (Call::ReadCompCntr, CompletionCounter::read as fn(&_) -> _),
        (Call::ReadErrCompCntr, CompletionCounter::read_errors),
    ] {
        fixture.fake.fail(call, libc::EOPNOTSUPP);
        let err: verbs::Error = done(&sends).unwrap_err();
        assert_eq!(err.call(), call.name());
    }
    fixture.fake.fail(Call::QueryCompCntrCaps, libc::EOPNOTSUPP);
    assert!(fixture.ctx.query_completion_counter_caps().is_err());
}

#[test]
fn counter_outlives_its_queue_pairs() {
    for destroyed in [true, false] {
        let fixture = Fixture::new();
        let cq = fixture.cq(8);
        let mut qp: QueuePair<verbs::Rc, Reset> = fixture.pd.qp_builder(&cq, &cq).create().unwrap();
        let first = counter(&fixture, CountedUnit::REQUESTS);
        let second = counter(&fixture, CountedUnit::REQUESTS);
        qp.count_completions(&first, CountedOps::SEND).unwrap();
        qp.count_completions(&second, CountedOps::RECV).unwrap();
        drop((first, second));
        let live = || {
            let live = fixture.fake.live();
            live.iter().filter(|kind| **kind == "ibv_comp_cntr").count()
        };
        assert_eq!(live(), 2);
        assert!(!fixture.fake.calls().contains(&Call::DestroyCompCntr));
        if !destroyed {
            fixture.fake.fail(Call::DestroyQp, libc::EBUSY);
        }
        drop(qp);
        // A queue pair leaked after a failed destruction keeps the counters.
        assert_eq!(live(), if destroyed { 0 } else { 2 });
        drop(counter(&fixture, CountedUnit::BYTES));
        assert_eq!(live(), if destroyed { 0 } else { 2 });
    }
}
