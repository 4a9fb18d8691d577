//! RDMA and atomic operations between two engines.

use std::{io, net::SocketAddr, time::Duration};

use rds::{
    Atomic, Cookie, EngineOptions, Event, ExportOptions, Notification, Rdma, RdmaBuffer,
    SendOptions, Sent, Socket, Status,
};

use crate::{TEST_TIMEOUT, addr, another_of, any, other, pattern, socket};

/// Receives a message.
fn message(socket: &Socket) -> rds::Message {
    match socket.recv_event().unwrap() {
        Event::Message(message) => message,
        other => panic!("{other:?}"),
    }
}

/// Receives a notification.
fn ended(socket: &Socket) -> (u64, Status) {
    match socket.recv_event().unwrap() {
        Event::Operation(Notification { token, status }) => (token, status),
        other => panic!("{other:?}"),
    }
}

/// Two sockets on two engines, with their addresses.
fn pair() -> (Socket, Socket, SocketAddr, SocketAddr) {
    let (a, b) = (socket(any()), socket(other()));
    let (at_a, at_b) = (addr(&a), addr(&b));
    (a, b, at_a, at_b)
}

/// Sockets on the engine of `a`: one at its address, one at another.
fn neighbours(a: &Socket) -> [Socket; 2] {
    let second = a.engine().socket().unwrap();
    second.bind_to(other()).unwrap();
    second.set_read_timeout(TEST_TIMEOUT);
    [another_of(a), second]
}

/// Sends a cookie to a peer in a message.
fn hand_over(from: &Socket, cookie: Cookie, to: &Socket) -> Cookie {
    let options = SendOptions::new().to(addr(to)).cookie(cookie);
    from.send_msg(&[], &options).unwrap();
    message(to).cookie().unwrap()
}

/// Without a kernel.
#[test]
fn rdma_write_and_read_work_in_all_sizes() {
    let (client, server, at_client, _) = pair();
    for (token, len) in (1..).zip([1, 4096, 20_000, 1 << 20]) {
        let memory = client.alloc(len + 8).unwrap();
        let cookie = client.export(&memory, ExportOptions::new()).unwrap();
        assert_eq!(hand_over(&client, cookie, &server), cookie);
        let bytes = pattern(len, 5);
        let local = server.alloc(len).unwrap();
        local.write(0, &bytes);
        // More pieces than fit into a request.
        let step = len.div_ceil(20);
        let pieces = (0..len).step_by(step);
        let pieces: Vec<_> = pieces
            .map(|at| local.slice(at..len.min(at + step)))
            .collect();
        let write = Rdma::write(pieces, cookie).at(4).notify().token(token);
        let options = SendOptions::new().to(at_client).rdma(write);
        server.send_msg(&[], &options).unwrap();
        assert_eq!(message(&client).len(), 0);
        assert_eq!(ended(&server), (token, Status::Success));
        let mut bytes_read = vec![0; len + 8];
        memory.read(0, &mut bytes_read);
        assert_eq!(bytes_read[4..len + 4], bytes);
        assert_eq!(
            (&bytes_read[..4], &bytes_read[len + 4..]),
            (&[0; 4][..], &[0; 4][..])
        );
        let back = server.alloc(len).unwrap();
        let read = Rdma::read(vec![back.slice(0..len)], cookie)
            .at(4)
            .fence()
            .notify()
            .token(token + 100);
        let options = SendOptions::new().to(at_client).rdma(read);
        server.send_msg(&[], &options).unwrap();
        assert_eq!(message(&client).from(), addr(&server));
        assert_eq!(ended(&server), (token + 100, Status::Success));
        let mut read = vec![0; len];
        back.read(0, &mut read);
        assert_eq!(read, bytes);
        client.free(cookie).unwrap();
        assert_eq!(rds::errno(&client.free(cookie).unwrap_err()), 22);
    }
    let pieces = server.alloc(8).unwrap();
    let cookie = Cookie::default();
    for (rdma, errno) in [
        (Rdma::write(vec![], cookie), 22),
        (
            Rdma::write(vec![pieces.slice(0..8)], cookie).remote_len(7),
            22,
        ),
        (
            Rdma::write(vec![pieces.slice(0..8)], cookie).remote_len((1 << 20) + 1),
            90,
        ),
        (Rdma::write(vec![pieces.slice(0..1); 1025], cookie), 90),
    ] {
        let options = SendOptions::new().to(at_client).rdma(rdma);
        let err = server.send_msg(&[], &options).unwrap_err();
        assert_eq!(rds::errno(&err), errno, "{err}");
    }
}

/// Use-once exports.
#[test]
fn export_use_once_ends_after_use() {
    let (client, server, at_client, _) = pair();
    let memory = client.alloc(100).unwrap();
    let once = ExportOptions::new().use_once();
    let cookie = client.export(&memory, once).unwrap();
    assert_eq!(client.exports().unwrap(), 1);
    hand_over(&client, cookie, &server);
    let local = server.alloc(100).unwrap();
    let write = Rdma::write(vec![local.slice(0..100)], cookie);
    server
        .send_msg(&[], &SendOptions::new().to(at_client).rdma(write))
        .unwrap();
    message(&client);
    assert_eq!(client.exports().unwrap(), 0);
    assert_eq!(rds::errno(&client.free(cookie).unwrap_err()), 22);
}

/// A rejected operation is notified, without effect on other messages.
#[test]
fn rejected_operation_is_notified() {
    let (client, server, at_client, _) = pair();
    let memory = client.alloc(100).unwrap();
    let freed = client.export(&memory, ExportOptions::new()).unwrap();
    client.free(freed).unwrap();
    let cookie = client.export(&memory, ExportOptions::new()).unwrap();
    let read_only = ExportOptions::new().read_only();
    let read_only = client.export(&memory, read_only).unwrap();
    let wrong = Cookie {
        rkey: cookie.rkey ^ 0x10_0000,
        ..cookie
    };
    let local = server.alloc(100).unwrap();
    local.write(0, &[7; 100]);
    // Both ends of the connection fail. If the end of the peer's is seen before the device's refusal, the operation is
    // dropped, and tried again.
    let mut dropped = 0;
    for (cookie, at) in [(wrong, 0), (cookie, 5000), (freed, 0), (read_only, 0)] {
        for token in 1.. {
            let write = Rdma::write(vec![local.slice(0..100)], cookie)
                .at(at)
                .notify()
                .token(token);
            let options = SendOptions::new().to(at_client).rdma(write);
            server.send_msg(&[], &options).unwrap();
            server.send_to(b"the bytes behind", at_client).unwrap();
            let status = ended(&server);
            assert_eq!(message(&client).to_vec(), b"the bytes behind");
            if status != (token, Status::Dropped) || dropped == 3 {
                assert_eq!(status, (token, Status::RemoteError));
                break;
            }
            dropped += 1;
        }
    }
    let mut bytes_read = [1; 100];
    memory.read(0, &mut bytes_read);
    assert_eq!(bytes_read, [0; 100]);
}

#[test]
fn silent_operation_sends_no_message() {
    let (client, server, at_client, _) = pair();
    let memory = client.alloc(8).unwrap();
    let cookie = client.export(&memory, ExportOptions::new()).unwrap();
    hand_over(&client, cookie, &server);
    let local = server.alloc(8).unwrap();
    local.store(0, 0x0123_4567_89ab_cdef);
    let write = Rdma::write(vec![local.slice(0..8)], cookie)
        .notify()
        .token(3);
    let options = SendOptions::new().to(at_client).rdma(write).silent();
    server.send_msg(&[], &options).unwrap();
    assert_eq!(ended(&server), (3, Status::Success));
    server.send_to(b"first", at_client).unwrap();
    assert_eq!(message(&client).to_vec(), b"first");
    // The message, not the end of the operation at its sender, makes the bytes visible here.
    assert_eq!(memory.load(0), 0x0123_4567_89ab_cdef);
}

#[test]
fn atomic_operations_change_remote_memory() {
    let (client, server, at_client, _) = pair();
    let memory = client.alloc(4096).unwrap();
    memory.store(0, 40);
    let cookie = client.export(&memory, ExportOptions::new()).unwrap();
    hand_over(&client, cookie, &server);
    let local = server.alloc(16).unwrap();
    let result = || local.slice(0..8);
    let send = |atomic: Atomic| {
        let options = SendOptions::new().to(at_client).atomic(atomic).silent();
        server.send_msg(&[], &options)
    };
    for i in 0..100 {
        send(Atomic::fetch_add(result(), cookie, 2).notify().token(i)).unwrap();
        assert_eq!(ended(&server), (i, Status::Success));
        assert_eq!(local.load(0), 40 + 2 * i);
    }
    assert_eq!(memory.load(0), 240);
    for (compare, value) in [(7, 240), (240, 1)] {
        let swap = Atomic::compare_swap(result(), cookie, compare, 1).notify();
        send(swap).unwrap();
        assert_eq!(ended(&server), (0, Status::Success));
        assert_eq!((local.load(0), memory.load(0)), (240, value));
    }
    let crooked = Atomic::fetch_add(result(), cookie, 1).at(4);
    assert_eq!(rds::errno(&send(crooked).unwrap_err()), 14);
    let crooked = Atomic::fetch_add(local.slice(4..12), cookie, 1);
    assert_eq!(rds::errno(&send(crooked).unwrap_err()), 14);
    let short = Atomic::fetch_add(local.slice(0..4), cookie, 1);
    assert_eq!(rds::errno(&send(short).unwrap_err()), 22);
    // Both kinds before one message, in this order.
    local.store(8, 1000);
    let write = Rdma::write(vec![local.slice(8..16)], cookie)
        .notify()
        .token(1);
    let add = Atomic::fetch_add(result(), cookie, 5)
        .fence()
        .notify()
        .token(2);
    let options = SendOptions::new().to(at_client).rdma(write).atomic(add);
    server.send_msg(&[], &options).unwrap();
    message(&client);
    assert_eq!((local.load(0), memory.load(0)), (1000, 1005));
    let mut both = [ended(&server), ended(&server)];
    both.sort_by_key(|(token, _)| *token);
    assert_eq!(both, [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn barrier_waits_for_operations() {
    let (client, server, at_client, _) = pair();
    let memory = client.alloc(1 << 16).unwrap();
    let cookie = client.export(&memory, ExportOptions::new()).unwrap();
    hand_over(&client, cookie, &server);
    let local = server.alloc(1 << 16).unwrap();
    let mut last = 0;
    for _ in 0..5 {
        let write = Rdma::write(vec![local.slice(0..1 << 16)], cookie);
        let options = SendOptions::new().to(at_client).rdma(write);
        let operation = server.send_msg(&[], &options).unwrap().operation.unwrap();
        assert!(operation > last);
        last = operation;
    }
    let ended = server.barrier(at_client.ip(), last).unwrap();
    assert_eq!(ended, last);
    let wrong = || Rdma::write(vec![local.slice(0..8)], Cookie::default());
    let options = SendOptions::new().to(at_client).rdma(wrong());
    let operation = server.send_msg(&[], &options).unwrap().operation.unwrap();
    let err = server.barrier(at_client.ip(), operation).unwrap_err();
    assert_eq!(rds::errno(&err), 5);
    // The peer does not exist, so the operation ends when cancelled.
    let unreachable = SocketAddr::from(([10, 9, 0, 123], 5));
    let options = SendOptions::new().to(unreachable).rdma(wrong());
    let operation = server.send_msg(&[], &options).unwrap().operation.unwrap();
    let err = server.try_barrier(unreachable.ip(), operation).unwrap_err();
    assert_eq!(rds::errno(&err), 11);
    server.cancel_sent_to(Some(unreachable)).unwrap();
    let err = server.barrier(unreachable.ip(), operation).unwrap_err();
    assert_eq!(rds::errno(&err), 5);
}

#[test]
fn zero_copy_send_reports_completion() {
    let (a, b, _, at_b) = pair();
    for name in 0..9 {
        let memory = a.alloc(10_000).unwrap();
        let bytes = pattern(10_000, u8::try_from(name).unwrap());
        memory.write(0, &bytes);
        a.send_zerocopy(&memory.slice(0..10_000), name, &SendOptions::new().to(at_b))
            .unwrap();
        assert_eq!(message(&b).to_vec(), bytes);
    }
    for name in 0..9 {
        match a.recv_event().unwrap() {
            Event::ZeroCopyDone(free) => assert_eq!(free, name),
            other => panic!("{other:?}"),
        }
    }
    // A receiver in the same process.
    let engine = a.engine().clone();
    let c = engine.socket().unwrap();
    let at_c = c.bind_to(any()).unwrap();
    c.set_read_timeout(Some(Duration::from_secs(60)));
    let memory = a.alloc(10).unwrap();
    memory.write(0, b"0123456789");
    a.send_zerocopy(&memory.slice(2..7), 77, &SendOptions::new().to(at_c))
        .unwrap();
    assert_eq!(message(&c).to_vec(), b"23456");
    assert!(matches!(a.recv_event().unwrap(), Event::ZeroCopyDone(77)));
}

#[test]
fn exports_do_not_leak_memory() {
    let a = socket(any());
    let memory = a.alloc(100).unwrap();
    for _ in 0..1000 {
        let cookie = a.export(&memory, ExportOptions::new()).unwrap();
        a.free(cookie).unwrap();
    }
    assert_eq!(a.exports().unwrap(), 0);
    let err = a
        .send_msg(
            &[],
            &SendOptions::new().to(other()).cookie(Cookie::default()),
        )
        .unwrap_err();
    assert_eq!(rds::errno(&err), 22);
}

#[test]
fn export_rejects_invalid_memory() {
    let a = socket(any());
    let unbound = a.engine().socket().unwrap();
    let export = |socket: &Socket, len: usize| {
        let exported = socket.export_memory(vec![0; len], ExportOptions::new());
        exported.map_err(|err| rds::errno(&err))
    };
    assert_eq!(export(&unbound, 1).unwrap_err(), 107);
    assert_eq!(export(&a, 0).unwrap_err(), 22);
    assert_eq!(export(&a, (1 << 20) + 8192).unwrap_err(), 90);
    assert!(export(&a, 1 << 20).is_ok());
    assert_eq!(rds::errno(&unbound.alloc(1).unwrap_err()), 107);
    assert_eq!(rds::errno(&a.alloc(0).unwrap_err()), 22);
}

/// Sockets on one engine, at the same address and at another.
#[test]
fn local_rdma_writes_and_reads() {
    let a = socket(any());
    for b in neighbours(&a) {
        let memory = a.alloc(5000).unwrap();
        let cookie = a.export(&memory, ExportOptions::new()).unwrap();
        assert_eq!(hand_over(&a, cookie, &b), cookie);
        let local = b.alloc(4000).unwrap();
        local.write(0, &pattern(4000, 3));
        let pieces = |pages: &RdmaBuffer| vec![pages.slice(0..1500), pages.slice(1500..4000)];
        let send = |rdma: Rdma| {
            let options = SendOptions::new().to(addr(&a)).rdma(rdma.notify());
            b.send_msg(&[io::IoSlice::new(b"done")], &options).unwrap()
        };
        let sent = send(Rdma::write(pieces(&local), cookie).at(1000).token(7));
        assert_eq!(message(&a).to_vec(), b"done");
        assert_eq!(ended(&b), (7, Status::Success));
        let id = sent.operation.unwrap();
        assert_eq!(b.try_barrier(addr(&a).ip(), id).unwrap(), id);
        let mut bytes_read = vec![0; 5000];
        memory.read(0, &mut bytes_read);
        assert_eq!(bytes_read[1000..], pattern(4000, 3));
        assert_eq!(bytes_read[..1000], [0; 1000]);
        let back = b.alloc(4000).unwrap();
        send(Rdma::read(pieces(&back), cookie).at(1000).token(8));
        assert_eq!(message(&a).from(), addr(&b));
        assert_eq!(ended(&b), (8, Status::Success));
        let mut bytes = vec![0; 4000];
        back.read(0, &mut bytes);
        assert_eq!(bytes, pattern(4000, 3));
        // Operations rejected by a device: no data is moved, and no message is delivered.
        let only = a.export(&memory, ExportOptions::new().read_only()).unwrap();
        let unexported = Cookie {
            rkey: cookie.rkey ^ 0xFF00_0000,
            ..cookie
        };
        for (token, rdma) in (20..).zip([
            Rdma::write(pieces(&local), cookie).at(1001),
            Rdma::write(pieces(&local), cookie).at(u64::MAX - 10),
            Rdma::write(pieces(&local), only),
            Rdma::write(pieces(&local), unexported),
        ]) {
            let sent = send(rdma.token(token));
            assert_eq!(ended(&b), (token, Status::RemoteError));
            let barrier = b.try_barrier(addr(&a).ip(), sent.operation.unwrap());
            assert_eq!(rds::errno(&barrier.unwrap_err()), 5);
        }
        memory.read(0, &mut bytes_read);
        assert_eq!(bytes_read[1000..], pattern(4000, 3));
        // A silent operation sends no message, and a use-once export ends with the next message.
        let once = a.export(&memory, ExportOptions::new().use_once()).unwrap();
        let exports = a.exports().unwrap();
        let quiet = Rdma::read(pieces(&back), once).notify().token(9);
        let options = SendOptions::new().to(addr(&a)).rdma(quiet).silent();
        b.send_msg(&[], &options).unwrap();
        assert_eq!(ended(&b), (9, Status::Success));
        assert_eq!(a.exports().unwrap(), exports);
        send(Rdma::read(pieces(&back), once).token(10));
        assert_eq!(message(&a).to_vec(), b"done");
        assert_eq!(ended(&b), (10, Status::Success));
        assert_eq!(a.exports().unwrap(), exports - 1);
        assert_eq!((a.queued().unwrap(), b.queued().unwrap()), ((0, 0), (0, 0)));
    }
}

/// Sends an atomic operation without a message.
fn send_silent(from: &Socket, to: &Socket, atomic: Atomic) -> io::Result<Sent> {
    let options = SendOptions::new().to(addr(to)).atomic(atomic).silent();
    from.send_msg(&[], &options)
}

/// Sends an atomic operation with notification, and the message `done`.
fn send_done(from: &Socket, to: &Socket, atomic: Atomic) -> Sent {
    let options = SendOptions::new().to(addr(to)).atomic(atomic.notify());
    from.send_msg(&[io::IoSlice::new(b"done")], &options)
        .unwrap()
}

/// Both kinds before one message, in this order. If the first fails, the second is dropped. The
/// cookies are of writable and of read-only memory.
fn check_write_then_atomic(
    (a, memory): (&Socket, &RdmaBuffer),
    (b, local): (&Socket, &RdmaBuffer),
    [cookie, only]: [Cookie; 2],
) {
    local.store(8, 1000);
    for (cookie, ends, number) in [
        (cookie, [Status::Success; 2], 1005),
        (only, [Status::RemoteError, Status::Dropped], 1005),
    ] {
        let write = Rdma::write(vec![local.slice(8..16)], cookie).at(8);
        let add = Atomic::fetch_add(local.slice(0..8), cookie, 5).at(8);
        let options = SendOptions::new().to(addr(a));
        let options = options.rdma(write.notify().token(1));
        let options = options.atomic(add.notify().token(2));
        b.send_msg(&[], &options).unwrap();
        assert_eq!([ended(b), ended(b)], [(1, ends[0]), (2, ends[1])]);
        assert_eq!((local.load(0), memory.load(8)), (1000, number));
    }
    assert_eq!(message(a).len(), 0);
}

/// Atomic operations between sockets on one engine, through the device.
#[test]
fn local_atomics_change_memory() {
    let a = socket(any());
    for b in neighbours(&a) {
        let memory = a.alloc(4096).unwrap();
        memory.store(8, 40);
        let cookie = a.export(&memory, ExportOptions::new()).unwrap();
        assert_eq!(hand_over(&a, cookie, &b), cookie);
        let local = b.alloc(24).unwrap();
        let result = || local.slice(0..8);
        let silent = |atomic| send_silent(&b, &a, atomic);
        let send = |atomic| send_done(&b, &a, atomic);
        for i in 0..20 {
            let add = Atomic::fetch_add(result(), cookie, 2).at(8);
            let sent = silent(add.notify().token(i)).unwrap();
            assert_eq!(ended(&b), (i, Status::Success));
            assert_eq!((local.load(0), memory.load(8)), (40 + 2 * i, 42 + 2 * i));
            let id = sent.operation.unwrap();
            assert_eq!(b.try_barrier(addr(&a).ip(), id).unwrap(), id);
        }
        // With `remote_complete`, success is notified at once.
        for (compare, value) in [(7, 80), (80, 1)] {
            let swap = Atomic::compare_swap(result(), cookie, compare, 1).at(8);
            send(swap.remote_complete().fence().token(compare));
            assert_eq!(message(&a).to_vec(), b"done");
            assert_eq!(ended(&b), (compare, Status::Success));
            assert_eq!((local.load(0), memory.load(8)), (80, value));
        }
        let before = local.load(0);
        let add = |at: u64| Atomic::fetch_add(result(), cookie, 1).at(at);
        assert_eq!(rds::errno(&silent(add(4)).unwrap_err()), 14);
        let crooked = Atomic::fetch_add(local.slice(4..12), cookie, 1);
        assert_eq!(rds::errno(&silent(crooked).unwrap_err()), 14);
        let short = Atomic::fetch_add(local.slice(0..4), cookie, 1);
        assert_eq!(rds::errno(&silent(short).unwrap_err()), 22);
        // Operations rejected by a device: no value changes, and no message is delivered.
        let only = a.export(&memory, ExportOptions::new().read_only()).unwrap();
        let unexported = Cookie {
            rkey: cookie.rkey ^ 0xFF00_0000,
            ..cookie
        };
        for (token, atomic) in (30..).zip([
            add(4096),
            add(u64::MAX - 7),
            Atomic::fetch_add(result(), only, 1),
            Atomic::fetch_add(result(), unexported, 1),
        ]) {
            let sent = send(atomic.token(token));
            assert_eq!(ended(&b), (token, Status::RemoteError));
            let barrier = b.try_barrier(addr(&a).ip(), sent.operation.unwrap());
            assert_eq!(rds::errno(&barrier.unwrap_err()), 5);
        }
        assert_eq!((local.load(0), memory.load(8)), (before, 1));
        check_write_then_atomic((&a, &memory), (&b, &local), [cookie, only]);
        // A use-once export ends with a message after an RDMA operation, not after an atomic one.
        let once = a.export(&memory, ExportOptions::new().use_once()).unwrap();
        let exports = a.exports().unwrap();
        send(Atomic::fetch_add(result(), once, 1).at(8));
        assert_eq!(message(&a).to_vec(), b"done");
        assert_eq!(ended(&b), (0, Status::Success));
        assert_eq!((a.exports().unwrap(), memory.load(8)), (exports, 1006));
        assert_eq!((a.queued().unwrap(), b.queued().unwrap()), ((0, 0), (0, 0)));
    }
}

/// Operations from the same engine and from another one, concurrently.
#[test]
fn local_and_remote_atomics_lose_no_addition() {
    const EACH: u64 = 400;
    let (owner, host) = (socket(any()), socket(other()));
    let sibling = another_of(&owner);
    let memory = owner.alloc(4096).unwrap();
    let cookie = owner.export(&memory, ExportOptions::new()).unwrap();
    let to = addr(&owner);
    let add = |from: &Socket| {
        let result = from.alloc(8).unwrap();
        let mut last = None;
        for token in 0..EACH {
            let add = Atomic::fetch_add(result.slice(0..8), cookie, 1);
            let options = SendOptions::new().to(to);
            let options = options.atomic(add.notify().token(token)).silent();
            from.send_msg(&[], &options).unwrap();
            assert_eq!(ended(from), (token, Status::Success));
            let before = result.load(0);
            assert!(last.is_none_or(|last| before > last), "{before} {last:?}");
            last = Some(before);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| add(&sibling));
        scope.spawn(|| add(&host));
    });
    assert_eq!(memory.load(0), 2 * EACH);
}

/// All requests of an operation are posted together. Local operations need no requests.
#[test]
fn operation_larger_than_send_queue_is_rejected() {
    let engine = EngineOptions::new().sends(16).start().unwrap();
    let client = engine.socket().unwrap();
    client.bind_to(any()).unwrap();
    client.set_read_timeout(TEST_TIMEOUT);
    let (server, same_host) = (socket(other()), another_of(&client));
    let local = client.alloc(1024).unwrap();
    for (peer, fits) in [(&server, false), (&same_host, true)] {
        let memory = peer.alloc(1024).unwrap();
        let cookie = peer.export(&memory, ExportOptions::new()).unwrap();
        hand_over(peer, cookie, &client);
        let write = |pieces| {
            let pieces = (0..pieces).map(|at| local.slice(at..at + 1)).collect();
            let write = Rdma::write(pieces, cookie).notify();
            let options = SendOptions::new().to(addr(peer)).rdma(write);
            client.send_msg(&[], &options)
        };
        match write(1024) {
            Err(err) => assert_eq!((rds::errno(&err), fits), (90, false)),
            Ok(_) => {
                assert!(fits, "it is never posted");
                assert_eq!(ended(&client).1, Status::Success);
                message(peer);
            }
        }
        // Any device supports two pieces per request.
        write(28).unwrap();
        assert_eq!(ended(&client).1, Status::Success);
        message(peer);
    }
}
