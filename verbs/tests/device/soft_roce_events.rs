//! Asynchronous events triggered by changes of a network interface, and by Soft-RoCE's queues, longer than requested; and
//! the directory of a device in sysfs.

use std::{
    fs::OpenOptions,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    path::Path,
    process::Command,
    ptr,
    time::Duration,
};

use ibverbs_sys as ffi;
use verbs::{
    Context, QueuePair,
    attr::PortState,
    event::{AsyncEvent, AsyncEvents, EventObject, EventType},
};

use crate::{loopback::Fixture, machine::require_guest};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a program of the guest, as root.
fn run(command: &str) {
    let mut words = command.split(' ');
    let mut program = Command::new(words.next().unwrap());
    let status = program.args(words).status().unwrap();
    assert!(status.success(), "`{command}` failed ({status})");
}

/// A separate device, with an interface that can go down without effect on other tests.
struct Spare {
    kind: &'static str,
}

impl Spare {
    fn new() -> Self {
        require_guest("makes a network interface with a device");
        let iwarp = Fixture::new().ctx.is_iwarp();
        let kind = if iwarp { "siw" } else { "rxe" };
        let spare = Self { kind };
        // Soft-iWARP does not work on a dummy interface.
        run("ip link add spare0 type veth peer name spare1");
        run("ip link set spare0 up");
        run("ip link set spare1 up");
        run("ip address add 10.77.0.1/24 dev spare0");
        run(&format!(
            "rdma link add {kind}_spare type {kind} netdev spare0"
        ));
        spare
    }

    fn open(&self) -> Context {
        let devices = verbs::devices().unwrap();
        let device = devices.find(&format!("{}_spare", self.kind));
        device.unwrap().open().unwrap()
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        // Deleting the interface removes the device.
        run("ip link delete spare0");
    }
}

/// Waits for an event of this type, and passes over others of the port.
fn wait_for(events: &AsyncEvents, event_type: EventType) -> AsyncEvent {
    loop {
        let event = events.wait_timeout(TEST_TIMEOUT).unwrap();
        let event = event.unwrap_or_else(|| unreachable!("no {event_type:?} has come"));
        assert_eq!(event.object, EventObject::Port(1));
        if event.event_type == event_type {
            return event;
        }
    }
}

#[test]
fn port_state_events_are_reported() {
    let spare = Spare::new();
    let ctx = spare.open();
    let events = ctx.async_events().unwrap();
    for _ in 0..2 {
        run("ip link set spare0 down");
        wait_for(&events, EventType::PORT_ERR);
        assert_eq!(ctx.query_port(1).unwrap().state(), PortState::DOWN);
        run("ip link set spare0 up");
        wait_for(&events, EventType::PORT_ACTIVE);
        assert_eq!(ctx.query_port(1).unwrap().state(), PortState::ACTIVE);
    }
}

#[test]
fn gid_change_event_is_reported() {
    let spare = Spare::new();
    let ctx = spare.open();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().unwrap();
    runtime.block_on(async {
        let events = verbs::tokio::AsyncEvents::new(ctx.async_events().unwrap()).unwrap();
        let gids = |ctx: &Context| ctx.query_gid_table().unwrap().len();
        let before = gids(&ctx);
        for (change, more) in [("add", true), ("delete", false)] {
            run(&format!("ip address {change} 10.78.0.1/24 dev spare0"));
            while (gids(&ctx) > before) != more {
                let event = tokio::time::timeout(TEST_TIMEOUT, events.wait()).await;
                let event = event.expect("no event has come").unwrap();
                assert_eq!(event.object, EventObject::Port(1));
                assert_eq!(event.event_type, EventType::GID_CHANGE);
            }
        }
    });
}

/// The sign of a removal, after which memory of the device is freed.
#[test]
fn attributes_of_a_device_outlive_its_name_and_not_its_removal() {
    let spare = Spare::new();
    let name = format!("{}_spare", spare.kind);
    let path = Path::new("/sys/class/infiniband").join(&name);
    let mut options = OpenOptions::new();
    options.read(true);
    options.custom_flags(libc::O_PATH | libc::O_DIRECTORY);
    let directory = options.open(&path).unwrap();
    let fd = directory.as_raw_fd();
    let attribute = format!("/proc/self/fd/{fd}/node_guid");
    let has_attribute = || Path::new(&attribute).try_exists().unwrap();
    run(&format!("rdma dev set {name} name renamed0"));
    assert!(!path.exists());
    assert!(has_attribute(), "the device has another name");
    drop(spare);
    assert!(!has_attribute(), "the device is removed");
}

/// Posts more receives than this crate allows, and flushes them.
fn overflow(
    fixture: &Fixture,
    cq: &verbs::CompletionQueue,
) -> [QueuePair<verbs::Rc, verbs::Init>; 3] {
    [(); 3].map(|()| {
        // Soft-RoCE makes room for 31.
        let builder = fixture.pd.qp_builder::<verbs::Rc>(cq, cq);
        let qp = builder.max_send_wr(1).max_recv_wr(16).create().unwrap();
        let mut qp = qp.to_init(&fixture.init()).unwrap();
        for _ in 0..31 {
            let mut bad = ptr::null_mut();
            let mut wr = ffi::ibv_recv_wr {
                wr_id: u64::MAX,
                next: ptr::null_mut(),
                sg_list: ptr::null_mut(),
                num_sge: 0,
            };
            // SAFETY: the queue pair exists, and the request names no memory.
            let errno = unsafe { ffi::ibv_post_recv(qp.as_raw(), &raw mut wr, &raw mut bad) };
            assert_eq!(errno, 0);
        }
        qp.to_error().unwrap();
        qp
    })
}

#[test]
fn cq_overflow_event_is_reported() {
    let fixture = Fixture::new();
    let events = fixture.ctx.async_events().unwrap();
    let mut cq = fixture.cq(63);
    assert!(cq.capacity() < 3 * 31, "{}", cq.capacity());
    let mut qps = overflow(&fixture, &cq);
    let event = events.wait_timeout(TEST_TIMEOUT).unwrap().unwrap();
    assert_eq!(event.event_type, EventType::CQ_ERR);
    assert_eq!(event.object, EventObject::Cq(cq.kernel_handle()));
    // Completions without a posted work.
    for mut wc in cq.poll().unwrap() {
        for qp in &mut qps {
            wc = qp.complete(wc).unwrap_err();
        }
    }
    // Destroying the queue does not wait for pending events, and discards them.
    drop(qps);
    drop(cq);
    assert_eq!(events.try_next().unwrap(), None);
}
