//! Settings with the longest possible time: nothing ever is due, and transfers work as with any other time.

use std::{
    io::{Read, Write},
    time::Duration,
};

use cm::EndpointBuilder;
use rds::{EngineOptions, Socket, proto::connection::Settings};
use rsocket::{Options, Stream};
use softnic::{Fabric, Host};

use crate::{TEST_TIMEOUT, at, hosts, pattern};

const LONGEST: Duration = Duration::MAX;

/// Connects two streams with the options on both sides, changes the active one, and sends bytes there and back.
fn carry(both: &[Host; 2], options: &Options, change: impl FnOnce(&Stream)) {
    let [client, server] = both;
    let listener = server.run(|| options.clone().listen(at(server, 0)).unwrap());
    let addr = listener.local_addr().unwrap();
    let echoing = server.spawn(move || {
        let mut passive = listener.accept().unwrap().0;
        passive.set_read_timeout(TEST_TIMEOUT);
        let mut bytes = [0; 1000];
        passive.read_exact(&mut bytes).unwrap();
        passive.write_all(&bytes).unwrap();
    });
    let mut active = client.run(|| options.clone().connect(addr).unwrap());
    active.set_read_timeout(TEST_TIMEOUT);
    change(&active);
    let sent = pattern(1000, 7);
    active.write_all(&sent).unwrap();
    let mut received = [0; 1000];
    active.read_exact(&mut received).unwrap();
    assert_eq!(received[..], sent);
    echoing.join().unwrap();
}

#[test]
fn streams_have_times_of_any_length() {
    let fabric = Fabric::new().keep_objects();
    let both = hosts(&fabric, 41);
    for options in [
        Options::new().handshake_timeout(LONGEST),
        Options::new().connect_timeout(LONGEST),
        Options::new().linger(LONGEST),
        Options::new().keep_alive(LONGEST),
        Options::new().user_timeout(LONGEST),
    ] {
        carry(&both, &options, |_| {});
    }
    carry(&both, &Options::new(), |stream| {
        stream.set_read_timeout(Some(LONGEST));
        stream.set_write_timeout(Some(LONGEST));
        stream.set_linger(LONGEST);
        stream.set_keep_alive(Some(LONGEST));
        stream.set_user_timeout(Some(LONGEST));
    });
}

/// A bound socket on an engine of its own.
fn socket(host: &Host, options: EngineOptions, time: Duration) -> Socket {
    host.run(|| {
        let socket = options.start().unwrap().socket().unwrap();
        socket.bind_to(at(host, 4000)).unwrap();
        socket.set_read_timeout(Some(time));
        socket.set_write_timeout(Some(time));
        socket
    })
}

fn acknowledged_after(time: Duration) -> EngineOptions {
    let mut settings = Settings::default();
    settings.ack_after = Some(time);
    settings.keepalive = Some(time);
    EngineOptions::new().connection(settings)
}

#[test]
fn messages_have_times_of_any_length() {
    for (number, options) in (42..).zip([
        EngineOptions::new().keepalive(Some(LONGEST)),
        EngineOptions::new().busy_poll(LONGEST),
        EngineOptions::new().busy_poll(LONGEST),
        acknowledged_after(LONGEST),
    ]) {
        let fabric = Fabric::new().keep_objects();
        let [a, b] = hosts(&fabric, number).map(|host| socket(&host, options.clone(), LONGEST));
        for (from, to) in [(&a, &b), (&b, &a)] {
            let sent = pattern(10_000, number);
            from.send_to(&sent, to.local_addr().unwrap()).unwrap();
            let message = to.recv_message().unwrap();
            assert!(message.to_vec() == sent);
        }
    }
}

#[test]
fn endpoints_have_times_of_any_length() {
    let fabric = Fabric::new();
    let [client, server] = hosts(&fabric, 45);
    let builder = || EndpointBuilder::new().timeout(LONGEST);
    let listener = server.run(|| builder().listen(at(&server, 7000)).unwrap());
    let accepting = server.spawn(move || {
        let mut passive = listener.accept().unwrap();
        passive.disconnect().unwrap();
    });
    let mut active = client.run(|| builder().connect(at(&server, 7000)).unwrap());
    active.disconnect().unwrap();
    accepting.join().unwrap();
}
