//! The event loop: many connections, failures of one, the end by a limit and by the stop handle.

use std::{
    error::Error,
    net::SocketAddr,
    sync::mpsc::{Receiver, Sender, channel},
    thread::{self, JoinHandle},
    time::Duration,
};

use cm::{
    ConnectFailure, EndpointBuilder, EventChannel,
    event_loop::{EventLoop, Failure, Handle, InitQp, Next, Protocol, Qp, Step},
};
use verbs::{Buf, Completed, ProtectionDomain, op};

use crate::support::{TEST_TIMEOUT, local, silent_client};

type AnyError = Box<dyn Error + Send + Sync>;

/// Sends each message back. The message `wrong` violates the protocol.
struct Echo<const DEPTH: u32 = 10> {
    echoed: u32,
    closed: u32,
    failures: Vec<String>,
    established: Option<Sender<()>>,
}

impl<const DEPTH: u32> Protocol for Echo<DEPTH> {
    type Send = Buf;
    type Receive = Buf;
    type State = ProtectionDomain;
    type Error = AnyError;

    const SEND_DEPTH: u32 = DEPTH;
    const RECEIVE_DEPTH: u32 = DEPTH;

    fn open(
        &mut self,
        pd: &ProtectionDomain,
        qp: &mut InitQp<Self>,
    ) -> Result<Self::State, AnyError> {
        qp.post_recv(pd.alloc_buf(64)?)?;
        Ok(pd.clone())
    }

    fn completed(
        &mut self,
        pd: &mut Self::State,
        qp: &mut Qp<Self>,
        done: Completed<'_, Buf, Buf>,
    ) -> Result<Next, AnyError> {
        if let Completed::Receive(message) = done {
            let message = message.received()?;
            if message == b"wrong" {
                return Err("a wrong message".into());
            }
            qp.post(op::Send::new(pd.register_buf(message.to_vec())?))?;
            self.echoed += 1;
        }
        Ok(Next::Wait)
    }

    fn closed(&mut self, _: Self::State) -> Result<(), AnyError> {
        self.closed += 1;
        Ok(())
    }

    fn connection_failed(&mut self, err: AnyError) {
        self.failures.push(err.to_string());
    }

    fn report_step(&mut self, step: Step) {
        if let (Step::Established, Some(established)) = (step, &self.established) {
            established.send(()).unwrap();
        }
    }
}

fn echo<const DEPTH: u32>() -> Echo<DEPTH> {
    Echo {
        echoed: 0,
        closed: 0,
        failures: Vec::new(),
        established: None,
    }
}

/// Sends one message, and disconnects after the answer.
struct Client {
    message: &'static str,
    answer: Vec<u8>,
}

impl Protocol for Client {
    type Send = Buf;
    type Receive = Buf;
    type State = ProtectionDomain;
    type Error = AnyError;

    fn open(
        &mut self,
        pd: &ProtectionDomain,
        qp: &mut InitQp<Self>,
    ) -> Result<Self::State, AnyError> {
        qp.post_recv(pd.alloc_buf(64)?)?;
        Ok(pd.clone())
    }

    fn established(&mut self, pd: &mut Self::State, qp: &mut Qp<Self>) -> Result<(), AnyError> {
        let message = pd.register_buf(self.message.as_bytes().to_vec())?;
        Ok(qp.post(op::Send::new(message))?)
    }

    fn completed(
        &mut self,
        _: &mut Self::State,
        _: &mut Qp<Self>,
        done: Completed<'_, Buf, Buf>,
    ) -> Result<Next, AnyError> {
        let Completed::Receive(answer) = done else {
            return Ok(Next::Wait);
        };
        self.answer = answer.received()?.to_vec();
        Ok(Next::Disconnect)
    }
}

fn ask(addr: SocketAddr, message: &'static str) -> Vec<u8> {
    let client = Client {
        message,
        answer: Vec::new(),
    };
    let client = EventLoop::connect(client, None, addr).unwrap();
    client.run().unwrap().answer
}

type Serving<const DEPTH: u32> = JoinHandle<Result<Echo<DEPTH>, AnyError>>;

fn start<const DEPTH: u32>(
    protocol: Echo<DEPTH>,
    limit: Option<u32>,
) -> (SocketAddr, Handle, Serving<DEPTH>) {
    let server = EventLoop::listen(protocol, local()).unwrap();
    let mut server = server.max_half_open(MAX_HALF_OPEN);
    let (addr, handle) = (server.local_addr().unwrap(), server.handle());
    if let Some(limit) = limit {
        server = server.limit(limit);
    }
    (addr, handle, thread::spawn(move || server.run()))
}

#[test]
fn event_loop_with_a_limit_ends_after_that_number_of_connections() {
    let (addr, _, serving) = start(echo::<10>(), Some(3));
    let clients = ["a", "b", "c"].map(|message| thread::spawn(move || ask(addr, message)));
    let answers = clients.map(|client| client.join().unwrap());
    assert_eq!(answers, [b"a", b"b", b"c"]);
    let echo = serving.join().unwrap().unwrap();
    assert_eq!((echo.echoed, echo.closed), (3, 3));
    assert_eq!(echo.failures, [""; 0]);
}

#[test]
fn event_loop_reports_a_failed_connection_and_serves_the_next() {
    let (addr, _, serving) = start(echo::<10>(), Some(2));
    assert_eq!(ask(addr, "wrong"), b"");
    assert_eq!(ask(addr, "right"), b"right");
    let echo = serving.join().unwrap().unwrap();
    assert_eq!(echo.failures, ["a wrong message"]);
    assert_eq!((echo.echoed, echo.closed), (1, 2));
}

#[test]
fn event_loop_returns_the_error_of_the_last_connection() {
    let (addr, _, serving) = start(echo::<10>(), Some(1));
    ask(addr, "wrong");
    let err = serving.join().unwrap().err().unwrap();
    assert_eq!(err.to_string(), "a wrong message");
}

#[test]
fn stop_of_an_event_loop_disconnects_its_clients() {
    let (established, connected) = channel();
    let protocol: Echo = Echo {
        established: Some(established),
        ..echo()
    };
    let (addr, handle, serving) = start(protocol, None);
    let builder = EndpointBuilder::new().timeout(TEST_TIMEOUT);
    let mut client = builder.prepare(addr).unwrap();
    client.post_recv(client.reg_msgs([0; 64]).unwrap()).unwrap();
    let mut client = client.connect().unwrap();
    connected.recv().unwrap();

    handle.stop();
    handle.stop();
    assert!(client.recv_comp().unwrap().ok().is_err(), "no disconnect");
    drop(client);
    let echo = serving.join().unwrap().unwrap();
    assert_eq!((echo.echoed, echo.closed), (0, 1));
    assert!(builder.connect(addr).is_err(), "the listener is closed");
}

/// Disconnects at the first message, and posts a receive for each later one.
struct PostsAfterTheEnd {
    is_sent: Receiver<()>,
    messages: u32,
}

impl Protocol for PostsAfterTheEnd {
    type Send = Buf;
    type Receive = Buf;
    type State = ProtectionDomain;
    type Error = AnyError;

    fn open(
        &mut self,
        pd: &ProtectionDomain,
        qp: &mut InitQp<Self>,
    ) -> Result<Self::State, AnyError> {
        for _ in 0..2 {
            qp.post_recv(pd.alloc_buf(64)?)?;
        }
        Ok(pd.clone())
    }

    fn completed(
        &mut self,
        pd: &mut Self::State,
        qp: &mut Qp<Self>,
        _: Completed<'_, Buf, Buf>,
    ) -> Result<Next, AnyError> {
        self.messages += 1;
        if self.messages == 1 {
            // The second message is in the completion queue, too.
            self.is_sent.recv()?;
            return Ok(Next::Disconnect);
        }
        // Meanwhile the driver flushes, and so misses the receive.
        thread::sleep(Duration::from_millis(20));
        qp.post_recv(pd.alloc_buf(64)?)?;
        Ok(Next::Wait)
    }
}

/// On Soft-RoCE, such a receive would stay in its queue until the time-out of the disconnect.
#[test]
fn receive_posted_after_the_end_is_flushed() {
    let (sent, is_sent) = channel();
    let protocol = PostsAfterTheEnd {
        is_sent,
        messages: 0,
    };
    let server = EventLoop::listen(protocol, local()).unwrap().limit(1);
    let addr = server.local_addr().unwrap();
    let serving = thread::spawn(move || server.run());
    let builder = EndpointBuilder::new().timeout(TEST_TIMEOUT);
    let mut client = builder.prepare(addr).unwrap().connect().unwrap();
    for _ in 0..2 {
        client.post_send(client.reg_msgs([0; 8]).unwrap()).unwrap();
        client.send_comp().unwrap().ok().unwrap();
    }
    sent.send(()).unwrap();
    client.wait_disconnected().unwrap();
    assert_eq!(serving.join().unwrap().unwrap().messages, 2);
}

#[test]
fn stopped_event_loop_without_connections_returns_at_once() {
    let server = EventLoop::listen(echo::<10>(), local()).unwrap();
    let handle = server.handle();
    handle.stop();
    assert_eq!(server.run().map(|echo| echo.closed).unwrap(), 0);
    handle.stop();
}

#[test]
fn connect_of_an_event_loop_without_listener_is_rejected() {
    let (addr, handle, serving) = start(echo::<10>(), None);
    handle.stop();
    serving.join().unwrap().unwrap();
    let client = Client {
        message: "",
        answer: Vec::new(),
    };
    let err = EventLoop::connect(client, None, addr).unwrap().run();
    let err = err.err().unwrap();
    let Some(Failure::Connect(cause)) = err.downcast_ref::<Failure>() else {
        panic!("{err}");
    };
    assert!(matches!(cause, ConnectFailure::Rejected { .. }), "{cause}");
}

/// Maximum number of half-open connections of the servers.
const MAX_HALF_OPEN: usize = 4;

#[test]
fn half_open_connections_yield_to_new_requests() {
    let (addr, handle, serving) = start(echo::<256>(), None);
    let channels = [(); 2 * MAX_HALF_OPEN].map(|()| EventChannel::new().unwrap());
    let silent = (channels.each_ref()).map(|channel| silent_client(channel, addr));
    assert_eq!(ask(addr, "honest"), b"honest");
    handle.stop();
    let echo = serving.join().unwrap().unwrap();
    let displaced = Failure::Displaced.to_string();
    assert_eq!(echo.failures, vec![displaced; MAX_HALF_OPEN + 1]);
    assert_eq!((echo.echoed, echo.closed), (1, 9));
    drop(silent);
}

#[test]
fn half_open_connection_does_not_hold_up_the_stop() {
    let (addr, handle, serving) = start(echo::<10>(), None);
    let clients = EventChannel::new().unwrap();
    let silent = silent_client(&clients, addr);
    handle.stop();
    let (sender, ended) = channel();
    thread::spawn(move || sender.send(serving.join().unwrap().unwrap()));
    let echo = ended.recv_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!((echo.closed, echo.failures), (1, Vec::new()));
    drop(silent);
}
