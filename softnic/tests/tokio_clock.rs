//! One clock for a fabric and for tokio: keep-alive of tasks does not depend on the load of the machine.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{future::poll_fn, net::SocketAddr, pin::pin, time::Duration};

use cm::tokio::{Endpoint, Listener, connect};
use softnic::{Fabric, Host};
use tokio::time::{Instant, interval, timeout};
use verbs::{WcStatus, op};

/// Step of both clocks.
const TICK: Duration = Duration::from_millis(50);

/// Interval between messages of the client, and the time of silence after which the server ends the connection.
const KEEPALIVE: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(30);

/// Runs a test while the clock of tokio advances with the fabric's.
async fn on_one_clock<T>(fabric: &Fabric, test: impl Future<Output = T>) -> T {
    let mut test = pin!(test);
    loop {
        // All tasks run until none makes progress at this time.
        for _ in 0..16 {
            tokio::select! {
                biased;
                result = &mut test => return result,
                () = tokio::task::yield_now() => {}
            }
        }
        let before = fabric.now();
        fabric.advance(TICK);
        tokio::time::advance(fabric.now() - before).await;
    }
}

fn at(host: &Host) -> SocketAddr {
    SocketAddr::new(host.addr(), 7471)
}

/// A server's end and a client's end of a connection on one host.
async fn pair(host: &Host) -> [Endpoint; 2] {
    let listener = Listener::bind(at(host)).unwrap();
    let (server, client) = tokio::join!(listener.accept(), connect(at(host)));
    [server.unwrap(), client.unwrap()]
}

/// Receives messages until the peer has been silent for too long. Returns their number.
async fn serve(server: &mut Endpoint) -> u32 {
    for received in 0.. {
        let buf = server.pd().alloc_buf(64).unwrap();
        server.post_recv(buf).unwrap();
        match timeout(SILENCE, server.recv_comp()).await {
            Ok(message) => message.unwrap().ok().unwrap(),
            Err(_) => return received,
        }
    }
    unreachable!("the peer is never silent")
}

/// Sends a message at each interval.
async fn keep_alive(client: &mut Endpoint, messages: u32) {
    let mut ticks = interval(KEEPALIVE);
    for _ in 0..messages {
        ticks.tick().await;
        let buf = client.pd().register_buf(*b"ping").unwrap();
        client.post(op::Send::new(buf)).unwrap();
        client.send_comp().await.unwrap().ok().unwrap();
    }
}

/// Whether a time is another one, to the steps of the clock.
fn is_about(time: Duration, expected: Duration) -> bool {
    time >= expected && time <= expected + 20 * TICK
}

#[tokio::test(start_paused = true)]
async fn silent_peer_is_dropped_after_the_time_of_keepalive() {
    let fabric = Fabric::manual(7).keep_objects();
    let host = fabric.host([10, 9, 0, 1].into());
    host.stay();
    let test = async {
        let [mut server, mut client] = pair(&host).await;
        let (began, began_in_fabric) = (Instant::now(), fabric.now());
        let serving = async {
            let received = serve(&mut server).await;
            (received, began.elapsed())
        };
        let ((received, served), ()) = tokio::join!(serving, keep_alive(&mut client, 60));
        assert_eq!(received, 60);
        assert!(is_about(served, 59 * KEEPALIVE + SILENCE), "{served:?}");
        assert_eq!(fabric.now() - began_in_fabric, began.elapsed());
    };
    on_one_clock(&fabric, test).await;
}

/// The device gives up after its retries, before the longer time of the task and after the shorter one.
#[tokio::test(start_paused = true)]
async fn times_of_device_and_tasks_are_in_order() {
    let fabric = Fabric::manual(7).keep_objects();
    let [host, other] = [1, 2].map(|host| fabric.host([10, 9, 0, host].into()));
    host.stay();
    let test = async {
        let listener = other.run(|| Listener::bind(at(&other)).unwrap());
        let mut accepting = pin!(listener.accept());
        let accepting = poll_fn(|cx| other.run(|| accepting.as_mut().poll(cx)));
        let (server, client) = tokio::join!(accepting, connect(at(&other)));
        let (_server, mut client) = (server.unwrap(), client.unwrap());
        fabric.cut(&host, &other);
        let buf = client.pd().register_buf(*b"ping").unwrap();
        client.post(op::Send::new(buf)).unwrap();
        let short = timeout(Duration::from_millis(100), client.send_comp()).await;
        assert!(short.is_err(), "the device has given up before");
        let sent = timeout(Duration::from_secs(600), client.send_comp()).await;
        let (status, _) = sent.unwrap().unwrap().into_parts();
        assert_eq!(status, WcStatus::RETRY_EXC_ERR);
    };
    on_one_clock(&fabric, test).await;
}
