//! Doorbells that fail, as a system call can on Linux' software devices.

use std::{
    io::{self, Read, Write},
    thread,
};

use softnic::{Call, Fabric, When};

use crate::{hosts, messages::socket, pattern, streams::connected};

#[test]
fn stream_with_a_failed_doorbell_delivers_its_bytes() {
    let fabric = Fabric::new().keep_objects();
    let hosts = hosts(&fabric, 61);
    let (mut active, mut passive) = connected(&hosts);
    for failures in 1..3 {
        let failing = hosts[0].fail(Call::Doorbell, When::Nth(1), libc::ENOMEM);
        let again =
            (failures == 2).then(|| hosts[0].fail(Call::Doorbell, When::Nth(2), libc::ENOMEM));
        active.write_all(b"first").unwrap();
        assert_eq!(failing.failed(), 1);
        assert!(again.is_none_or(|again| again.failed() == 1));
        let mut received = [0; 5];
        passive.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"first");
    }
}

/// As after `setuid`: the kernel refuses every call on a device that other credentials have opened.
#[test]
fn stream_without_doorbells_ends_with_their_error() {
    let fabric = Fabric::new().keep_objects();
    let hosts = hosts(&fabric, 62);
    for errno in [libc::EACCES, libc::ENOMEM] {
        let (mut active, _passive) = connected(&hosts);
        let failing = hosts[0].fail(Call::Doorbell, When::Every, errno);
        let written = active.write(b"lost").unwrap_err();
        assert!(failing.failed() >= 3);
        let read = active.read(&mut [0]).unwrap_err();
        for error in [written, read, active.write(b"lost").unwrap_err()] {
            assert_eq!(rsocket::errno(&error), errno, "{error}");
            assert!(error.to_string().contains("`ibv_post_send`"), "{error}");
            assert_eq!(error.kind(), io::Error::from_raw_os_error(errno).kind());
        }
    }
}

/// A blocked reader is woken by the failure of a write.
#[test]
fn blocked_read_ends_with_the_error_of_the_doorbell() {
    let fabric = Fabric::new().keep_objects();
    let hosts = hosts(&fabric, 63);
    let (active, _passive) = connected(&hosts);
    let _failing = hosts[0].fail(Call::Doorbell, When::Every, libc::EACCES);
    let mut reader = active.try_clone().unwrap();
    let reading = thread::spawn(move || reader.read(&mut [0]));
    (&active).write(b"lost").unwrap_err();
    let error = reading.join().unwrap().unwrap_err();
    assert_eq!(rsocket::errno(&error), libc::EACCES);
}

/// As after `setuid`, for a program that waits before it sends.
#[test]
fn read_without_notifications_ends_with_their_error() {
    let fabric = Fabric::new().keep_objects();
    let hosts = hosts(&fabric, 64);
    let (mut active, _passive) = connected(&hosts);
    let _failing = hosts[0].fail(Call::ReqNotifyCq, When::Every, libc::EACCES);
    for _ in 0..2 {
        let error = active.read(&mut [0]).unwrap_err();
        assert_eq!(rsocket::errno(&error), libc::EACCES);
        assert!(error.to_string().contains("another user"), "{error}");
    }
    let error = active.write(b"lost").unwrap_err();
    assert_eq!(rsocket::errno(&error), libc::EACCES);
}

#[test]
fn message_with_a_failed_doorbell_is_retransmitted() {
    let fabric = Fabric::new().keep_objects();
    let both = hosts(&fabric, 65);
    let [from, to] = both.each_ref().map(|host| socket(host, 4000));
    let dest = to.local_addr().unwrap();
    from.send_to(&pattern(10, 1), dest).unwrap();
    to.recv(&mut [0; 10]).unwrap();
    let failing = both[0].fail(Call::Doorbell, When::Nth(1), libc::ENOMEM);
    from.send_to(&pattern(10, 2), dest).unwrap();
    let mut received = [0; 10];
    assert_eq!(to.recv(&mut received).unwrap(), 10);
    assert!(received[..] == pattern(10, 2));
    assert_eq!(failing.failed(), 1);
}

#[test]
fn socket_without_doorbells_fails_with_their_error() {
    let fabric = Fabric::new().keep_objects();
    let both = hosts(&fabric, 66);
    let [from, to] = both.each_ref().map(|host| socket(host, 4000));
    let dest = to.local_addr().unwrap();
    from.send_to(&pattern(10, 1), dest).unwrap();
    to.recv(&mut [0; 10]).unwrap();
    let _failing = both[0].fail(Call::Doorbell, When::Every, libc::EACCES);
    // Refused at once, or by the time that an answer is awaited.
    let sent = from.send_to(&pattern(10, 2), dest);
    let awaited = from.recv(&mut [0; 10]).map(drop);
    let again = from.send_to(&pattern(10, 3), dest).map(drop);
    for result in [sent.map(drop), awaited, again].into_iter().skip(1) {
        let error = result.unwrap_err();
        assert_eq!(rds::errno(&error), libc::EACCES, "{error}");
        assert!(error.to_string().contains("another user"), "{error}");
    }
}
