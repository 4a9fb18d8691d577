//! Descriptors handed out by the crate: pollable, and safe against misuse.

use std::{
    fs::File,
    io::{ErrorKind, Read, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    time::Duration,
};

use ibverbs_sys as ffi;
use verbs::{
    Buf, QueuePair, Rts, WcStatus,
    cq::{CqHandle, CqKey, Notify},
    fd::{NotifyFd, set_nonblocking, wait_readable},
    op,
    waiting::EventFd,
};

use crate::fixture::Fixture;

/// Misuses a descriptor in the ways open to safe code.
fn misuse(fd: BorrowedFd<'_>) {
    set_nonblocking(fd, false).unwrap();
    let mut file = File::from(fd.try_clone_to_owned().unwrap());
    assert!(file.read(&mut [0; 64]).is_err(), "there is nothing to read");
    assert!(
        file.write(&[0; 64]).is_err(),
        "there is nothing to write to"
    );
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    wait_readable("poll", fd, Some(Duration::ZERO)).unwrap()
}

/// The descriptor read by C for events of a queue.
fn own_fd(cq: &CqHandle) -> i32 {
    // SAFETY: the queue exists.
    let channel = unsafe { (*cq.as_raw()).channel };
    // SAFETY: the queue keeps its channel.
    unsafe { (*channel).fd }
}

/// Whether C's reads of the descriptor are non-blocking.
fn is_nonblocking(fd: i32) -> bool {
    // SAFETY: takes and returns numbers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    assert!(flags >= 0);
    flags & libc::O_NONBLOCK != 0
}

#[test]
fn queue_descriptor_gives_no_access_to_its_events() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let raw_fd = own_fd(&cq);
    assert_ne!(cq.notify_fd().unwrap().as_raw_fd(), raw_fd);
    let mut qp: QueuePair<verbs::Rc, Rts, Buf, Buf> = fixture.rc(&cq, 2);
    assert!(cq.poll_or_arm().unwrap().is_none());
    misuse(cq.notify_fd().unwrap());
    qp.post(op::Send::new(fixture.pd.alloc_buf(1).unwrap()))
        .unwrap();
    assert!(!is_readable(cq.notify_fd().unwrap()));
    fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
    let duplicate = cq.notify_fd().unwrap().try_clone_to_owned().unwrap();
    assert!(is_readable(duplicate.as_fd()));
    misuse(duplicate.as_fd());
    assert!(is_readable(duplicate.as_fd()), "the event is still there");
    assert!(is_nonblocking(raw_fd));
    assert_eq!(cq.poll_or_arm().unwrap().unwrap().count(), 1);
    assert!(cq.poll_or_arm().unwrap().is_none());
    assert!(!is_readable(duplicate.as_fd()), "it has been taken");
    drop((qp, cq));
    assert!(!is_readable(duplicate.as_fd()), "the channel is closed");
}

#[test]
fn extended_queue_descriptor_gives_no_access_to_its_events() {
    let fixture = Fixture::new();
    let mut cq = fixture.ctx.cq_ex_builder(8).waitable().create().unwrap();
    let raw_fd = own_fd(&cq);
    assert!(cq.poll_or_arm().unwrap().is_none());
    misuse(cq.notify_fd().unwrap());
    assert!(is_nonblocking(raw_fd));
    assert!(cq.poll_or_arm().unwrap().is_none());
}

#[test]
fn channel_descriptor_gives_no_access_to_its_events() {
    let fixture = Fixture::new();
    let channel = fixture.ctx.create_comp_channel().unwrap();
    let cq = fixture.ctx.cq_builder(4).channel(&channel, CqKey(5));
    let cq = cq.create().unwrap();
    cq.req_notify(Notify::Next).unwrap();
    let completion = crate::provider::wc(0, ffi::ibv_wc_opcode::IBV_WC_SEND);
    fixture.fake.push(&cq, completion);
    assert!(is_readable(channel.as_fd()));
    misuse(channel.as_fd());
    // SAFETY: the channel exists.
    let raw_fd = unsafe { (*channel.as_raw()).fd };
    assert_ne!(channel.as_raw_fd(), raw_fd);
    assert!(is_nonblocking(raw_fd));
    assert_eq!(channel.try_next().unwrap(), Some(CqKey(5)));
    assert_eq!(channel.try_next().unwrap(), None);
}

/// The first descriptors of two channels, while the process has no other left.
///
/// A process of its own, since other tests open files.
#[test]
#[cfg_attr(miri, ignore = "there are no processes")]
fn channel_descriptor_gives_no_access_to_its_events_with_too_many_open_files() {
    if !is_alone() {
        return;
    }
    let fixture = Fixture::new();
    let channels = [(); 2].map(|()| fixture.ctx.create_comp_channel().unwrap());
    let of = |key| {
        fixture
            .ctx
            .cq_builder(4)
            .channel(&channels[key], CqKey(key))
    };
    let cqs = [0, 1].map(|key| of(key).create().unwrap());
    let open_files = use_up_descriptors();
    let fds = [0, 1].map(|key| channels[key].as_raw_fd());
    drop(open_files);
    for (key, (cq, channel)) in cqs.iter().zip(&channels).enumerate() {
        // SAFETY: the channel exists.
        let raw_fd = unsafe { (*channel.as_raw()).fd };
        assert_ne!(fds[key], raw_fd);
        assert_eq!(channel.as_raw_fd(), fds[key], "it stays registered");
        cq.req_notify(Notify::Next).unwrap();
        assert!(!is_readable(channel.as_fd()));
        let completion = crate::provider::wc(0, ffi::ibv_wc_opcode::IBV_WC_SEND);
        fixture.fake.push(cq, completion);
        assert!(is_readable(channel.as_fd()));
        misuse(channel.as_fd());
        assert!(is_nonblocking(raw_fd));
        assert_eq!(channel.try_next().unwrap(), Some(CqKey(key)));
        assert!(!is_readable(channel.as_fd()), "it has been taken");
    }
}

/// Two tasks' channels, one after the other, while the process has no descriptor left.
#[test]
#[cfg_attr(miri, ignore = "there are no processes")]
fn tasks_wait_for_channels_with_too_many_open_files() {
    if !is_alone() {
        return;
    }
    let fixture = Fixture::new();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_io().build().unwrap();
    let channels = [(); 2].map(|()| fixture.ctx.create_comp_channel().unwrap());
    let of = |key| {
        let builder = fixture.ctx.cq_builder(4);
        builder.channel(&channels[key], CqKey(key)).create()
    };
    let cqs = [0, 1].map(|key| of(key).unwrap());
    let _others = use_up_descriptors();
    let _entered = runtime.enter();
    let channels = channels.map(|channel| verbs::tokio::CompletionChannel::new(channel).unwrap());
    for (key, (cq, channel)) in cqs.iter().zip(&channels).enumerate() {
        cq.req_notify(Notify::Next).unwrap();
        let completion = crate::provider::wc(0, ffi::ibv_wc_opcode::IBV_WC_SEND);
        fixture.fake.push(cq, completion);
        let event = runtime.block_on(channel.wait()).unwrap();
        assert_eq!(event, CqKey(key));
    }
}

/// Whether the test has a process of its own. If not, runs the test again in one.
fn is_alone() -> bool {
    const CHILD: &str = "VERBS_TEST_ALONE";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let thread = std::thread::current();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let child = child.args(["--exact", thread.name().unwrap()]);
    let output = child.env(CHILD, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
    false
}

/// Opens files until the process may open no more.
fn use_up_descriptors() -> Vec<File> {
    let limit = libc::rlimit {
        rlim_cur: 256,
        rlim_max: 256,
    };
    // SAFETY: the limit is valid during the call.
    let ret = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(ret, 0);
    let open = || File::open("/dev/null");
    let files: Vec<File> = std::iter::from_fn(|| open().ok()).collect();
    assert_eq!(open().unwrap_err().raw_os_error(), Some(libc::EMFILE));
    files
}

/// The kernel reports the channel's events to the `epoll` instance, which gives no access to them.
#[test]
fn channel_reports_events_to_epoll_until_removed() {
    let fixture = Fixture::new();
    let channel = fixture.ctx.create_comp_channel().unwrap();
    let cq = fixture.ctx.cq_builder(4).channel(&channel, CqKey(5));
    let cq = cq.create().unwrap();
    let other = EventFd::new().unwrap();
    let refused = channel.add_to_epoll(other.as_fd(), false, 0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    let epoll = NotifyFd::of(other.as_fd()).unwrap();
    channel.add_to_epoll(epoll.as_fd(), false, 7).unwrap();
    let refused = channel.add_to_epoll(epoll.as_fd(), true, 7).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
    for is_member in [true, false] {
        cq.req_notify(Notify::Next).unwrap();
        assert!(!is_readable(epoll.as_fd()));
        let completion = crate::provider::wc(0, ffi::ibv_wc_opcode::IBV_WC_SEND);
        fixture.fake.push(&cq, completion);
        assert_eq!(is_readable(epoll.as_fd()), is_member);
        assert_eq!(channel.try_next().unwrap(), Some(CqKey(5)));
        assert!(!is_readable(epoll.as_fd()), "it has been taken");
        let removed = channel.remove_from_epoll(epoll.as_fd());
        assert_eq!(removed.is_ok(), is_member, "{removed:?}");
    }
}

#[test]
fn async_event_descriptor_gives_no_access_to_its_events() {
    let fixture = Fixture::new();
    let events = fixture.ctx.async_events().unwrap();
    fixture
        .fake
        .raise(ffi::ibv_event_type::IBV_EVENT_PORT_ERR, 1);
    assert!(is_readable(events.as_fd()));
    misuse(events.as_fd());
    // SAFETY: the context is open.
    let raw_fd = unsafe { (*fixture.ctx.as_raw()).async_fd };
    assert_ne!(events.as_raw_fd(), raw_fd);
    assert!(is_nonblocking(raw_fd));
    assert!(events.try_next().unwrap().is_some());
    assert!(events.try_next().unwrap().is_none());
}
