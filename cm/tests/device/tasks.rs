//! Connecting and accepting in tasks, and cancellation at every step.

use std::{future::poll_fn, net::SocketAddr, pin::pin, task::Poll, time::Duration};

use cm::{
    ConnParam, EndpointBuilder, Event, Outgoing, PortSpace,
    tokio::{Endpoint, EventChannel, Listener, connect, connect_with},
};
use futures_core::Stream;
use tokio::time::timeout;
use verbs::{Buf, Result, WcStatus, op};

use crate::support::{Halfway, TEST_TIMEOUT, local};

async fn pair(listener: &Listener) -> (Endpoint, Endpoint) {
    let addr = listener.local_addr().unwrap();
    pair_at(listener, addr).await
}

/// A connection to the listener by the address `addr`.
async fn pair_at(listener: &Listener, addr: SocketAddr) -> (Endpoint, Endpoint) {
    let choices = EndpointBuilder::new();
    let receive = |outgoing: &mut Outgoing<Buf, Buf>| {
        let buf = outgoing.reg_msgs([0; 64])?;
        Ok(outgoing.post_recv(buf)?)
    };
    let (active, passive) = tokio::join!(connect_with(&choices, addr, receive), async {
        let mut incoming = listener.request().await?;
        let buf = incoming.get_mut().reg_msgs([0; 64])?;
        incoming.get_mut().post_recv(buf)?;
        incoming.accept().await
    });
    (active.unwrap(), passive.unwrap())
}

async fn exchange(from: &mut Endpoint, to: &mut Endpoint) {
    let hello = from.pd().register_buf(*b"hello").unwrap();
    from.post(op::Send::new(hello)).unwrap();
    let (sent, received) = tokio::join!(from.send_comp(), to.recv_comp());
    sent.unwrap().ok().unwrap();
    assert_eq!(received.unwrap().received().unwrap(), b"hello");
}

/// The peer's text, as from a configuration, is resolved without blocking the thread of the tasks.
#[tokio::test]
async fn rdmacm_async_resolve_addrinfo() {
    soon(async {
        let listener = Listener::bind(local()).unwrap();
        let addr = listener.local_addr().unwrap();
        let text = (addr.ip().to_string(), addr.port());
        let mut found = tokio::net::lookup_host(text).await.unwrap();
        let found = found.next().expect("the text is an address");
        let (mut active, mut passive) = pair_at(&listener, found).await;
        exchange(&mut passive, &mut active).await;
        exchange(&mut active, &mut passive).await;
    })
    .await;
}

/// Runs a future with a timeout.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(TEST_TIMEOUT, future)
        .await
        .expect("it takes for ever")
}

#[tokio::test]
async fn messages_in_both_directions_then_disconnect_is_detected() {
    soon(async {
        let listener = Listener::bind(local()).unwrap();
        let (mut active, mut passive) = pair(&listener).await;
        exchange(&mut active, &mut passive).await;
        exchange(&mut passive, &mut active).await;
        let buf = passive.pd().alloc_buf(8).unwrap();
        passive.post_recv(buf).unwrap();
        let (ended, flushed) = tokio::join!(active.disconnect(), passive.recv_comp());
        ended.unwrap();
        assert!(flushed.unwrap().ok().is_err());
        assert!(active.is_disconnected() && passive.is_disconnected());
        let err = passive.recv_comp().await.map(drop).unwrap_err();
        assert_eq!(err.kind(), std::io::ErrorKind::NotConnected);
        active.disconnect().await.unwrap();
    })
    .await;
}

/// The peer has no receive for the message in flight and disconnects: the answer does not wait for the send.
#[tokio::test]
async fn peer_disconnect_with_send_in_flight_is_answered() {
    soon(async {
        let listener = Listener::bind(local()).unwrap();
        let (mut active, mut passive) = pair(&listener).await;
        exchange(&mut active, &mut passive).await;
        let buf = active.pd().register_buf(*b"too much").unwrap();
        active.qp_mut().post(op::Send::new(buf)).unwrap();
        let (ended, flushed) = tokio::join!(passive.disconnect(), active.recv_comp());
        ended.unwrap();
        assert_eq!(flushed.unwrap().status(), WcStatus::WR_FLUSH_ERR);
        let sent = active.send_comp().await.unwrap();
        assert_eq!(sent.status(), WcStatus::WR_FLUSH_ERR);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_run_in_separate_tasks() {
    soon(async {
        let listener = Listener::bind(local()).unwrap();
        let addr = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            for _ in 0..4 {
                let endpoint = listener.accept().await?;
                tokio::spawn(async move {
                    let mut endpoint = endpoint;
                    let buf = endpoint.pd().alloc_buf(64)?;
                    endpoint.qp_mut().post_recv(buf)?;
                    endpoint.recv_comp().await?.ok().unwrap();
                    endpoint.disconnect().await
                });
            }
            Ok::<(), verbs::Error>(())
        });
        let clients: Vec<_> = (0..4)
            .map(|_| {
                tokio::spawn(async move {
                    let mut endpoint = connect(addr).await?;
                    let hello = endpoint.pd().register_buf(*b"hello")?;
                    endpoint.qp_mut().post(op::Send::new(hello))?;
                    endpoint.send_comp().await?.ok().unwrap();
                    endpoint.disconnect().await
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap().unwrap();
        }
        server.await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test]
async fn event_channel_is_a_stream() {
    let channel = EventChannel::new(cm::EventChannel::new().unwrap()).unwrap();
    let mut listener = channel.get_ref().create_id().unwrap();
    listener.bind(local()).unwrap();
    let listener = listener.listen(1).unwrap();
    let id = channel.get_ref().create_id_in(PortSpace::Tcp).unwrap();
    let addr = listener.local_addr().unwrap();
    id.resolve_addr(None, addr, TEST_TIMEOUT).unwrap();
    let mut channel = pin!(channel);
    let event = soon(poll_fn(|cx| channel.as_mut().poll_next(cx))).await;
    assert!(matches!(event, Some(Ok(Event::AddrResolved(_)))));
    let pending = poll_fn(|cx| Poll::Ready(channel.as_mut().poll_next(cx).is_pending()));
    assert!(pending.await);
}

#[tokio::test]
async fn connect_refused_is_an_error() {
    let mut addr = local();
    addr.set_port(9);
    let err = soon(connect(addr)).await.map(drop).unwrap_err();
    assert_eq!(err.kind(), std::io::ErrorKind::ConnectionRefused);
}

/// Number of open descriptors.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Polls a future until pending for the given number of times, and then drops the future. Returns `None` if
/// the future was still pending.
async fn give_up<T>(future: impl Future<Output = T>, pending: usize) -> Option<T> {
    let mut future = pin!(future);
    let mut remaining = pending;
    soon(poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if remaining == 0 => Poll::Ready(None),
        Poll::Pending => {
            remaining -= 1;
            Poll::Pending
        }
    }))
    .await
}

/// Calls `accept` until all half-open connections of departed peers have ended.
async fn end_half_open(listener: &Listener, before: usize) {
    soon(async {
        while descriptors() > before {
            drop(give_up(listener.accept(), 1).await);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert_eq!(descriptors(), before);
}

/// Cancels a connect after each number of waits until a connect succeeds. Returns the number of waits of a
/// connect.
async fn steps_to_connect(listener: &Listener, before: usize) -> usize {
    let addr = listener.local_addr().unwrap();
    let mut steps = 0;
    loop {
        let accept = async {
            loop {
                // A cancelled peer fails only its own connection.
                drop(listener.accept().await);
            }
        };
        let done: Option<Result<Endpoint>> = tokio::select! {
            done = give_up(connect(addr), steps) => done,
            () = accept => None,
        };
        let connected = done.map(|endpoint| endpoint.is_ok());
        end_half_open(listener, before).await;
        match connected {
            Some(connected) => {
                assert!(connected);
                return steps;
            }
            None => steps += 1,
        }
    }
}

#[tokio::test]
async fn connect_cancelled_at_every_step_leaks_nothing() {
    let listener = Listener::bind(local()).unwrap();
    // The devices are opened once.
    drop(pair(&listener).await);
    let before = descriptors();
    // Three waits: address, route and response. A result already present needs no wait, so a slow machine may
    // need several attempts to wait for each.
    let mut max = 0;
    for _ in 0..20 {
        max = steps_to_connect(&listener, before).await.max(max);
        if max >= 3 {
            break;
        }
    }
    assert!(max >= 3, "{max}");
    let (mut active, mut passive) = soon(pair_after(&listener)).await;
    exchange(&mut active, &mut passive).await;
}

/// A connection, with requests of cancelled peers possibly still pending.
async fn pair_after(listener: &Listener) -> (Endpoint, Endpoint) {
    while let Ok(stale) = timeout(Duration::from_millis(300), listener.request()).await {
        drop(stale);
    }
    pair(listener).await
}

/// Cancels an accept after each number of waits until an accept succeeds. Returns the number of waits of an accept.
async fn steps_to_accept(listener: &Listener) -> usize {
    let addr = listener.local_addr().unwrap();
    let mut steps = 0;
    loop {
        let accepted = tokio::select! {
            accepted = give_up(listener.accept(), steps) => accepted.map(|endpoint| endpoint.is_ok()),
            connected = async {
                drop(connect(addr).await);
                std::future::pending::<Option<bool>>().await
            } => connected,
        };
        match accepted {
            Some(true) => return steps,
            _ => steps += 1,
        }
        assert!(steps < 20);
    }
}

#[tokio::test]
async fn accept_cancelled_at_every_step_loses_no_other_connection() {
    let listener = Listener::bind(local()).unwrap();
    drop(pair(&listener).await);
    let before = descriptors();
    // Two waits: the request, and the establishment. A request already present needs no wait.
    let mut max = 0;
    for _ in 0..20 {
        max = steps_to_accept(&listener).await.max(max);
        if max >= 2 {
            break;
        }
    }
    assert!(max >= 2, "{max}");
    let (mut active, mut passive) = soon(pair_after(&listener)).await;
    exchange(&mut active, &mut passive).await;
    drop((active, passive));
    end_half_open(&listener, before).await;
}

#[tokio::test]
async fn wait_cancelled_can_be_resumed() {
    let listener = Listener::bind(local()).unwrap();
    let (mut active, mut passive) = soon(pair(&listener)).await;
    for steps in 0..3 {
        let waited = give_up(async { passive.recv_comp().await.map(drop) }, steps);
        let waited = timeout(Duration::from_millis(50), waited).await;
        assert!(!matches!(waited, Ok(Some(_))), "nothing was sent");
    }
    soon(exchange(&mut active, &mut passive)).await;
    let given_up = give_up(active.disconnect(), 0).await;
    assert!(given_up.is_none());
    let (ended, noticed) =
        soon(async { tokio::join!(active.disconnect(), passive.recv_comp()) }).await;
    ended.unwrap();
    assert!(noticed.is_err());
}

/// Both halves wait in separate tasks, and both detect the disconnect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn halves_send_and_receive_at_once_and_notice_the_end() {
    const MESSAGES: u8 = 20;
    soon(async {
        let listener = Listener::bind(local()).unwrap();
        let (active, passive) = pair(&listener).await;
        let (mut sender, mut receiver) = active.into_split();
        // The peer echoes each message, with the next receive after the send.
        let echo = tokio::spawn(async move {
            let mut passive = passive;
            for _ in 0..MESSAGES {
                let message = passive.recv_comp().await?.into_work()?;
                let next = passive.pd().alloc_buf(64)?;
                passive.qp_mut().post_recv(next)?;
                passive.qp_mut().post(op::Send::new(message))?;
                passive.send_comp().await?.into_work()?;
            }
            Ok::<_, verbs::Error>(passive)
        });
        let receiving = tokio::spawn(async move {
            for number in 0..MESSAGES {
                let buf = receiver.recv_comp().await?.into_work()?;
                assert_eq!(buf[0], number);
                receiver.post_recv(buf)?;
            }
            // The posted receive is flushed; afterwards, a wait fails.
            let flushed = receiver.recv_comp().await?.status();
            assert_eq!(flushed, WcStatus::WR_FLUSH_ERR);
            let after_end = receiver.recv_comp().await.map(drop).unwrap_err();
            Ok::<_, verbs::Error>(after_end.kind())
        });
        for number in 0..MESSAGES {
            let message = sender.pd().register_buf([number; 64]).unwrap();
            sender.post(op::Send::new(message)).unwrap();
            sender.send_comp().await.unwrap().into_work().unwrap();
        }
        // Without sends in flight, either half detects the disconnect. A message arrives before its acknowledgement, so
        // an earlier disconnect may flush the last send.
        let mut passive = echo.await.unwrap().unwrap();
        let ending = tokio::spawn(async move { passive.disconnect().await });
        let after_end = sender.send_comp().await.map(drop).unwrap_err();
        assert_eq!(after_end.kind(), std::io::ErrorKind::NotConnected);
        assert!(sender.is_disconnected());
        let after_end = receiving.await.unwrap().unwrap();
        assert_eq!(after_end, std::io::ErrorKind::NotConnected);
        sender.disconnect().await.unwrap();
        ending.await.unwrap().unwrap();
    })
    .await;
}

/// One half disconnects and wakes the waiting other half.
#[tokio::test]
async fn half_that_disconnects_wakes_the_other() {
    soon(async {
        let listener = Listener::bind(local()).unwrap();
        let (active, mut passive) = pair(&listener).await;
        let (mut sender, mut receiver) = active.into_split();
        let (ended, receiver_flushed, peer_flushed) = tokio::join!(
            sender.disconnect(),
            receiver.recv_comp(),
            passive.recv_comp()
        );
        ended.unwrap();
        assert_eq!(receiver_flushed.unwrap().status(), WcStatus::WR_FLUSH_ERR);
        assert_eq!(peer_flushed.unwrap().status(), WcStatus::WR_FLUSH_ERR);
        let after_end = receiver.recv_comp().await.map(drop).unwrap_err();
        assert_eq!(after_end.kind(), std::io::ErrorKind::NotConnected);
    })
    .await;
}

/// A half may post while the other half ends the connection: the request returns on every device.
#[tokio::test]
async fn receive_posted_after_the_end_is_flushed() {
    soon(async {
        let listener = Listener::bind(local()).unwrap();
        let (active, mut passive) = pair(&listener).await;
        let (mut sender, mut receiver) = active.into_split();
        let (ended, answered) = tokio::join!(sender.disconnect(), passive.disconnect());
        ended.unwrap();
        answered.unwrap();
        // The receive of the handshake.
        let flushed = receiver.recv_comp().await.unwrap().status();
        assert_eq!(flushed, WcStatus::WR_FLUSH_ERR);
        let flushed = passive.recv_comp().await.unwrap().status();
        assert_eq!(flushed, WcStatus::WR_FLUSH_ERR);
        for _ in 0..2 {
            let buf = receiver.pd().alloc_buf(8).unwrap();
            receiver.post_recv(buf).unwrap();
            let flushed = receiver.recv_comp().await.unwrap().status();
            assert_eq!(flushed, WcStatus::WR_FLUSH_ERR);
            let buf = passive.pd().alloc_buf(8).unwrap();
            passive.post_recv(buf).unwrap();
            let flushed = passive.recv_comp().await.unwrap().status();
            assert_eq!(flushed, WcStatus::WR_FLUSH_ERR);
        }
    })
    .await;
}

/// A peer with an incomplete handshake delays no other task.
#[tokio::test]
async fn silent_peer_does_not_hold_up_accept() {
    soon(async {
        let listener = Listener::bind(local()).unwrap();
        let addr = listener.local_addr().unwrap();
        let clients = EventChannel::new(cm::EventChannel::new().unwrap()).unwrap();
        let silent = async {
            let half = Halfway::new(clients.get_ref(), addr);
            half.active
                .connect(&half.active_qp, &ConnParam::new())
                .unwrap();
            let response = clients.wait().await.unwrap();
            assert!(
                matches!(response, Event::ConnectResponse(_)),
                "{response:?}"
            );
            let client = connect(addr).await.unwrap();
            (half.side, half.active_qp, response, client)
        };
        let (server, (.., client)) = tokio::join!(listener.accept(), silent);
        let server = server.unwrap();
        assert_eq!(server.id().peer_addr(), client.id().local_addr());
    })
    .await;
}
