//! RDMA writes, reads and atomics, inline data, and batches.

use std::{io::ErrorKind, time::Duration};

use verbs::{
    Buf, Completed, CompletionQueue, QueuePair, RemoteAccess, RemoteRegion, RemoteToken, Rts,
    SharedBuf, WcStatus, cq::WcOpcode, op, work::With,
};

use crate::loopback::{Fixture, expect_bytes};

const TEST_TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

type Pair<W> = (
    QueuePair<verbs::Rc, Rts, W, Buf>,
    QueuePair<verbs::Rc, Rts, W, Buf>,
);

fn pair<W: verbs::work::Gather + 'static>(fixture: &Fixture, cq: &CompletionQueue) -> Pair<W> {
    fixture.pair::<W, Buf>(cq, 8)
}

/// Waits for the next completion of the send queue of `qp`, and returns its status and its work.
fn sent<W>(cq: &mut CompletionQueue, qp: &mut QueuePair<verbs::Rc, Rts, W, Buf>) -> (WcStatus, W) {
    loop {
        let completions = cq.wait(TEST_TIMEOUT).unwrap();
        assert!(completions.len() > 0, "nothing has completed");
        for wc in completions {
            if wc.qp_id() == qp.id() && !wc.is_receive() {
                let Ok(Completed::Send(done)) = qp.complete(wc) else {
                    unreachable!()
                };
                return done.into_parts();
            }
        }
    }
}

fn remote(fixture: &Fixture, access: RemoteAccess) -> RemoteRegion {
    fixture.pd.alloc_remote(64, access).unwrap()
}

#[test]
fn write_changes_the_peers_memory() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, _b) = pair(&fixture, &cq);
    let region = remote(&fixture, RemoteAccess::WRITE);
    let target = region.token().slice(10..15).unwrap();
    a.post(op::Write::new(
        fixture.pd.register_buf(*b"hello").unwrap(),
        target,
    ))
    .unwrap();
    let (status, buf) = sent(&mut cq, &mut a);
    assert_eq!((status, &*buf), (WcStatus::SUCCESS, &b"hello"[..]));
    expect_bytes(|bytes| region.read(9, bytes), b"\0hello\0");
}

#[test]
fn write_with_immediate_data_completes_a_receive() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, mut b) = pair(&fixture, &cq);
    let region = remote(&fixture, RemoteAccess::WRITE);
    b.post_recv(fixture.pd.alloc_buf(1).unwrap()).unwrap();
    let work = fixture.pd.register_buf(*b"data").unwrap();
    a.post(op::Write::new(work, region.token()).imm_data(0xcafe))
        .unwrap();
    let mut completion = None;
    while completion.is_none() {
        for wc in cq.wait(TEST_TIMEOUT).unwrap() {
            wc.ok().unwrap();
            if wc.is_receive() {
                completion = Some((wc.opcode(), wc.imm_data(), wc.byte_len()));
                b.complete(wc).unwrap().ok().unwrap();
            }
        }
    }
    let expected = (Some(WcOpcode::RECV_RDMA_WITH_IMM), Some(0xcafe), 4);
    assert_eq!(completion, Some(expected));
    assert_eq!(region.load(0).to_ne_bytes()[..4], *b"data");
}

#[test]
fn read_fetches_the_peers_memory() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, _b) = pair(&fixture, &cq);
    let region = remote(&fixture, RemoteAccess::READ);
    region.write(3, b"fetched");
    let from = region.token().slice(3..10).unwrap();
    a.post(op::Read::new(fixture.pd.alloc_buf(7).unwrap(), from))
        .unwrap();
    let (status, buf) = sent(&mut cq, &mut a);
    assert_eq!((status, &*buf), (WcStatus::SUCCESS, &b"fetched"[..]));
}

#[test]
fn atomic_changes_memory_and_returns_the_former_value() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, _b) = pair(&fixture, &cq);
    let region = remote(&fixture, RemoteAccess::ATOMIC);
    region.store(8, 40);
    let number = region.token().slice(8..16).unwrap();
    let mut work = fixture.pd.alloc_buf(8).unwrap();
    let old = |work: &Buf| u64::from_ne_bytes(work[..].try_into().unwrap());

    a.post(op::FetchAdd::new(work, number, 2)).unwrap();
    work = sent(&mut cq, &mut a).1;
    assert_eq!((old(&work), region.load(8)), (40, 42));

    a.post(op::CompareSwap::new(work, number, 42, 7)).unwrap();
    work = sent(&mut cq, &mut a).1;
    assert_eq!((old(&work), region.load(8)), (42, 7));

    a.post(op::CompareSwap::new(work, number, 42, 9)).unwrap();
    work = sent(&mut cq, &mut a).1;
    assert_eq!(
        (old(&work), region.load(8)),
        (7, 7),
        "it was not what was expected"
    );
}

#[test]
fn rdma_without_granted_access_fails() {
    let fixture = Fixture::new();
    for (access, write) in [(RemoteAccess::READ, true), (RemoteAccess::WRITE, false)] {
        let mut cq = fixture.cq(64);
        let (mut a, _b) = pair(&fixture, &cq);
        let region = remote(&fixture, access);
        let work = fixture.pd.alloc_buf(8).unwrap();
        if write {
            a.post(op::Write::new(work, region.token())).unwrap();
        } else {
            a.post(op::Read::new(work, region.token())).unwrap();
        }
        let (status, _) = sent(&mut cq, &mut a);
        assert_eq!(status, WcStatus::REM_ACCESS_ERR, "{access:?}");
    }
}

#[test]
fn rkey_is_revoked_when_its_region_is_dropped() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, _b) = pair(&fixture, &cq);
    let region = remote(&fixture, RemoteAccess::WRITE);
    let (token, part) = (region.token(), region.slice(0..8));
    drop(region);
    let work = fixture.pd.alloc_buf(8).unwrap();
    a.post(op::Write::new(work, token)).unwrap();
    let (status, work) = sent(&mut cq, &mut a);
    assert_eq!(status, WcStatus::SUCCESS, "a part of it is still there");
    drop(part);
    a.post(op::Write::new(work, token)).unwrap();
    assert_eq!(sent(&mut cq, &mut a).0, WcStatus::REM_ACCESS_ERR);
}

#[test]
fn local_buffer_is_inaccessible_to_peers() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, _b) = pair(&fixture, &cq);
    let buf = fixture.pd.register_buf(*b"private!").unwrap();
    // On Soft-RoCE the RKey equals the LKey, so a peer can guess the key.
    let lkey = format!("{buf:?}");
    let lkey = lkey
        .split("lkey: ")
        .nth(1)
        .unwrap()
        .split(',')
        .next()
        .unwrap();
    let guess = RemoteToken {
        addr: buf.as_ptr() as u64,
        len: 8,
        rkey: lkey.parse().unwrap(),
    };
    a.post(op::Write::new(fixture.pd.alloc_buf(8).unwrap(), guess))
        .unwrap();
    assert_eq!(sent(&mut cq, &mut a).0, WcStatus::REM_ACCESS_ERR);
    assert_eq!(&*buf, b"private!");
}

#[test]
fn remote_memory_is_sent_and_received_into() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, mut b) = fixture.pair::<RemoteRegion, RemoteRegion>(&cq, 8);
    let (from, to) = (
        remote(&fixture, RemoteAccess::READ),
        remote(&fixture, RemoteAccess::READ),
    );
    from.write(0, b"shared with peers");
    b.post_recv(to.clone()).unwrap();
    a.post(op::Send::new(from.slice(0..17))).unwrap();
    let mut done = 0;
    while done < 2 {
        for wc in cq.wait(TEST_TIMEOUT).unwrap() {
            wc.ok().unwrap();
            done += 1;
            let qp = if wc.qp_id() == a.id() { &mut a } else { &mut b };
            qp.complete(wc).unwrap().ok().unwrap();
        }
    }
    let mut bytes = [0; 17];
    to.read(0, &mut bytes);
    assert_eq!(&bytes, b"shared with peers");
}

#[test]
fn inline_data_need_no_registered_memory() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, mut b) = pair::<With<(), u32>>(&fixture, &cq);
    let region = remote(&fixture, RemoteAccess::WRITE);
    b.post_recv(fixture.pd.alloc_buf(64).unwrap()).unwrap();
    {
        let text = String::from("gone before it is sent");
        a.post(op::Send::new(With::new((), 1)).inline(text.as_bytes()))
            .unwrap();
        a.post(op::Write::new(With::new((), 2), region.token()).inline(&text.as_bytes()[..4]))
            .unwrap();
    }
    let mut received = None;
    let mut contexts = Vec::new();
    while received.is_none() || contexts.len() < 2 {
        for wc in cq.wait(TEST_TIMEOUT).unwrap() {
            wc.ok().unwrap();
            if wc.qp_id() == a.id() {
                let Ok(Completed::Send(done)) = a.complete(wc) else {
                    unreachable!()
                };
                contexts.push(done.work().unwrap().context);
            } else {
                let Ok(Completed::Receive(done)) = b.complete(wc) else {
                    unreachable!()
                };
                received = Some(done.received().unwrap().to_vec());
            }
        }
    }
    assert_eq!(received.unwrap(), b"gone before it is sent");
    assert_eq!(contexts, [1, 2]);
    expect_bytes(|bytes| region.read(0, bytes), b"gone\0");
}

#[test]
fn excess_inline_data_is_refused_with_the_limit() {
    let fixture = Fixture::new();
    let cq = fixture.cq(64);
    let (mut a, _b) = pair::<()>(&fixture, &cq);
    let long = vec![0; 100_000];
    let refused = a.post(op::Send::new(()).inline(&long)).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
    assert!(
        refused.error.to_string().contains("100000 bytes inline"),
        "{}",
        refused.error
    );
}

#[test]
fn batch_posts_all_requests() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, mut b) = pair::<SharedBuf>(&fixture, &cq);
    let shared = fixture.pd.register_buf(*b"one of many").unwrap().freeze();
    for _ in 0..5 {
        b.post_recv(fixture.pd.alloc_buf(16).unwrap()).unwrap();
    }
    let mut batch = a.batch();
    for i in 0..5 {
        batch
            .push(op::Send::new(shared.clone()).imm_data(i))
            .unwrap();
    }
    assert_eq!(batch.len(), 5);
    batch.post().unwrap();
    let mut numbers = Vec::new();
    while numbers.len() < 5 || a.send_queue().in_flight() > 0 {
        for wc in cq.wait(TEST_TIMEOUT).unwrap() {
            wc.ok().unwrap();
            if wc.is_receive() {
                numbers.extend(wc.imm_data());
                b.complete(wc).unwrap().ok().unwrap();
            } else {
                a.complete(wc).unwrap().ok().unwrap();
            }
        }
    }
    assert_eq!(numbers, [0, 1, 2, 3, 4]);
    assert!(shared.thaw().is_some(), "all of the work has come back");
}

#[test]
fn dropped_or_forgotten_batch_posts_nothing() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, mut b) = pair::<SharedBuf>(&fixture, &cq);
    let shared = fixture.pd.register_buf(*b"x").unwrap().freeze();
    b.post_recv(fixture.pd.alloc_buf(16).unwrap()).unwrap();

    let mut batch = a.batch();
    batch.push(op::Send::new(shared.clone())).unwrap();
    drop(batch);
    assert_eq!(a.send_queue().in_flight(), 0);

    let mut batch = a.batch();
    batch.push(op::Send::new(shared.clone())).unwrap();
    #[expect(clippy::mem_forget, reason = "the point of the test")]
    std::mem::forget(batch);
    a.post(op::Send::new(shared.clone())).unwrap();
    assert_eq!(sent(&mut cq, &mut a).0, WcStatus::SUCCESS);
    assert_eq!(a.send_queue().in_flight(), 0);
    assert!(
        shared.thaw().is_none(),
        "what is forgotten is not given back"
    );
}

#[test]
fn batch_beyond_the_queue_is_refused() {
    let fixture = Fixture::new();
    let cq = fixture.cq(64);
    let (mut a, _b) = pair::<SharedBuf>(&fixture, &cq);
    let shared = fixture.pd.register_buf(*b"x").unwrap().freeze();
    let mut batch = a.batch();
    for _ in 0..8 {
        batch.push(op::Send::new(shared.clone())).unwrap();
    }
    let refused = batch.push(op::Send::new(shared.clone())).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::WouldBlock);
    assert_eq!(batch.len(), 8);
}
