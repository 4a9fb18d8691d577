//! Every hint, with the failure that leads to it.

use std::{fmt, net::IpAddr, time::Duration};

use super::{
    Addresses, Hint, Machine, huge_pages,
    limits::{Limit, exceeded},
    of_status, unknown_device,
};
use crate::{
    Error, WcStatus,
    cq::{Attempts, WcError},
    qp::QpNum,
};

/// A machine with a device, the kernel's interface for programs, and a limit of locked memory.
fn ready() -> Machine {
    Machine {
        memlock: Some(64 << 10),
        devices: vec!["rxe0".to_owned()],
        uverbs: true,
        advice: None,
    }
}

struct On<'a>(Hint, &'a Machine);

impl fmt::Display for On<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(self.1, f)
    }
}

const LOCKING: [&str; 13] = [
    "ibv_open_device",
    "ibv_reg_mr",
    "ibv_reg_mr_ex",
    "ibv_reg_buf_mr",
    "ibv_rereg_mr",
    "ibv_create_cq",
    "ibv_create_cq_ex",
    "ibv_resize_cq",
    "ibv_create_qp",
    "ibv_create_qp_ex",
    "ibv_create_srq",
    "ibv_create_srq_ex",
    "ibv_create_wq",
];

/// Each case is a call, its error number, the machine, and the words that the hint has to contain.
#[test]
#[expect(clippy::too_many_lines, reason = "one table of cases")]
fn hint_is_chosen_by_call_and_errno() {
    let bare = Machine::default();
    let without_uverbs = Machine {
        uverbs: false,
        ..ready()
    };
    let advised = Machine {
        advice: Some("enter a host"),
        ..ready()
    };
    let unlimited = Machine {
        memlock: None,
        ..ready()
    };
    let channel = "rdma_create_event_channel";
    let table: &[(&str, i32, &Machine, &[&str])] = &[
        (
            channel,
            libc::ENODEV,
            &bare,
            &["no RDMA device", "modprobe rdma_rxe", "rdma link add"],
        ),
        (
            channel,
            libc::ENOENT,
            &ready(),
            &["connection manager", "modprobe rdma_ucm"],
        ),
        (channel, libc::ENOSYS, &ready(), &["modprobe rdma_ucm"]),
        (channel, libc::ENXIO, &ready(), &["modprobe rdma_ucm"]),
        ("rdma_get_devices", libc::ENODEV, &bare, &["no RDMA device"]),
        (channel, libc::ENODEV, &advised, &["enter a host"]),
        ("ibv_open_device", libc::ENODEV, &advised, &["enter a host"]),
        (
            "rdma_create_id",
            libc::ENODEV,
            &ready(),
            &["modprobe rdma_ucm"],
        ),
        (
            channel,
            libc::EACCES,
            &ready(),
            &["/dev/infiniband/rdma_cm", "group"],
        ),
        (channel, libc::EPERM, &ready(), &["/dev/infiniband/rdma_cm"]),
        (
            channel,
            libc::EMFILE,
            &ready(),
            &["RLIMIT_NOFILE", "ulimit -n"],
        ),
        (
            "ibv_get_device_list",
            libc::ELIBACC,
            &bare,
            &["libibverbs", "install"],
        ),
        (channel, libc::ELIBACC, &bare, &["librdmacm", "install"]),
        ("ibv_open_device", libc::ENODEV, &bare, &["no RDMA device"]),
        (
            "ibv_open_device",
            libc::ENOENT,
            &without_uverbs,
            &["modprobe ib_uverbs"],
        ),
        (
            "ibv_open_device",
            libc::ENODEV,
            &ready(),
            &["removed", "rdma link"],
        ),
        (
            "ibv_open_device",
            libc::EACCES,
            &ready(),
            &["/dev/infiniband/uverbs", "group"],
        ),
        (
            "ibv_post_send",
            libc::EACCES,
            &ready(),
            &["another user", "open the device after"],
        ),
        (
            "ibv_req_notify_cq",
            libc::EACCES,
            &ready(),
            &["another user"],
        ),
        (
            "rdma_bind_addr",
            libc::EADDRINUSE,
            &ready(),
            &["has the port", "rdma resource"],
        ),
        ("rdma_listen", libc::EADDRINUSE, &ready(), &["has the port"]),
        (
            "rdma_bind_addr",
            libc::EACCES,
            &ready(),
            &["below 1024", "CAP_NET_BIND_SERVICE"],
        ),
        (
            "ibv_reg_mr",
            libc::ENOMEM,
            &ready(),
            &[
                "64 KiB",
                "RLIMIT_MEMLOCK",
                "ulimit -l",
                "limits.conf",
                "LimitMEMLOCK",
            ],
        ),
        (
            "ibv_reg_mr",
            libc::ENOMEM,
            &unlimited,
            &["RLIMIT_MEMLOCK is unlimited"],
        ),
    ];
    for &(call, errno, machine, names) in table {
        let hint = Hint::of(call, errno).unwrap_or_else(|| panic!("{call}, {errno}: no hint"));
        let text = On(hint, machine).to_string();
        for name in names {
            assert!(
                text.contains(name),
                "{call}, {errno}: {text} does not name {name}"
            );
        }
    }
    for call in LOCKING {
        assert_eq!(
            Hint::of(call, libc::ENOMEM),
            Some(Hint::LockedMemory),
            "{call}"
        );
    }
    for (call, errno) in [
        ("ibv_reg_mr", libc::EINVAL),
        ("ibv_dereg_mr", libc::ENOMEM),
        ("rdma_bind_addr", libc::EINVAL),
        ("ibv_post_send", libc::ENOMEM),
    ] {
        assert_eq!(Hint::of(call, errno), None, "{call}, {errno}");
    }
}

#[test]
fn error_shows_the_hint_of_its_call_or_its_own() {
    let err = Error::from_errno("rdma_bind_addr", libc::EACCES).detail("10.9.0.1:80");
    let expected = "`rdma_bind_addr` failed (10.9.0.1:80): Permission denied (os error 13); ports below 1024 need \
                    the capability CAP_NET_BIND_SERVICE";
    assert_eq!(err.to_string(), expected);
    assert_eq!(format!("{err:?}"), expected);
    let err = err.hint("ask the administrator");
    assert!(
        err.to_string()
            .ends_with("(os error 13); ask the administrator"),
        "{err}"
    );
    // The hint depends on the limit of this process, but names it in any case.
    let err = Error::from_errno("ibv_reg_mr", libc::ENOMEM);
    assert!(err.to_string().contains("RLIMIT_MEMLOCK"), "{err}");
}

#[test]
fn unknown_device_hint_lists_the_devices() {
    let text = unknown_device(&["rxe0", "mlx5_0"], &ready());
    assert!(text.ends_with("rxe0, mlx5_0"), "{text}");
    assert!(unknown_device(&[], &Machine::default()).contains("no RDMA device"));
    let without_uverbs = Machine {
        uverbs: false,
        ..ready()
    };
    assert!(unknown_device(&[], &without_uverbs).contains("modprobe ib_uverbs"));
}

#[test]
fn hint_devices_are_read_from_sysfs() {
    let class = std::env::temp_dir().join(format!("verbs-hint-{}", std::process::id()));
    for name in [
        "infiniband/rxe1",
        "infiniband/rxe0",
        "infiniband_verbs/uverbs0",
    ] {
        std::fs::create_dir_all(class.join(name)).unwrap();
    }
    let machine = Machine::below(&class);
    assert_eq!(machine.devices, ["rxe0", "rxe1"]);
    assert!(machine.uverbs);
    std::fs::remove_dir(class.join("infiniband_verbs/uverbs0")).unwrap();
    assert!(!Machine::below(&class).uverbs);
    std::fs::remove_dir_all(&class).unwrap();
    let machine = Machine::below(&class);
    assert!(machine.devices.is_empty() && !machine.uverbs);
}

#[test]
fn hint_of_exceeded_limit_names_the_devices_value() {
    let limits = [
        Limit::new("max_send_wr", 17_000_u32, "max_qp_wr", 16_384_u32),
        Limit::new("max_recv_wr", 16_384_u32, "max_qp_wr", 16_384_u32),
        Limit::new("max_send_sge", 40_u32, "max_sge", 32_u32),
    ];
    assert_eq!(
        exceeded(&limits).as_deref(),
        Some(
            "max_send_wr is 17000, and the device allows 16384 (max_qp_wr); max_send_sge is 40, and the device allows \
             32 (max_sge)"
        )
    );
    assert_eq!(exceeded(&limits[1..2]), None);
}

#[test]
fn hint_of_huge_pages_differs_from_other_memory() {
    assert!(huge_pages(Some(libc::ENOMEM)).contains("nr_hugepages"));
    assert!(huge_pages(Some(libc::EINVAL)).contains("no huge pages of this size"));
    assert!(huge_pages(None).contains("/sys/kernel/mm/hugepages"));
}

/// Source, destination, error number, whether the call has failed at once, and the words that the
/// hint has to contain.
type AddressCase<'a> = (Option<IpAddr>, Option<IpAddr>, i32, bool, &'a [&'a str]);

#[test]
#[expect(clippy::too_many_lines, reason = "one table of cases")]
fn hint_of_address_names_the_address() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let (local, peer, loopback) = (ip("10.9.0.9"), ip("10.9.0.1"), ip("127.0.0.1"));
    let cases: &[AddressCase<'_>] = &[
        (
            None,
            Some(loopback),
            libc::ENODEV,
            false,
            &["127.0.0.1", "loopback"],
        ),
        (
            None,
            Some(ip("::1")),
            libc::ENODEV,
            false,
            &["::1", "loopback"],
        ),
        (
            None,
            Some(ip("::ffff:127.0.0.1")),
            libc::ENODEV,
            false,
            &["loopback"],
        ),
        (
            Some(loopback),
            None,
            libc::ENODEV,
            true,
            &["127.0.0.1", "loopback"],
        ),
        (
            Some(loopback),
            Some(peer),
            libc::ENODEV,
            true,
            &["127.0.0.1", "loopback"],
        ),
        (
            Some(local),
            Some(peer),
            libc::ENODEV,
            true,
            &["source address 10.9.0.9", "no RDMA device"],
        ),
        (
            Some(local),
            Some(peer),
            libc::EADDRNOTAVAIL,
            true,
            &["source address 10.9.0.9"],
        ),
        (
            Some(local),
            None,
            libc::ENODEV,
            true,
            &["source address 10.9.0.9"],
        ),
        (
            Some(ip("::1")),
            Some(peer),
            libc::EINVAL,
            true,
            &["::1", "10.9.0.1", "families"],
        ),
        (
            None,
            Some(peer),
            libc::ENODEV,
            false,
            &["10.9.0.1", "without RDMA device", "ip route get"],
        ),
        (
            Some(local),
            Some(peer),
            libc::ENODEV,
            false,
            &["10.9.0.1", "without RDMA device"],
        ),
        (
            Some(ip("0.0.0.0")),
            Some(peer),
            libc::ENODEV,
            true,
            &["10.9.0.1", "without RDMA device"],
        ),
        (
            None,
            Some(peer),
            libc::ENETUNREACH,
            true,
            &["no route to 10.9.0.1"],
        ),
        (
            None,
            Some(peer),
            libc::EHOSTUNREACH,
            false,
            &["10.9.0.1", "ip neigh"],
        ),
        (
            None,
            Some(peer),
            libc::ETIMEDOUT,
            false,
            &["10.9.0.1", "ip neigh"],
        ),
    ];
    for &(source, destination, errno, at_once, names) in cases {
        let addresses = Addresses {
            source,
            destination,
        };
        let hint = addresses.hint(errno, at_once).expect("a hint");
        for name in names {
            assert!(hint.contains(name), "{addresses:?}, {errno}: {hint}");
        }
    }
    assert_eq!(Addresses::default().hint(libc::ENODEV, true), None);
    let addresses = Addresses {
        source: None,
        destination: Some(peer),
    };
    assert_eq!(addresses.hint(libc::EINVAL, true), None);
}

#[test]
fn hint_is_chosen_by_completion_status() {
    for (status, names) in [
        (WcStatus::LOC_LEN_ERR, &["larger receives"][..]),
        (WcStatus::REM_INV_REQ_ERR, &["larger receives"]),
        (WcStatus::LOC_QP_OP_ERR, &["larger receives"]),
        (
            WcStatus::REM_OP_ERR,
            &["peer's completions", "larger receives"],
        ),
        (
            WcStatus::LOC_PROT_ERR,
            &["protection domain of the queue pair"],
        ),
        (
            WcStatus::REM_ACCESS_ERR,
            &["RKey", "RemoteAccess::READ", "WRITE", "ATOMIC"],
        ),
        (WcStatus::LOC_ACCESS_ERR, &["deregistered"]),
        (WcStatus::RETRY_EXC_ERR, &["peer's program runs", "RTR"]),
        (WcStatus::RNR_RETRY_EXC_ERR, &["post receives", "7"]),
        (WcStatus::WR_FLUSH_ERR, &["earlier completion"]),
        (WcStatus::MW_BIND_ERR, &["windows"]),
    ] {
        let text = WcError::new(status, 0).to_string();
        assert!(
            text.starts_with(&format!("{status:?}: {}; ", status.meaning())),
            "{text}"
        );
        for name in names {
            assert!(text.contains(name), "{text} does not name {name}");
        }
    }
    assert_eq!(of_status(WcStatus::SUCCESS), None);
    assert_eq!(of_status(WcStatus(77)), None);
}

/// The error of a request that the queue pair gives up has the peer, the number of attempts, and
/// the timeout of each.
#[test]
fn hint_of_exhausted_retries_names_peer_and_count() {
    let attempts = |retry_count, rnr_retry| Attempts {
        dest_qp_num: QpNum::from_low_bits(0x11),
        peer: Some("10.9.0.1:7471".parse().unwrap()),
        retry_count,
        ack_timeout: Some(Duration::from_nanos(67_108_864)),
        rnr_retry,
    };
    let text = |status, attempts| WcError::new(status, 0).with_attempts(attempts).to_string();
    let peer = "peer 10.9.0.1:7471, queue pair 0x000011";
    for (status, attempts, expected) in [
        (
            WcStatus::RETRY_EXC_ERR,
            attempts(6, 0),
            format!("{peer}, sent once, and 6 times again, at least 67.1ms for each attempt"),
        ),
        (
            WcStatus::RETRY_EXC_ERR,
            attempts(0, 7),
            format!("{peer}, sent once, without a retry, at least 67.1ms for each attempt"),
        ),
        (
            WcStatus::RNR_RETRY_EXC_ERR,
            attempts(7, 1),
            format!("{peer}, sent twice"),
        ),
    ] {
        let text = text(status, attempts);
        assert!(text.contains(&format!("({expected});")), "{text}");
        assert!(!text.contains("however often"), "{text}");
    }
    let mut unknown = attempts(1, 0);
    unknown.peer = None;
    unknown.ack_timeout = None;
    let text = text(WcStatus::RETRY_EXC_ERR, unknown);
    assert!(
        text.contains("(peer's queue pair 0x000011, sent twice);"),
        "{text}"
    );
    // Another failure has nothing to do with retries.
    let flushed = WcError::new(WcStatus::WR_FLUSH_ERR, 0).with_attempts(unknown);
    assert!(!flushed.to_string().contains("sent"), "{flushed}");
}
