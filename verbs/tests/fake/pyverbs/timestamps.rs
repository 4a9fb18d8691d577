//! `test_phc_timestamp.py`: messages whose completions have times, by the device's clock or by the time of day

use ibverbs_sys::ibv_wc_opcode;
use verbs::{
    Completed, QueuePair, Result, Rts, WcStatus,
    cq::{ExtendedCompletion, WcFields},
    op,
};

use super::traffic::ROUNDS;
use crate::{
    fixture::Fixture,
    provider::{Extra, wc},
};

/// Sends messages, and reads the time of each completion: here the number of the message.
fn timed(fields: WcFields, time: impl Fn(&ExtendedCompletion<'_>) -> Result<u64>) {
    let fixture = Fixture::new();
    let mut cq = fixture.ctx.cq_ex_builder(8).with(fields).create().unwrap();
    let qp = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq);
    let qp = qp.max_send_wr(2).max_recv_wr(2).create().unwrap();
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.connect(qp);
    for round in (1..=ROUNDS).map(u64::from) {
        qp.post(op::Send::new(fixture.pd.alloc_buf(64).unwrap()))
            .unwrap();
        let posted = fixture.fake.sends(qp.qp_num())[0].wr_id;
        let mut done = wc(posted, ibv_wc_opcode::IBV_WC_SEND);
        done.qp_num = qp.qp_num().get();
        let extra = Extra {
            timestamp: round,
            wallclock_ns: 1000 + round,
            ..Extra::default()
        };
        fixture.fake.push_extended(cq.as_raw(), done, extra);
        let mut polled = cq.poll().unwrap().unwrap();
        let wc = polled.next().unwrap().unwrap();
        assert_eq!(time(&wc).unwrap(), round);
        let Ok(Completed::Send(done)) = qp.complete(wc.into_work_completion()) else {
            unreachable!("of a send");
        };
        assert_eq!(done.status(), WcStatus::SUCCESS);
    }
}

#[test]
fn timestamp_free_running_rc_traffic() {
    timed(WcFields::COMPLETION_TIMESTAMP, |wc| wc.completion_ts());
}

#[test]
fn timestamp_real_time_rc_traffic() {
    timed(WcFields::COMPLETION_TIMESTAMP_WALLCLOCK, |wc| {
        Ok(wc.completion_wallclock_ns()? - 1000)
    });
}
