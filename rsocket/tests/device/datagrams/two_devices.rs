//! Datagrams on two devices of one host.

use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use rsocket::{Socket, errno};

use super::{DEVICE, TEST_TIMEOUT, bound, introduce_by, recv};
use crate::{
    leaks::{resources, wait_for_release},
    local,
    machine::require_guest,
};

const ENODEV: i32 = 19;

/// Name of the second device.
const SECOND: &str = "rxe_second";
const SECOND_ADDR: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);

/// Set in the process using both devices.
const IS_USER: &str = "RSOCKET_USES_TWO_DEVICES";

/// Runs a command in the guest as root.
fn run(command: &str) {
    let mut words = command.split(' ');
    let mut program = Command::new(words.next().unwrap());
    let status = program.args(words).status().unwrap();
    assert!(status.success(), "`{command}` failed ({status})");
}

/// Creates a second device until dropped. The device is only removed once no process has it open.
struct SecondDevice;

impl SecondDevice {
    fn new() -> Self {
        require_guest("makes a network interface with a device");
        run("ip link add second0 type dummy");
        let this = Self;
        run("ip link set second0 up");
        run(&format!("ip address add {SECOND_ADDR}/24 dev second0"));
        run(&format!("rdma link add {SECOND} type rxe netdev second0"));
        // The GID table is filled asynchronously.
        let deadline = Instant::now() + TEST_TIMEOUT;
        while !Self::has_address() {
            assert!(Instant::now() < deadline, "{SECOND} has no address");
            thread::sleep(Duration::from_millis(10));
        }
        this
    }

    fn has_address() -> bool {
        let gids = format!("/sys/class/infiniband/{SECOND}/ports/1/gids");
        let [a, b, c, d] = SECOND_ADDR.octets();
        let end = format!("ffff:{a:02x}{b:02x}:{c:02x}{d:02x}");
        let entries = fs::read_dir(gids).unwrap();
        entries
            .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap_or_default())
            .any(|gid| gid.trim().ends_with(&end))
    }
}

impl Drop for SecondDevice {
    fn drop(&mut self) {
        // Deleting the interface deletes the device.
        run("ip link delete second0");
    }
}

/// Whether the kernel still has the second device or its resources.
fn is_known() -> bool {
    ["link show", "resource show"]
        .map(|what| {
            let shown = Command::new("rdma").args(what.split(' ')).output().unwrap();
            assert!(shown.status.success(), "{shown:?}");
            String::from_utf8(shown.stdout).unwrap()
        })
        .iter()
        .any(|shown| shown.contains(SECOND))
}

#[test]
fn sockets_on_two_devices_end_cleanly() {
    let second = SecondDevice::new();
    let user = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "datagrams::two_devices::child_process_with_two_devices",
        ])
        .args(["--nocapture"])
        .env(IS_USER, "1")
        .stdout(Stdio::null())
        .status();
    assert!(user.unwrap().success());
    drop(second);
    let deadline = Instant::now() + TEST_TIMEOUT;
    while is_known() {
        assert!(Instant::now() < deadline, "{SECOND} is still there");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Body of the child process, not a test of its own. Without the variable, only checks that no second device
/// exists.
#[test]
fn child_process_with_two_devices() {
    if env::var_os(IS_USER).is_none() {
        assert!(!is_known(), "{SECOND} is of another test");
        return;
    }
    two_devices_are_used();
    let before = resources();
    two_devices_are_used();
    wait_for_release(&before);
    one_of_two_devices_goes();
}

/// Two sockets on each device, and one on both.
struct Sockets {
    devices: [(&'static str, [Socket; 2]); 2],
    everywhere: Socket,
}

impl Sockets {
    /// Creates the sockets with all routes resolved.
    fn new() -> Self {
        let of = |device, addr| (device, [bound(addr), bound(addr)]);
        let second = SocketAddr::new(SECOND_ADDR.into(), 0);
        let this = Self {
            devices: [of(DEVICE, local()), of(SECOND, second)],
            everywhere: bound((Ipv4Addr::UNSPECIFIED, 0).into()),
        };
        for (device, [a, b]) in &this.devices {
            introduce_by(
                device,
                (a, a.local_addr().unwrap()),
                (b, b.local_addr().unwrap()),
            );
            let everywhere = (&this.everywhere, this.everywhere_at(a));
            introduce_by(device, (a, a.local_addr().unwrap()), everywhere);
        }
        this
    }

    /// Address of the socket on both devices, as seen by `peer`.
    fn everywhere_at(&self, peer: &Socket) -> SocketAddr {
        SocketAddr::new(
            peer.local_addr().unwrap().ip(),
            self.everywhere.local_addr().unwrap().port(),
        )
    }
}

/// Closes a socket while others send to one address each.
fn close_while_others_send(closing: &Socket, senders: &[(&Socket, SocketAddr)]) {
    let closed = AtomicBool::new(false);
    thread::scope(|scope| {
        for &(other, to) in senders {
            let closed = &closed;
            scope.spawn(move || {
                let send = || other.send_to(b"x", to);
                while !closed.load(Ordering::Relaxed) {
                    assert_eq!(send().unwrap(), 1);
                }
                for _ in 0..100 {
                    assert_eq!(send().unwrap(), 1);
                }
            });
        }
        for _ in 0..100 {
            assert_eq!(recv(closing).0, b"x");
        }
        closing.close();
        closed.store(true, Ordering::Relaxed);
    });
}

fn two_devices_are_used() {
    let sockets = Sockets::new();
    let to_everywhere = sockets
        .devices
        .each_ref()
        .map(|(_, [a, _])| (a, sockets.everywhere_at(a)));
    close_while_others_send(&sockets.everywhere, &to_everywhere);
    for (device, [a, b]) in &sockets.devices {
        introduce_by(
            device,
            (a, a.local_addr().unwrap()),
            (b, b.local_addr().unwrap()),
        );
        close_while_others_send(b, &[(a, b.local_addr().unwrap())]);
    }
}

/// Sockets on the remaining device continue.
fn one_of_two_devices_goes() {
    let sockets = Sockets::new();
    let [(_, [first, _]), (_, [second, _])] = &sockets.devices;
    // The removal cannot finish before this process ends.
    run_in_background(&format!("rdma link delete {SECOND}"));
    let to = second.local_addr().unwrap();
    let deadline = Instant::now() + TEST_TIMEOUT;
    let send = || sockets.everywhere.send_to(b"x", to);
    while !send().is_err_and(|err| errno(&err) == ENODEV) {
        assert!(Instant::now() < deadline, "{SECOND} does not go");
    }
    let everywhere = (&sockets.everywhere, sockets.everywhere_at(first));
    introduce_by(DEVICE, (first, first.local_addr().unwrap()), everywhere);
}

fn run_in_background(command: &str) {
    let status = Command::new("sh")
        .args(["-c", &format!("{command} &")])
        .status();
    assert!(status.unwrap().success());
}
