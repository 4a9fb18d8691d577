//! Endpoints on the program's completion queues, with and without a shared receive queue.

use std::{
    io::ErrorKind,
    net::SocketAddr,
    thread::{self, JoinHandle},
};

use cm::{Endpoint, EndpointBuilder, Listener, SharedQueues};
use verbs::{
    Buf, Completed, CompletionQueue, Context, ProtectionDomain, SharedReceiveQueue, op,
    qp::{QpId, QpKey},
    tokio as watched,
};

use crate::support::{TEST_TIMEOUT, local};

type SharedEndpoint = Endpoint<Buf, Buf, SharedQueues>;

const CLIENTS: usize = 3;
const MESSAGES: usize = 4;

/// The device of the address of these tests, with the same context as identifiers.
fn device() -> Context {
    let channel = cm::EventChannel::new().unwrap();
    let mut id = channel.create_id().unwrap();
    id.bind(local()).unwrap();
    id.bound_context().unwrap().unwrap()
}

/// The queues of a program.
struct Program {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    srq: SharedReceiveQueue,
}

impl Program {
    fn new() -> Self {
        let ctx = device();
        let pd = ctx.alloc_pd().unwrap();
        let cq = ctx.cq_builder(128).waitable().create().unwrap();
        let mut srq = pd.create_srq(16, 1).unwrap();
        for _ in 0..16 {
            srq.post(pd.alloc_buf(64).unwrap()).unwrap();
        }
        Self { pd, cq, srq }
    }

    fn builder(&self) -> EndpointBuilder<SharedQueues> {
        let builder = EndpointBuilder::new().timeout(TEST_TIMEOUT);
        builder.cqs(&self.cq, &self.cq).srq(&self.srq)
    }

    fn listen(&self) -> (Listener<Buf, Buf, SharedQueues>, SocketAddr) {
        let listener = self.builder().listen(local()).unwrap();
        let addr = listener.local_addr().unwrap();
        (listener, addr)
    }
}

/// Sends its number with each message, and awaits an answer with it.
fn client(addr: SocketAddr, number: usize) -> JoinHandle<()> {
    thread::spawn(move || {
        let builder = EndpointBuilder::new().timeout(TEST_TIMEOUT);
        let mut endpoint = builder.connect(addr).unwrap();
        for message in 0..MESSAGES {
            let text = format!("{number} {message}");
            let buf = endpoint.reg_msgs([0; 64]).unwrap();
            endpoint.post_recv(buf).unwrap();
            let buf = endpoint.reg_msgs(text.as_bytes()).unwrap();
            endpoint.post_send(buf).unwrap();
            endpoint.send_comp().unwrap().ok().unwrap();
            let answer = endpoint.recv_comp().unwrap();
            assert_eq!(answer.received().unwrap(), text.as_bytes());
        }
        endpoint.disconnect().unwrap();
    })
}

/// Answers a message to its endpoint, found by the key. Returns the number of messages received.
fn serve(
    completions: verbs::cq::Completions<'_>,
    srq: &mut SharedReceiveQueue,
    mut answer: impl FnMut(usize, Vec<u8>),
    mut sent: impl FnMut(usize, verbs::WorkCompletion<'_>),
) -> usize {
    let mut received = 0;
    for wc in completions {
        let QpKey(key) = srq.receiver(&wc).and_then(QpId::key).expect("it has a key");
        let key = usize::try_from(key).unwrap();
        match srq.complete(wc) {
            Ok(message) => {
                let text = message.received().unwrap().to_vec();
                srq.post(message.into_work().unwrap()).unwrap();
                answer(key, text);
                received += 1;
            }
            Err(wc) => sent(key, wc),
        }
    }
    received
}

/// Accepts all clients, with their order as keys.
fn accept_with_keys(
    listener: &Listener<Buf, Buf, SharedQueues>,
    pd: &ProtectionDomain,
) -> Vec<SharedEndpoint> {
    let mut endpoints: Vec<SharedEndpoint> = Vec::new();
    for key in 0..CLIENTS {
        let mut incoming = listener.request().unwrap();
        assert_eq!(incoming.pd().as_raw(), pd.as_raw());
        incoming.set_key(QpKey(key as u64));
        let id = incoming.qp_id();
        endpoints.push(incoming.accept().unwrap());
        assert_eq!(
            (endpoints[key].qp_id(), id.key()),
            (id, Some(QpKey(key as u64)))
        );
    }
    endpoints
}

#[test]
fn one_thread_serves_all_connections_by_their_keys() {
    let Program {
        pd,
        mut cq,
        mut srq,
    } = Program::new();
    let builder = EndpointBuilder::new().timeout(TEST_TIMEOUT);
    let builder = builder.cqs(&cq, &cq).srq(&srq);
    let listener = builder.listen(local()).unwrap();
    let addr = listener.local_addr().unwrap();
    let clients: Vec<_> = (0..CLIENTS).map(|number| client(addr, number)).collect();
    let mut endpoints = accept_with_keys(&listener, &pd);
    // The numbers of the clients by key, as their first messages name them.
    let mut numbers = vec![None; CLIENTS];
    let (mut received, sent) = (0, std::cell::Cell::new(0));
    while sent.get() < CLIENTS * MESSAGES {
        let completions = cq.wait(Some(TEST_TIMEOUT)).unwrap();
        assert!(completions.len() > 0, "after {received} messages");
        let endpoints = std::cell::RefCell::new(&mut endpoints);
        received += serve(
            completions,
            &mut srq,
            |key, text| {
                let number = *numbers[key].get_or_insert(text[0]);
                assert_eq!(text[0], number, "a message of another client");
                let mut endpoints = endpoints.borrow_mut();
                let buf = endpoints[key].reg_msgs(text).unwrap();
                endpoints[key].post(op::Send::new(buf)).unwrap();
            },
            |key, wc| {
                let mut endpoints = endpoints.borrow_mut();
                let other = (key + 1) % CLIENTS;
                let wc = endpoints[other]
                    .complete(wc)
                    .expect_err("of another endpoint");
                let Ok(Completed::Send(done)) = endpoints[key].complete(wc) else {
                    panic!("no send of endpoint {key}");
                };
                done.into_work().unwrap();
                sent.set(sent.get() + 1);
            },
        );
    }
    numbers.sort_unstable();
    assert_eq!(numbers, [Some(b'0'), Some(b'1'), Some(b'2')]);
    for endpoint in &mut endpoints {
        endpoint.wait_disconnected().unwrap();
        assert!(endpoint.check_disconnected().unwrap());
        assert_eq!(endpoint.end_cause(), None);
    }
    clients
        .into_iter()
        .for_each(|client| client.join().unwrap());
}

#[test]
fn end_of_an_endpoint_on_shared_queues_is_found_without_blocking() {
    let program = Program::new();
    let (listener, addr) = program.listen();
    let connecting = thread::spawn(move || EndpointBuilder::new().connect(addr).unwrap());
    let mut passive = listener.accept().unwrap();
    let mut active = connecting.join().unwrap();
    assert!(
        active.peer_param().srq,
        "the peer is notified of the shared queue"
    );
    assert!(!passive.check_disconnected().unwrap());
    let ending = thread::spawn(move || active.disconnect().unwrap());
    let fds = [std::os::fd::AsFd::as_fd(&passive)];
    let readable = verbs::fd::wait_any_readable("poll", fds, Some(TEST_TIMEOUT)).unwrap();
    assert_eq!(readable, [true]);
    assert!(passive.check_disconnected().unwrap());
    // The answer ends the blocked call of the other side.
    ending.join().unwrap();
    let (connection, _channel) = passive.into_parts();
    drop(connection);
}

#[test]
fn endpoint_without_a_shared_receive_queue_completes_its_own_receives() {
    let mut program = Program::new();
    let builder = EndpointBuilder::new().timeout(TEST_TIMEOUT);
    let builder = builder.cqs(&program.cq, &program.cq).max_recv_wr(2);
    let listener = builder.listen(local()).unwrap();
    let addr = listener.local_addr().unwrap();
    let server = thread::spawn(move || listener.accept().unwrap());
    let mut outgoing = builder.clone().key(QpKey(9)).prepare(addr).unwrap();
    let buf = outgoing.reg_msgs([0; 64]).unwrap();
    outgoing.post_recv(buf).unwrap();
    let mut active = outgoing.connect().unwrap();
    let mut passive = server.join().unwrap();
    assert_eq!(passive.qp_id().key(), None);
    passive.set_key(QpKey(5));
    let buf = passive.reg_msgs(*b"hello").unwrap();
    passive.post_send(buf).unwrap();
    let mut keys = Vec::new();
    while keys.len() < 2 {
        for wc in program.cq.wait(Some(TEST_TIMEOUT)).unwrap() {
            let key = wc.qp_id().key();
            let completed = match key {
                Some(QpKey(9)) => active.complete(wc),
                _ => passive.complete(wc),
            };
            match completed.unwrap() {
                Completed::Receive(message) => {
                    assert_eq!(message.received().unwrap(), b"hello");
                    keys.push((key, true));
                }
                Completed::Send(done) => {
                    done.into_work().unwrap();
                    keys.push((key, false));
                }
            }
        }
    }
    keys.sort_unstable();
    assert_eq!(keys, [(Some(QpKey(5)), false), (Some(QpKey(9)), true)]);
    drop(active);
    passive.wait_disconnected().unwrap();
}

#[test]
fn queues_of_another_context_are_refused_with_the_remedy() {
    let devices = verbs::devices().unwrap();
    let other = devices.first().unwrap().open().unwrap();
    let cq = other.create_cq(64).unwrap();
    let (_listener, addr) = Program::new().listen();
    let error = EndpointBuilder::new()
        .cqs(&cq, &cq)
        .connect(addr)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("cm::devices"), "{error}");
}

#[test]
fn tasks_accept_for_a_task_that_serves_all_connections() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let program = Program::new();
    let builder = program.builder();
    let Program {
        pd: _pd,
        cq,
        mut srq,
    } = program;
    runtime.block_on(async {
        let listener =
            cm::tokio::Listener::<Buf, Buf, SharedQueues>::bind_with(&builder, local()).unwrap();
        let addr = listener.local_addr().unwrap();
        let clients: Vec<_> = (0..CLIENTS).map(|number| client(addr, number)).collect();
        let mut endpoints = Vec::new();
        for key in 0..CLIENTS {
            let mut incoming = listener.request().await.unwrap();
            incoming.get_mut().set_key(QpKey(key as u64));
            endpoints.push(incoming.accept().await.unwrap());
        }
        let mut cq = watched::CompletionQueue::new(cq).unwrap();
        let sent = std::cell::Cell::new(0);
        while sent.get() < CLIENTS * MESSAGES {
            let completions = cq.wait().await.unwrap();
            let endpoints = std::cell::RefCell::new(&mut endpoints);
            serve(
                completions,
                &mut srq,
                |key, text| {
                    let mut endpoints = endpoints.borrow_mut();
                    let buf = endpoints[key].pd().register_buf(text).unwrap();
                    endpoints[key].post(op::Send::new(buf)).unwrap();
                },
                |key, wc| {
                    let mut endpoints = endpoints.borrow_mut();
                    let Ok(Completed::Send(done)) = endpoints[key].complete(wc) else {
                        panic!("no send of endpoint {key}");
                    };
                    done.into_work().unwrap();
                    sent.set(sent.get() + 1);
                },
            );
        }
        for endpoint in &mut endpoints {
            endpoint.wait_disconnected().await.unwrap();
            assert_eq!(
                (endpoint.is_disconnected(), endpoint.end_cause()),
                (true, None)
            );
        }
        clients
            .into_iter()
            .for_each(|client| client.join().unwrap());
    });
}

/// Any peer can ask for more connections than the program's queue has entries for.
#[test]
fn full_queue_of_the_program_refuses_peers_until_there_are_entries() {
    let program = Program::new();
    // More than half of the entries, so that one connection fits.
    let builder = program.builder().max_send_wr(program.cq.capacity() / 2 + 1);
    let listener: Listener<Buf, Buf, SharedQueues> = builder.listen(local()).unwrap();
    let addr = listener.local_addr().unwrap();
    let connect = move || EndpointBuilder::new().timeout(TEST_TIMEOUT).connect(addr);
    let connecting = thread::spawn(connect);
    let first = listener.accept().unwrap();
    let _first_client = connecting.join().unwrap().unwrap();
    let connecting = thread::spawn(move || {
        let refused = connect().unwrap_err();
        drop(first);
        (refused.kind(), connect().unwrap())
    });
    let _second = listener.accept().unwrap();
    assert_eq!(connecting.join().unwrap().0, ErrorKind::ConnectionRefused);
    assert_eq!(listener.refusals().exhausted, 1);
}
