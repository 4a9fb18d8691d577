//! Link cuts below streams: temporary or permanent, at a host's own interface or in the network.

use std::env;

use super::{Case, complaints, peer};
use crate::{
    guests::{named, run_for},
    link::{CUT, PREPARE, RESTORE},
};

/// Allowed effects of a cut on a transfer: none, or the end for both sides. The server is notified of the
/// client's end.
const EVERYTHING_OR_RESET: [&[&str]; 2] = [
    &["end", "ConnectionReset"],
    &["everything", "ConnectionReset"],
];
const RESET_OR_STUCK: &[&str] = &["ConnectionReset", "TimedOut"];
const RESET: [&[&str]; 2] = [&["ConnectionReset"], &["ConnectionReset"]];
const EVERYTHING: [&[&str]; 2] = [&["everything"], &["everything"]];

/// Actions of both sides during a link cut, and the allowed outcomes.
struct Play {
    server: &'static str,
    client: &'static str,
    ends: [&'static [&'static str]; 2],
}

/// A cut of host b's link.
struct Cut {
    /// Duration in seconds; `None`: permanent.
    seconds: Option<u32>,
    plays: &'static [Play],
}

/// Two sides with the same actions.
const fn both(doing: &'static str, ends: [&'static [&'static str]; 2]) -> Play {
    Play {
        server: doing,
        client: doing,
        ends,
    }
}

const QUIET: Play = both("quiet", EVERYTHING);

/// An idle server, and a client with keepalive.
const fn one_sided(ends: [&'static [&'static str]; 2]) -> Play {
    Play {
        server: "receiving",
        client: "quiet --keep-alive",
        ends,
    }
}

/// A transfer with keepalive. Without it, a side with all of its data acknowledged may wait for ever: the peer's
/// process, failed during the cut, ends before its disconnect request is retransmitted.
const fn transferring(ends: [&'static [&'static str]; 2]) -> Play {
    both("transferring --keep-alive", ends)
}

/// Actions that survive a short cut in the network, sized for a busy machine.
const SHORT: &[Play] = &[
    transferring(EVERYTHING_OR_RESET),
    transferring(EVERYTHING_OR_RESET),
    one_sided([
        &["something", "ConnectionReset"],
        &["everything", "ConnectionReset"],
    ]),
    QUIET,
];

/// The cuts in the network, in order. A device retransmits unacknowledged packets for 4 seconds with Linux 6.12, for
/// 15 with 6.1.
const ON_THE_WAY: [Cut; 4] = [
    Cut {
        seconds: Some(1),
        plays: SHORT,
    },
    Cut {
        seconds: Some(5),
        plays: SHORT,
    },
    Cut {
        seconds: Some(30),
        plays: &[
            transferring(RESET),
            transferring(RESET),
            // The server is notified of the client's end after the cut.
            one_sided(RESET),
            QUIET,
        ],
    },
    Cut {
        seconds: None,
        plays: &[transferring(RESET), both("quiet --keep-alive", RESET)],
    },
];

/// Keepalive in both directions while a host's own interface is down, which may end the connection. Soft-RoCE
/// may be stuck with a probe then, see `DESIGN.md`, and only the user timeout ends that state.
const fn signs(ends: &'static [&'static str]) -> Play {
    both("quiet --keep-alive --user-timeout 20", [ends, ends])
}

/// Cuts at a host's own interface. Sending fails immediately there, even for the host's connection manager.
const OWN: [Cut; 3] = [
    Cut {
        seconds: Some(1),
        plays: &[signs(&["everything", "ConnectionReset", "TimedOut"]), QUIET],
    },
    Cut {
        seconds: Some(5),
        plays: &[signs(RESET_OR_STUCK), QUIET],
    },
    Cut {
        seconds: Some(30),
        plays: &[signs(RESET_OR_STUCK), QUIET],
    },
];

/// Cuts at a host's own interface while both sides send.
const fn own_while_sending(seconds: u32) -> Cut {
    const STUCK: Play = both(
        "transferring --keep-alive --user-timeout 20",
        [
            &["end", "ConnectionReset", "TimedOut"],
            &["everything", "ConnectionReset", "TimedOut"],
        ],
    );
    Cut {
        seconds: Some(seconds),
        plays: &[STUCK; 4],
    }
}

/// The cases of a cut; the first has the given port.
fn cases(number: usize, cut: &Cut) -> Vec<Case> {
    let long = match cut.seconds {
        Some(seconds) => format!("for {seconds} s"),
        None => "for good".to_owned(),
    };
    let case = |(index, play): (usize, &Play)| {
        let port = u16::try_from(7730 + 10 * number + index).unwrap_or_default();
        let files = format!("--until /tmp/back{number} --ready /tmp/ready{port}");
        Case {
            name: format!(
                "the link is cut {long}, {} and {}",
                play.server, play.client
            ),
            server: peer("server", port, play.server),
            client: peer("client", port, &format!("{} {files}", play.client)),
            server_ends: play.ends[0].to_vec(),
            client_ends: play.ends[1].to_vec(),
        }
    };
    cut.plays.iter().enumerate().map(case).collect()
}

/// Time from the end of a cut to the end of the actions, in seconds. The kernel retransmits a client's disconnect request
/// every 4.4 seconds while the client keeps the connection.
const SETTLE: u32 = 12;

/// Cuts host b's link repeatedly, each time under new connections. Cuts of 30 s are part of the long test
/// only.
fn play(cuts: &[Cut], down: &str, up: &str) {
    let (mut servers, mut clients, mut all) = (vec![], vec![], vec![]);
    let long = env::var_os("LONG").is_some();
    let requested = |cut: &&Cut| long || cut.seconds != Some(30);
    for (number, cut) in cuts.iter().filter(requested).enumerate() {
        let mut ready = vec![];
        for case in cases(number, cut) {
            let name = all.len().to_string();
            servers.push(named(&name, &case.server));
            clients.push(format!("{} &", named(&name, &case.client)));
            ready.extend(case.client.rsplit(' ').next().map(str::to_owned));
            all.push(case);
        }
        let back = match cut.seconds {
            Some(seconds) => format!("sleep {seconds}; {up}; sleep {SETTLE}"),
            // Messages of the client would arrive.
            None => "sleep 40".to_owned(),
        };
        clients.push(format!(
            "for file in {}; do while [ ! -e $file ]; do sleep 0.1; done; done; sleep 0.5; \
             {down}; {back}; touch /tmp/back{number}; wait;",
            ready.join(" ")
        ));
    }
    let printed = run_for(
        290,
        "rxe",
        &format!("{} & wait", servers.join(" & ")),
        &clients.join(" "),
    );
    let wrong = complaints(&all, &printed.a, &printed.b, 0);
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// A host drops all incoming packets, but device and addresses keep their state.
#[test]
fn transfer_under_network_cut_completes_or_fails_on_both_sides() {
    play(
        &ON_THE_WAY,
        &format!("{{ [ -e /tmp/prepared ] || {{ {PREPARE} && touch /tmp/prepared; }}; }}; {CUT}"),
        RESTORE,
    );
}

/// Cuts of transfers are part of the long test only, because the hosts are unusable afterwards.
#[test]
fn stream_with_pending_data_under_interface_cut_fails() {
    let (down, up) = ("ip link set eth0 down", "ip link set eth0 up");
    play(&OWN, down, up);
    if env::var_os("LONG").is_some() {
        for seconds in [1, 5, 30] {
            play(&[own_while_sending(seconds)], down, up);
        }
    }
}
