//! Mistakes in the set-up of a fabric are refused where they are made, and change nothing.

use std::{
    cell::RefCell,
    net::IpAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc,
    time::Duration,
};

use softnic::{Fabric, Faults, Host};

use crate::end::Connected;

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The message of the panic of `act`.
fn refusal<T>(act: impl FnOnce() -> T) -> String {
    let panic = catch_unwind(AssertUnwindSafe(act)).err();
    let panic = panic.expect("the call was not refused");
    panic.downcast_ref::<String>().unwrap().clone()
}

fn first_device(host: &Host) -> String {
    host.run(current_device).unwrap()
}

/// The name of the first device of this thread's host.
fn current_device() -> Option<String> {
    let devices = verbs::devices().unwrap();
    devices.iter().next().map(|device| device.name().to_owned())
}

#[test]
fn host_with_a_taken_address_is_refused_and_the_network_works_on() {
    let fabric = Fabric::new();
    let mut pair = Connected::new(fabric);
    for addrs in [
        &[addr("10.9.0.1")][..],
        &[addr("10.9.0.7"), addr("10.9.0.2")],
        &[addr("10.9.0.8"), addr("10.9.0.8")],
    ] {
        let text = refusal(|| pair.fabric.host_with_addrs(addrs));
        assert!(text.contains("has the address 10.9.0."), "{text}");
    }
    let sent = pair.a.filled(b"still here");
    pair.qp_b.post_recv(pair.b.filled(&[0; 16])).unwrap();
    pair.qp_a.post(verbs::op::Send::new(sent)).unwrap();
    assert_eq!(pair.b.reap(&mut pair.qp_b, 1)[0].len, 10);
    assert_eq!(pair.a.reap(&mut pair.qp_a, 1).len(), 1);
    // The free addresses of refused hosts are free.
    assert_eq!(
        first_device(&pair.fabric.host(addr("10.9.0.7"))),
        "softnic2"
    );
    assert_eq!(
        first_device(&pair.fabric.host(addr("10.9.0.8"))),
        "softnic3"
    );
}

#[test]
fn host_with_an_address_of_no_host_is_refused() {
    let fabric = Fabric::new();
    for of_none in [
        "0.0.0.0",
        "::",
        "239.1.2.3",
        "ff0e::1",
        "255.255.255.255",
        "::ffff:0.0.0.0",
        "::ffff:239.1.2.3",
    ] {
        let text = refusal(|| fabric.host(addr(of_none)));
        assert!(text.contains("is no address of a host"), "{text}");
    }
}

#[test]
fn mapped_address_is_the_address_of_version_4() {
    let fabric = Fabric::new();
    let host = fabric.host(addr("::ffff:10.9.0.1"));
    assert_eq!(host.addr(), addr("10.9.0.1"));
    let text = refusal(|| fabric.host(addr("10.9.0.1")));
    assert!(text.contains("another host has the address"), "{text}");
}

#[test]
fn faults_out_of_range_are_refused() {
    for bad in [-0.1, 1.5, 10.0, f64::NAN, f64::INFINITY] {
        let refused = [
            refusal(|| Fabric::new().loss(bad)),
            refusal(|| Fabric::new().duplication(bad)),
            refusal(|| Fabric::new().corruption(bad)),
        ];
        for (text, what) in refused.iter().zip(["loss", "duplication", "corruption"]) {
            assert!(
                text.contains(what) && text.contains("between 0 and 1"),
                "{text}"
            );
        }
    }
    let faults = Faults {
        delay: Duration::from_micros(80)..Duration::from_micros(5),
        ..Faults::default()
    };
    let text = refusal(|| Fabric::new().set_faults(faults));
    assert!(text.contains("80µs to 5µs"), "{text}");
    let day = Duration::from_secs(86_400);
    let text = refusal(|| Fabric::new().delay(day..day + Duration::from_nanos(1)));
    assert!(text.contains("after a day"), "{text}");
    // The limits themselves, and the delay of one length.
    let _fabric = Fabric::new().loss(1.0).duplication(0.0);
    let _fabric = Fabric::new().delay(Duration::from_micros(5)..Duration::from_micros(5));
    let _fabric = Fabric::new().delay(day..day);
}

#[test]
fn host_of_another_fabric_is_refused() {
    let fabrics = [Fabric::new(), Fabric::new()];
    let hosts = fabrics
        .each_ref()
        .map(|fabric| fabric.host(addr("10.9.0.1")));
    let local = fabrics[0].host(addr("10.9.0.2"));
    let (fabric, foreign) = (&fabrics[0], &hosts[1]);
    let refused = [
        refusal(|| fabric.cut(&local, foreign)),
        refusal(|| fabric.heal(foreign, &local)),
        refusal(|| fabric.link_down(foreign)),
        refusal(|| fabric.link_up(foreign)),
        refusal(|| fabric.kill(foreign)),
    ];
    for text in refused {
        assert!(text.contains("10.9.0.1 is of another fabric"), "{text}");
    }
}

#[test]
fn thread_leaves_hosts_in_any_order() {
    let fabric = Fabric::new();
    let [a, b] = ["10.9.0.1", "10.9.0.2"].map(|text| fabric.host(addr(text)));
    let (on_a, on_b) = (a.enter(), b.enter());
    drop(on_a);
    assert_eq!(current_device().as_deref(), Some("softnic1"));
    drop(on_b);
    assert_eq!(current_device(), None);

    // A stay lasts until the thread ends.
    let stayed = std::thread::spawn(move || {
        let on_a = a.enter();
        b.stay();
        drop(on_a);
        current_device()
    });
    assert_eq!(stayed.join().unwrap().as_deref(), Some("softnic1"));
}

/// A thread-local value that looks for a device in its destructor.
struct LooksAtEnd(Host, mpsc::Sender<[Option<String>; 2]>);

impl Drop for LooksAtEnd {
    fn drop(&mut self) {
        let Self(host, devices) = self;
        devices
            .send([current_device(), host.run(current_device)])
            .unwrap();
        host.stay();
    }
}

#[test]
fn stay_ends_with_its_thread() {
    thread_local! {
        static FIRST: RefCell<Option<LooksAtEnd>> = const { RefCell::new(None) };
        static LAST: RefCell<Option<LooksAtEnd>> = const { RefCell::new(None) };
    }
    let fabric = Fabric::new();
    let host = fabric.host(addr("10.9.0.1"));
    let (sender, devices) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        // Destructors run in the opposite order: the one of the stay is between the others.
        FIRST.set(Some(LooksAtEnd(host.clone(), sender.clone())));
        host.stay();
        LAST.set(Some(LooksAtEnd(host, sender)));
    });
    thread.join().unwrap();
    let on_host = || Some("softnic0".to_owned());
    let devices: Vec<_> = devices.iter().collect();
    assert_eq!(devices, [[on_host(), on_host()], [None, None]]);
}
