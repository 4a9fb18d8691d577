//! Faults seeded by hand into an example: each is found in one run of `softnic check`.
//!
//! The example is in C, since the compiler refuses most of these faults in the examples in Rust.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "other tests use the rest")]
mod program;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use program::{addr, compile};

/// The example without a fault.
const EXAMPLE: &str = include_str!("check/exchange.c");

/// Exit status of a program with reports.
const REPORTED: i32 = 99;

/// Exit status of the example after a failed check of its own.
const FAILED: i32 = 1;

/// A text of the example, the text of a faulty program, the rules of the device, and the expected exit status and words.
struct Fault {
    name: &'static str,
    original: &'static str,
    faulty: &'static str,
    rules: Option<&'static str>,
    status: i32,
    words: &'static [&'static str],
}

const FAULTS: &[Fault] = &[
    Fault {
        name: "memory is freed early",
        original: "		wait_for(client, 2);\n		wait_for(server, 1);\n		check(!ibv_dereg_mr(mr)",
        faulty: "		munmap(page, PAGE);\n		wait_for(client, 2);\n		check(!ibv_dereg_mr(mr)",
        rules: Some("unfenced"),
        status: REPORTED,
        words: &[
            "softnic: memory unmapped or freed while the device accesses it",
            "an RDMA read",
            "posted or made by post (",
        ],
    },
    Fault {
        name: "memory is reused early",
        original: "	wait_for(server, 1);\n	wait_for(client, 2);\n	memset(client->memory, 1, 64);",
        faulty: "	memset(client->memory, 1, 64);\n	wait_for(server, 1);\n	wait_for(client, 2);",
        rules: None,
        status: REPORTED,
        words: &[
            "softnic: send memory changed while posted",
            "was 0x00 when request 0, a send",
            "is 0x01 before its completion has been polled",
        ],
    },
    Fault {
        name: "the local key is taken for the remote key",
        original: "peer->mr->rkey",
        faulty: "peer->mr->lkey",
        rules: Some("keys"),
        status: REPORTED,
        words: &["the key is a local key of the peer: use `rkey`"],
    },
    Fault {
        name: "the key is that of other memory",
        original: "peer->mr->rkey",
        faulty: "end->mr->rkey",
        rules: None,
        status: REPORTED,
        words: &[
            "softnic: request outside of the peer's region, domain or rights",
            "an RDMA write",
        ],
    },
    Fault {
        name: "no write is signaled",
        original: "int is_signaled = i % 8 == 0;",
        faulty: "int is_signaled = i == 3 * DEPTH;",
        rules: None,
        status: REPORTED,
        words: &[
            "softnic: send queue without a signaled request",
            "behind 16 unsignaled ones",
        ],
    },
    Fault {
        name: "the completion queue is small",
        original: "ibv_create_cq(ctx, 2 * DEPTH,",
        faulty: "ibv_create_cq(ctx, DEPTH / 2,",
        rules: None,
        status: REPORTED,
        words: &["softnic: completion queue too small", "has 15 entries"],
    },
    Fault {
        name: "the last byte of a message is polled",
        original: "		receive(server, 0, 0);\n		post(client, server, IBV_WR_RDMA_WRITE, 0, client->mr, 256, 128);\n		post(client, server, IBV_WR_SEND, IBV_SEND_SIGNALED, client->mr, 0, 0);\n		wait_for(server, 1);\n",
        faulty: "		post(client, server, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, client->mr, 256, 128);\n		while (message[127] != i)\n			;\n",
        rules: Some("placement"),
        status: FAILED,
        words: &["the message is not complete"],
    },
    Fault {
        name: "the reply is posted before RTR",
        original: "	bring_up(&server, &client);\n",
        faulty: "	receive(&client, 64, 64);\n	post(&server, &client, IBV_WR_SEND, IBV_SEND_SIGNALED, server.mr, 0, 64);\n	bring_up(&server, &client);\n	wait_for(&server, 1);\n",
        rules: None,
        status: FAILED,
        words: &["ibv_post_send: Invalid argument"],
    },
    Fault {
        name: "the reply is posted before RTR to a device that drops it",
        original: "	bring_up(&server, &client);\n",
        faulty: "	receive(&client, 64, 64);\n	post(&server, &client, IBV_WR_SEND, IBV_SEND_SIGNALED, server.mr, 0, 64);\n	bring_up(&server, &client);\n	wait_for(&server, 1);\n",
        rules: Some("early-post"),
        status: FAILED,
        words: &["no completion came"],
    },
    Fault {
        name: "more reads are in flight than the peer accepts",
        original: "attr.max_dest_rd_atomic = 16;",
        faulty: "attr.max_dest_rd_atomic = 1;",
        rules: Some("unfenced"),
        status: REPORTED,
        words: &[
            "softnic: more reads in flight than the peer accepts",
            "has max_rd_atomic 16",
            "accepts max_dest_rd_atomic 1",
        ],
    },
    Fault {
        name: "the queue is not polled after arming",
        original: "		while (!(polled = ibv_poll_cq(server->cq, 1, &wc)))\n			wait_for_event(server);",
        faulty: "		wait_for_event(server);\n		polled = ibv_poll_cq(server->cq, 1, &wc);",
        rules: None,
        status: FAILED,
        words: &["no event came"],
    },
    Fault {
        name: "the result of a read is sent on without a fence",
        original: "IBV_SEND_SIGNALED | IBV_SEND_FENCE, mr",
        faulty: "IBV_SEND_SIGNALED, mr",
        rules: None,
        status: REPORTED,
        words: &[
            "softnic: memory of an outstanding read is sent without a fence",
            "set IBV_SEND_FENCE",
        ],
    },
    Fault {
        name: "an event is acknowledged twice",
        original: "ibv_ack_cq_events(cq, 1);",
        faulty: "ibv_ack_cq_events(cq, 2);",
        rules: None,
        status: REPORTED,
        words: &["softnic: too many events acknowledged"],
    },
    Fault {
        name: "a write ends behind the memory of the peer",
        original: "(uintptr_t)peer->memory + offset;",
        faulty: "(uintptr_t)peer->memory + PAGE - 4;",
        rules: None,
        status: REPORTED,
        words: &["4 bytes behind it"],
    },
    Fault {
        name: "the region is deregistered before its receive",
        original: "	bring_up(&client, &server);\n",
        faulty: "	receive(&client, 0, 64);\n	ibv_dereg_mr(client.mr);\n	client.mr = reg(client.memory);\n	bring_up(&client, &server);\n",
        rules: None,
        status: REPORTED,
        words: &[
            "softnic: region deregistered before its request",
            "a receive of queue pair",
        ],
    },
];

/// Builds a program of a text.
fn build(folder: &Path, name: &str, source: &str) -> PathBuf {
    let file = folder.join(format!("{name}.c"));
    fs::write(&file, source).unwrap();
    compile(folder, &file, &["-O1"])
}

/// Runs a program by `softnic check`.
fn check(program: &Path, host: usize, rules: Option<&str>) -> Output {
    let rules = rules.map(|rules| format!("7:{rules}"));
    let mut options = vec!["--seed", "7"];
    if let Some(rules) = &rules {
        options.extend(["--adversary", rules]);
    }
    let host = u8::try_from(host + 1).unwrap();
    program::check(addr(51, host), &options, program, &[])
}

#[cfg_attr(without_programs, ignore = "needs rdma-core's headers and libraries")]
#[test]
fn each_fault_of_an_example_is_found_in_one_run() {
    let folder = tempfile::tempdir().unwrap();
    // Some of the programs wait in vain for some seconds.
    let next = AtomicUsize::new(0);
    let find_next = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(fault) = FAULTS.get(number) else {
                return;
            };
            find(fault, number, folder.path());
        }
    };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(find_next);
        }
    });
}

fn find(fault: &Fault, number: usize, folder: &Path) {
    let name = fault.name;
    assert_eq!(EXAMPLE.matches(fault.original).count(), 1, "{name}");
    let source = EXAMPLE.replace(fault.original, fault.faulty);
    let program = build(folder, &format!("fault{number}"), &source);
    let output = check(&program, number, fault.rules);
    let report = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(fault.status), "{name}: {report}");
    for word in fault.words {
        assert!(report.contains(word), "{name}: {word}: {report}");
    }
}

#[cfg_attr(without_programs, ignore = "needs rdma-core's headers and libraries")]
#[test]
fn example_without_a_fault_is_silent() {
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path(), "exchange", EXAMPLE);
    let rules = FAULTS.iter().filter_map(|fault| fault.rules);
    for (number, rules) in rules.map(Some).chain([None]).enumerate() {
        let output = check(&program, 100 + number, rules);
        assert!(output.status.success(), "{rules:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{rules:?}: {output:?}");
    }
}
