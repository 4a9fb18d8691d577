//! The flight recorder: the last posts and completions of a queue pair.

use softnic::Fabric;
use verbs::{RemoteToken, WcStatus, op};

use crate::end::{Connected, Connection, End};

/// Events kept of each queue.
const EVENTS: usize = 4;

/// A connection whose first end records.
fn recorded(fabric: Fabric) -> Connected {
    let mut this = Connected::new(fabric);
    let builder = this.a.pd.qp_builder::<verbs::Rc>(&this.a.cq, &this.a.cq);
    let builder = builder.max_send_wr(8).max_recv_wr(8);
    let qp_a = builder.flight_recorder(EVENTS).create().unwrap();
    let qp_b = this.b.qp();
    let (num_a, num_b) = (qp_a.qp_num(), qp_b.qp_num());
    this.qp_a = this.a.bring_up(qp_a, (&this.b, num_b));
    this.qp_b = this.b.bring_up(qp_b, (&this.a, num_a));
    this
}

/// The lines of the record without the times.
fn lines(qp: &Connection) -> Vec<String> {
    let text = qp.flight_record().to_string();
    let lines = text.lines().skip(1);
    let without_time = |line: &str| line.trim().split_once(' ').unwrap().1.to_owned();
    lines.map(without_time).collect()
}

fn write(end: &End, token: RemoteToken) -> op::Write<verbs::Buf> {
    op::Write::new(end.filled(b"hello"), token)
}

#[test]
fn record_of_a_failed_request_has_the_posts_before() {
    let Connected {
        // Dropped last.
        fabric: _fabric,
        mut a,
        b,
        mut qp_a,
        qp_b: _qp_b,
        ..
    } = recorded(Fabric::new());
    let region = b.pd.alloc_remote(64, verbs::RemoteAccess::WRITE).unwrap();
    let token = region.token();
    let wrong = RemoteToken {
        rkey: !token.rkey,
        ..token
    };
    qp_a.post_recv(a.filled(&[0; 64])).unwrap();
    qp_a.post(write(&a, token)).unwrap();
    let written = a.reap(&mut qp_a, 1);
    assert_eq!(written[0].status, WcStatus::SUCCESS);
    qp_a.post(write(&a, wrong)).unwrap();
    let done = a.reap(&mut qp_a, 2);
    assert_eq!(done[0].status, WcStatus::REM_ACCESS_ERR);
    let expected = [
        "receive #0: posted, 64 bytes",
        "send #0: posted Write<Buf>, 5 bytes",
        "send #0: done",
        "send #1: posted Write<Buf>, 5 bytes",
        "send #1: REM_ACCESS_ERR",
        "receive #0: WR_FLUSH_ERR",
    ];
    assert_eq!(lines(&qp_a), expected);
    let title = format!("last events of queue pair {}:\n", qp_a.qp_num());
    assert!(qp_a.flight_record().to_string().starts_with(&title));
    assert_eq!(qp_a.send_queue().flight_record().len(), 4);
    assert_eq!(qp_a.receive_queue().flight_record().len(), 2);
}

#[test]
fn record_keeps_the_last_events_of_each_queue() {
    let Connected {
        // Dropped last.
        fabric: _fabric,
        mut a,
        b,
        mut qp_a,
        qp_b: _qp_b,
        ..
    } = recorded(Fabric::new());
    let region = b.pd.alloc_remote(64, verbs::RemoteAccess::WRITE).unwrap();
    qp_a.post_recv(a.filled(&[0; 8])).unwrap();
    for _ in 0..5 {
        qp_a.post(write(&a, region.token())).unwrap();
        a.reap(&mut qp_a, 1);
    }
    let expected = [
        "receive #0: posted, 8 bytes",
        "send #3: posted Write<Buf>, 5 bytes",
        "send #3: done",
        "send #4: posted Write<Buf>, 5 bytes",
        "send #4: done",
    ];
    assert_eq!(lines(&qp_a), expected);
}

#[test]
fn record_has_the_requests_of_batches() {
    let Connected {
        // Dropped last.
        fabric: _fabric,
        mut a,
        b,
        mut qp_a,
        qp_b: _qp_b,
        ..
    } = recorded(Fabric::new());
    let region = b.pd.alloc_remote(64, verbs::RemoteAccess::WRITE).unwrap();
    let mut batch = qp_a.batch();
    batch.push(write(&a, region.token()).unsignaled()).unwrap();
    drop(batch);
    let mut batch = qp_a.batch();
    batch.push(write(&a, region.token())).unwrap();
    batch.post().map_err(|refused| refused.error).unwrap();
    a.reap(&mut qp_a, 1);
    let mut batch = qp_a.recv_batch();
    batch.push(a.filled(&[0; 8])).unwrap();
    drop(batch);
    let expected = [
        "send #0: posted Write<Buf>, 5 bytes, unsignaled",
        "send #0: not posted: a batch of 1 dropped",
        "send #0: posted Write<Buf>, 5 bytes",
        "send #0: done",
        "receive #0: posted, 8 bytes",
        "receive #0: not posted: a batch of 1 dropped",
    ];
    assert_eq!(lines(&qp_a), expected);
}

#[test]
fn queue_pair_without_recorder_has_an_empty_record() {
    let Connected {
        // Dropped last.
        fabric: _fabric,
        a,
        mut qp_a,
        qp_b: _qp_b,
        ..
    } = Connected::new(Fabric::new());
    qp_a.post_recv(a.filled(&[0; 8])).unwrap();
    let record = qp_a.flight_record();
    assert!(record.is_empty());
    let text = format!("no events of queue pair {} are recorded", qp_a.qp_num());
    assert_eq!(record.to_string(), text);
}
