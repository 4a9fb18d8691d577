//! Sockets in tasks.

use std::{sync::Arc, time::Duration};

use rds::asynchronous;
use tokio::time::timeout;

use crate::{addr, any, other, pattern, socket};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_recv_and_send_are_woken() {
    const COUNT: usize = 300;
    let (a, b) = (socket(any()), socket(other()));
    let to = addr(&b);
    // Room for a few messages, to block the sender.
    a.set_send_limit(5000).unwrap();
    b.set_recv_limit(20_000).unwrap();
    let [a, b] = [a, b].map(|socket| Arc::new(asynchronous::Socket::new(socket)));
    let sender = tokio::spawn(async move {
        for i in 0..COUNT {
            let bytes = pattern(1000 + i, 0);
            let sent = timeout(TEST_TIMEOUT, a.send_to(&bytes, to)).await;
            assert_eq!(sent.unwrap().unwrap(), bytes.len());
        }
        // Dropping the socket would discard unacknowledged messages.
        while a.get_ref().queued().unwrap().0 > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    for i in 0..COUNT {
        let message = timeout(TEST_TIMEOUT, b.recv_message())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(message.to_vec(), pattern(1000 + i, 0));
    }
    timeout(TEST_TIMEOUT, sender).await.unwrap().unwrap();
}

#[tokio::test]
async fn task_wait_can_be_cancelled() {
    let (a, b) = (socket(any()), socket(other()));
    let to = addr(&b);
    let b = asynchronous::Socket::new(b);
    let received = timeout(Duration::from_millis(50), b.recv_event()).await;
    assert!(received.is_err());
    a.send_to(b"hello", to).unwrap();
    let mut buf = [0; 16];
    let (len, from) = timeout(TEST_TIMEOUT, b.recv_from(&mut buf))
        .await
        .unwrap()
        .unwrap();
    assert_eq!((&buf[..len], from), (&b"hello"[..], addr(&a)));
}
