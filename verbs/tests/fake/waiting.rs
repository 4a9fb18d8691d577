//! Waiting for completions and events, in every way there is.

use std::{future::Future, io::ErrorKind, os::fd::AsFd, pin::pin, task::Poll, time::Duration};

use ibverbs_sys::{ibv_event_type, ibv_wc_opcode};
use softnic::Call;
use tokio::runtime;
use verbs::{
    cq::{CqKey, Notify},
    event::EventType,
    fd::wait_readable,
};

use crate::{fixture::Fixture, provider::wc};

const SEND: ibv_wc_opcode = ibv_wc_opcode::IBV_WC_SEND;
const SHORT: Option<Duration> = Some(Duration::from_millis(20));

#[test]
fn armed_cq_notifies_of_the_next_completion() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let readable = |cq: &verbs::CompletionQueue, timeout| {
        wait_readable("poll", cq.notify_fd().unwrap(), timeout).unwrap()
    };
    assert!(cq.poll_or_arm().unwrap().is_none());
    assert!(!readable(&cq, SHORT));
    fixture.fake.push(&cq, wc(1, SEND));
    assert!(readable(&cq, None));
    assert_eq!(cq.poll_or_arm().unwrap().unwrap().count(), 1);
    // The next poll takes the notification, and arms the queue again.
    assert!(cq.poll_or_arm().unwrap().is_none());
    assert!(!readable(&cq, SHORT));
    // Two completions without a poll in between cause one notification.
    fixture.fake.push(&cq, wc(2, SEND));
    fixture.fake.push(&cq, wc(3, SEND));
    assert!(readable(&cq, None));
    assert_eq!(cq.poll_or_arm().unwrap().unwrap().count(), 2);
    assert!(cq.poll_or_arm().unwrap().is_none());
    assert!(!readable(&cq, SHORT));
}

/// Arming a queue is a system call on devices of the kernel.
#[test]
fn queue_with_a_requested_event_is_not_armed_again() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    // The second call fails: it comes after the event of the first.
    fixture.fake.fail_after(1, Call::ReqNotifyCq, libc::EIO);
    for _ in 0..3 {
        assert!(cq.poll_or_arm().unwrap().is_none());
    }
    assert_eq!(cq.wait(SHORT).unwrap().count(), 0);
    fixture.fake.push(&cq, wc(1, SEND));
    assert_eq!(cq.wait(None).unwrap().count(), 1);
    assert_eq!(
        cq.poll_or_arm().unwrap_err().raw_os_error(),
        Some(libc::EIO)
    );
    assert!(cq.poll_or_arm().unwrap().is_none());
    // Events requested by the program are discarded all the same.
    cq.req_notify(Notify::Next).unwrap();
    fixture.fake.push(&cq, wc(4, SEND));
    cq.req_notify(Notify::Next).unwrap();
    fixture.fake.push(&cq, wc(5, SEND));
    assert_eq!(cq.poll_or_arm().unwrap().unwrap().count(), 2);
    assert!(cq.poll_or_arm().unwrap().is_none());
    assert!(!wait_readable("poll", cq.notify_fd().unwrap(), SHORT).unwrap());
    fixture.fake.push(&cq, wc(6, SEND));
    assert_eq!(cq.wait(None).unwrap().count(), 1);
}

#[test]
fn unread_completions_are_returned_by_wait() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    for wr_id in 0..3 {
        fixture.fake.push(&cq, wc(wr_id, SEND));
    }
    assert!(cq.poll_or_arm().unwrap().unwrap().next().is_some());
    assert_eq!(cq.poll_or_arm().unwrap().unwrap().len(), 2);
    assert_eq!(cq.wait(SHORT).unwrap().count(), 2);
    assert_eq!(cq.wait(SHORT).unwrap().count(), 0);
}

#[test]
fn spurious_notification_does_not_end_the_wait() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    cq.req_notify(Notify::Next).unwrap();
    fixture.fake.push(&cq, wc(1, SEND));
    assert_eq!(cq.poll().unwrap().count(), 1);
    assert!(wait_readable("poll", cq.notify_fd().unwrap(), None).unwrap());
    assert_eq!(cq.wait(SHORT).unwrap().count(), 0);
}

#[test]
fn wait_on_cq_without_channel_is_refused() {
    let fixture = Fixture::new();
    let mut cq = fixture.ctx.create_cq(8).unwrap();
    assert!(cq.notify_fd().is_none());
    let err = cq.poll_or_arm().unwrap_err();
    assert_eq!(
        err.to_string(),
        "`ibv_req_notify_cq` failed: the queue has no completion channel"
    );
    let err = cq.wait(None).unwrap_err();
    assert_eq!(
        err.to_string(),
        "`CompletionQueue::wait` failed: \
         the queue has no channel of its own; build it with `waitable`"
    );
    let refused = verbs::tokio::CompletionQueue::new(cq).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Unsupported);
    assert_eq!(refused.value.capacity(), 8);
}

#[test]
fn cqs_of_one_channel_share_a_wait() {
    let fixture = Fixture::new();
    let channel = fixture.ctx.create_comp_channel().unwrap();
    let mut cqs = [0, 1, 2].map(|key| {
        let builder = fixture.ctx.cq_builder(4).channel(&channel, CqKey(key));
        builder.create().unwrap()
    });
    for cq in &mut cqs {
        assert!(cq.poll_or_arm().unwrap().is_none());
        assert!(cq.notify_fd().is_none());
    }
    assert!(!wait_readable("poll", channel.as_fd(), SHORT).unwrap());
    fixture.fake.push(&cqs[2], wc(1, SEND));
    fixture.fake.push(&cqs[0], wc(1, SEND));
    for expected in [2, 0] {
        let CqKey(key) = channel.wait().unwrap();
        assert_eq!(key, expected);
        assert_eq!(cqs[key].poll_or_arm().unwrap().unwrap().count(), 1);
        assert!(cqs[key].poll_or_arm().unwrap().is_none());
    }
    assert_eq!(channel.try_next().unwrap(), None);
}

/// Runs a future on a runtime of this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut builder = runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap().block_on(future)
}

/// Polls a future once, without a result, and drops the future.
async fn give_up<T>(future: impl Future<Output = T>) {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| {
        assert!(future.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
}

#[test]
fn cancelled_async_wait_loses_no_completion() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    block_on(async {
        let mut cq = verbs::tokio::CompletionQueue::new(cq).unwrap();
        for round in 0..100 {
            give_up(cq.wait()).await;
            let handle = cq.get_ref().handle().clone();
            let push = async {
                tokio::task::yield_now().await;
                fixture.fake.push(&handle, wc(round, SEND));
                fixture.fake.push(&handle, wc(round, SEND));
            };
            let (completed, ()) = tokio::join!(
                async {
                    let mut completions = cq.wait().await.unwrap();
                    completions.next().is_some()
                },
                push
            );
            assert!(completed);
            // The other is still there.
            assert_eq!(cq.wait().await.unwrap().count(), 1);
        }
        assert_eq!(cq.into_inner().wait(SHORT).unwrap().count(), 0);
    });
}

#[test]
fn completion_between_two_waits_is_not_lost() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    block_on(async {
        let mut cq = verbs::tokio::CompletionQueue::new(cq).unwrap();
        give_up(cq.wait()).await;
        fixture.fake.push(cq.get_ref(), wc(1, SEND));
        // The notification has reached the runtime, and no task waits.
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(cq.get_mut().poll().unwrap().count(), 1);
        give_up(cq.wait()).await;
        fixture.fake.push(cq.get_ref(), wc(2, SEND));
        assert_eq!(cq.wait().await.unwrap().count(), 1);
    });
}

#[test]
fn failed_async_wait_is_reported_and_the_next_works() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    block_on(async {
        let mut cq = verbs::tokio::CompletionQueue::new(cq).unwrap();
        fixture.fake.poll_returns(cq.get_ref(), -1);
        assert!(cq.wait().await.is_err());
        fixture.fake.fail(Call::ReqNotifyCq, libc::EIO);
        let err = cq.wait().await.unwrap_err();
        assert_eq!(err.raw_os_error(), Some(libc::EIO));
        fixture.fake.push(cq.get_ref(), wc(1, SEND));
        assert_eq!(cq.wait().await.unwrap().count(), 1);
    });
}

#[test]
fn async_wait_on_extended_cq_returns_completions() {
    let fixture = Fixture::new();
    let cq = fixture.ctx.cq_ex_builder(4).waitable().create().unwrap();
    block_on(async {
        let mut cq = verbs::tokio::ExtendedCq::new(cq).unwrap();
        give_up(cq.wait()).await;
        fixture.fake.push(cq.get_ref(), wc(1, SEND));
        fixture.fake.push(cq.get_ref(), wc(2, SEND));
        let mut polled = cq.wait().await.unwrap();
        assert!(polled.next().unwrap().is_some());
        assert!(polled.next().unwrap().is_some());
        assert!(polled.next().unwrap().is_none());
        give_up(cq.wait()).await;
        assert!(cq.get_mut().poll().unwrap().is_none());
        assert!(cq.into_inner().notify_fd().is_some());
    });
    let cq = fixture.ctx.cq_ex_builder(4).create().unwrap();
    let refused = verbs::tokio::ExtendedCq::new(cq).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Unsupported);
}

#[test]
fn async_wait_on_shared_channel_returns_events() {
    let fixture = Fixture::new();
    let channel = fixture.ctx.create_comp_channel().unwrap();
    let mut cqs = [0, 1].map(|key| {
        let builder = fixture.ctx.cq_builder(4).channel(&channel, CqKey(key));
        builder.create().unwrap()
    });
    block_on(async {
        let channel = verbs::tokio::CompletionChannel::new(channel).unwrap();
        for cq in &mut cqs {
            assert!(cq.poll_or_arm().unwrap().is_none());
        }
        give_up(channel.wait()).await;
        fixture.fake.push(&cqs[1], wc(1, SEND));
        fixture.fake.push(&cqs[0], wc(1, SEND));
        // Two tasks at once, with one event each.
        let (a, b) = tokio::join!(channel.wait(), channel.wait());
        assert_eq!((a.unwrap(), b.unwrap()), (CqKey(1), CqKey(0)));
        assert_eq!(channel.into_inner().try_next().unwrap(), None);
    });
}

#[test]
fn async_wait_returns_asynchronous_events() {
    let fixture = Fixture::new();
    block_on(async {
        let events = fixture.ctx.async_events().unwrap();
        let events = verbs::tokio::AsyncEvents::new(events).unwrap();
        give_up(events.wait()).await;
        fixture.fake.raise(ibv_event_type::IBV_EVENT_LID_CHANGE, 1);
        fixture.fake.raise(ibv_event_type::IBV_EVENT_PORT_ERR, 1);
        assert_eq!(
            events.wait().await.unwrap().event_type,
            EventType::LID_CHANGE
        );
        // A second `AsyncEvents`, with a descriptor of its own, for the same events.
        let again = fixture.ctx.async_events().unwrap();
        let again = verbs::tokio::AsyncEvents::new(again).unwrap();
        fixture.fake.raise(ibv_event_type::IBV_EVENT_SM_CHANGE, 1);
        assert_eq!(again.wait().await.unwrap().event_type, EventType::PORT_ERR);
        let events = events.into_inner();
        assert_eq!(
            events.try_next().unwrap().unwrap().event_type,
            EventType::SM_CHANGE
        );
    });
}

#[test]
fn busy_queue_yields_to_other_tasks() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    block_on(async {
        let mut cq = verbs::tokio::CompletionQueue::new(cq).unwrap();
        let other = tokio::spawn(async {});
        let mut rounds = 0;
        while !other.is_finished() {
            fixture.fake.push(cq.get_ref(), wc(1, SEND));
            assert_eq!(cq.wait().await.unwrap().count(), 1);
            rounds += 1;
            assert!(rounds < 100_000, "the other task has starved");
        }
    });
}

#[test]
fn futures_are_send() {
    fn check<T: Send>(_: T) {}
    let fixture = Fixture::new();
    let (cq, channel) = (fixture.cq(8), fixture.ctx.create_comp_channel().unwrap());
    let extended = fixture.ctx.cq_ex_builder(4).waitable().create().unwrap();
    block_on(async {
        let mut cq = verbs::tokio::CompletionQueue::new(cq).unwrap();
        let mut extended = verbs::tokio::ExtendedCq::new(extended).unwrap();
        let channel = verbs::tokio::CompletionChannel::new(channel).unwrap();
        let events = verbs::tokio::AsyncEvents::new(fixture.ctx.async_events().unwrap()).unwrap();
        check(cq.wait());
        check(extended.wait());
        check(channel.wait());
        check(events.wait());
        give_up(cq.wait()).await;
    });
}
