//! Lossy, slow and cut networks, recordings, and virtual time.

use std::time::Duration;

use softnic::Fabric;
use verbs::{WcStatus, op};

use crate::end::Connected;

/// Sends numbered messages, and checks that each arrives once and in order.
fn exchange(this: &mut Connected, count: u32) {
    let (mut sent, mut acknowledged, mut posted, mut received) = (0, 0, 0, 0);
    while received < count || acknowledged < count {
        while posted < count && posted < received + 32 {
            this.qp_b
                .post_recv(this.b.pd.alloc_buf(3000).unwrap())
                .unwrap();
            posted += 1;
        }
        while sent < count && sent < acknowledged + 32 {
            let message = sent.to_le_bytes().repeat(700);
            let work = this.a.filled(&message);
            this.qp_a.post(op::Send::new(work)).unwrap();
            sent += 1;
        }
        for done in this.a.poll(&mut this.qp_a) {
            assert_eq!(done.status, WcStatus::SUCCESS);
            acknowledged += 1;
        }
        for done in this.b.poll(&mut this.qp_b) {
            assert_eq!(done.status, WcStatus::SUCCESS);
            assert!(done.buf[..done.len] == received.to_le_bytes().repeat(700));
            received += 1;
        }
    }
}

#[test]
fn lossy_network_loses_no_message() {
    let micros = Duration::from_micros;
    let fabric = Fabric::seeded(7)
        .loss(0.02)
        .duplication(0.02)
        .corruption(0.01)
        .delay(micros(1)..micros(30));
    exchange(&mut Connected::new(fabric), 200);
}

#[test]
fn cut_link_fails_a_connection_and_not_the_next_one() {
    let mut this = Connected::new(Fabric::new());
    this.fabric.cut(&this.hosts[0], &this.hosts[1]);
    let work = this.a.filled(b"lost");
    this.qp_a.post(op::Send::new(work)).unwrap();
    let failed = this.a.reap(&mut this.qp_a, 1).pop().unwrap();
    assert_eq!(failed.status, WcStatus::RETRY_EXC_ERR);
    this.fabric.heal(&this.hosts[0], &this.hosts[1]);
    let (new_a, new_b) = (this.a.qp(), this.b.qp());
    let (num_a, num_b) = (new_a.qp_num(), new_b.qp_num());
    this.qp_a = this.a.bring_up(new_a, (&this.b, num_b));
    this.qp_b = this.b.bring_up(new_b, (&this.a, num_a));
    exchange(&mut this, 3);
}

#[test]
fn recording_has_the_frames_as_they_were_sent() {
    let mut this = Connected::new(Fabric::new().record());
    exchange(&mut this, 3);
    let frames = this.fabric.recorded_frames().unwrap();
    let to_b = frames.iter().filter(|frame| {
        let bth = frame.decode().unwrap().bth;
        bth.dest_qp == this.qp_b.qp_num().get()
    });
    let messages = to_b.count();
    // 2800 bytes fit into one packet of the default MTU, or into several packets of a smaller MTU.
    assert!(messages >= 3, "{messages}");
}

#[test]
fn a_pcap_file_has_the_recorded_frames() {
    let mut this = Connected::new(Fabric::new().record());
    exchange(&mut this, 3);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.pcap");
    this.fabric.write_pcap(&file).unwrap();
    let bytes = std::fs::read(file).unwrap();
    let mut rest = &bytes[24..];
    for frame in this.fabric.recorded_frames().unwrap() {
        let (packet, after) = rest[16..].split_at(frame.bytes.len());
        assert_eq!(packet, frame.bytes);
        rest = after;
    }
    assert!(rest.is_empty());
}

#[test]
fn network_that_does_not_record_writes_nothing() {
    let refused = Fabric::new().write_pcap("/nonexistent/run.pcap");
    let kind = refused.unwrap_err().kind();
    assert_eq!(kind, std::io::ErrorKind::InvalidInput);
}

#[test]
fn manual_network_advances_in_steps_only() {
    let fabric = Fabric::manual(1).delay(Duration::from_secs(3)..Duration::from_secs(4));
    let mut this = Connected::new(fabric);
    this.qp_b
        .post_recv(this.b.pd.alloc_buf(64).unwrap())
        .unwrap();
    let work = this.a.filled(b"slow");
    this.qp_a.post(op::Send::new(work)).unwrap();
    assert!(this.b.poll(&mut this.qp_b).is_empty());
    assert_eq!(this.fabric.now(), Duration::ZERO);
    let mut steps = 0;
    let received = loop {
        if let Some(done) = this.b.poll(&mut this.qp_b).pop() {
            break done;
        }
        assert!(this.fabric.step(), "nothing is left to happen");
        steps += 1;
    };
    assert_eq!(&received.buf[..received.len], b"slow");
    assert!(
        this.fabric.now() >= Duration::from_secs(3),
        "in virtual time"
    );
    assert!(steps > 1);
}

/// Number of frames for messages of several packets each way, one after another.
fn frames_of_messages(fabric: Fabric) -> u64 {
    let mut this = Connected::new(fabric);
    for _ in 0..10 {
        let work = this.b.filled(&[0; 20_000]);
        this.qp_b.post_recv(work).unwrap();
        let work = this.a.filled(&[7; 20_000]);
        this.qp_a.post(op::Send::new(work)).unwrap();
        while this.fabric.step() {}
        let sent = this.a.poll(&mut this.qp_a).pop().unwrap();
        assert_eq!(sent.status, WcStatus::SUCCESS);
        let received = this.b.poll(&mut this.qp_b).pop().unwrap();
        assert_eq!(received.buf[..], [7; 20_000]);
    }
    this.fabric.traffic().frames
}

#[test]
fn link_in_order_needs_no_retransmission() {
    let delay = Duration::from_micros(5)..Duration::from_micros(80);
    let reordered = Fabric::manual(7).delay(delay.clone());
    let in_order = Fabric::manual(7).delay(delay).in_order();
    // Without delays, there are more acknowledgements.
    let frames = frames_of_messages(Fabric::manual(7));
    assert!(frames_of_messages(in_order) <= frames);
    assert!(frames_of_messages(reordered) > frames);
}

#[test]
fn timeouts_of_virtual_time_take_no_real_time() {
    let mut this = Connected::new(Fabric::manual(1));
    this.fabric.cut(&this.hosts[0], &this.hosts[1]);
    let work = this.a.filled(b"lost");
    this.qp_a.post(op::Send::new(work)).unwrap();
    while this.fabric.step() {}
    let failed = this.a.poll(&mut this.qp_a).pop().unwrap();
    assert_eq!(failed.status, WcStatus::RETRY_EXC_ERR);
    // 4.096 µs · 2^8 each, eight times.
    assert_eq!(this.fabric.now(), Duration::from_nanos(8 * (4096 << 8)));
}
