//! The host of a whole process, described by environment variables.

use std::{env, ffi::c_int, io, net::IpAddr, process, sync::OnceLock};

use super::{ADVERSARY, CARD, Fabric, Host, Port};
use crate::{
    abi, adversary::AdversaryOptions, card::Card, check::is_reported_in_child, wire::PORT,
};

/// Address of the host, over UDP.
const ADDR: &str = "SOFTNIC_ADDR";

/// Probability of the loss of a sent frame.
const LOSS: &str = "SOFTNIC_LOSS";

/// Exit status of a process with reports of the checker, in place of the program's own.
const EXIT_STATUS: &str = "SOFTNIC_CHECK_EXITCODE";

/// Name of a pcap file for the frames.
const PCAP: &str = "SOFTNIC_PCAP";

/// File of the command that runs the keeper of the address. Without it, the process has the address alone.
const KEEPER: &str = "SOFTNIC_KEEPER";

/// The host of a process, and those of its children made by `fork`, which cannot use their parent's.
struct OfProcess {
    pid: u32,
    created: Option<(Fabric, Host)>,
    child: OnceLock<Box<Self>>,
}

impl OfProcess {
    /// Makes the host, or reports on standard error why the process has none.
    fn new() -> Self {
        let created = make(|name: &str| env::var(name).ok());
        if let Some(Err(error)) = &created {
            #[expect(
                clippy::print_stderr,
                reason = "the program only learns that it has no device"
            )]
            {
                eprintln!("softnic: no RDMA device: {error}");
            }
        }
        Self {
            pid: process::id(),
            created: created.and_then(Result::ok),
            child: OnceLock::new(),
        }
    }
}

/// The device of the host described by the environment, made by the first call in a process; `None` without [`ADDR`], or after
/// a failure.
pub(super) fn port() -> Option<Port> {
    let mut of = FIRST.get_or_init(OfProcess::new);
    while of.pid != process::id() {
        of = of.child.get_or_init(|| Box::new(OfProcess::new()));
    }
    of.created.as_ref().map(|(_, host)| host.port.clone())
}

/// The host of the first process.
static FIRST: OnceLock<OfProcess> = OnceLock::new();

/// The exit status of this process, if the checker has reports.
fn status_with_reports() -> Option<c_int> {
    let mut of = FIRST.get()?;
    let status = exit_status(&env::var(EXIT_STATUS).ok()?).ok()?;
    if is_reported_in_child() {
        return Some(status);
    }
    while of.pid != process::id() {
        of = of.child.get()?;
    }
    let (fabric, _) = of.created.as_ref()?;
    (fabric.report_count() > 0).then_some(status)
}

fn exit_status(text: &str) -> io::Result<c_int> {
    let status: Option<u8> = text.parse().ok();
    let status = status.ok_or_else(|| {
        io::Error::other(format!(
            "{EXIT_STATUS} is {text}: it must be a number from 0 to 255"
        ))
    });
    Ok(status?.into())
}

/// Makes the host; `None` without an address.
fn make(variable: impl Fn(&str) -> Option<String>) -> Option<io::Result<(Fabric, Host)>> {
    let addr = variable(ADDR)?;
    Some(make_at(&addr, variable))
}

fn make_at(addr: &str, variable: impl Fn(&str) -> Option<String>) -> io::Result<(Fabric, Host)> {
    let ip: IpAddr = addr
        .parse()
        .map_err(|_| io::Error::other(format!("{ADDR} is {addr}, which is no IP address")))?;
    if ip.is_unspecified() || ip.is_multicast() {
        return Err(io::Error::other(format!(
            "{ADDR} is {addr}, which no host has: use an address of this machine, such as 127.0.0.2"
        )));
    }
    if let Some(rules) = variable(ADVERSARY) {
        AdversaryOptions::parse(&rules)
            .map_err(|error| io::Error::other(format!("{ADVERSARY}: {error}")))?;
    }
    if let Some(card) = variable(CARD) {
        card.parse::<Card>()
            .map_err(|error| io::Error::other(format!("{CARD}: {error}")))?;
    }
    if let Some(status) = variable(EXIT_STATUS) {
        exit_status(&status)?;
        abi::replace_exit_status(status_with_reports);
    }
    let mut fabric = Fabric::new().keep_objects();
    if let Some(loss) = variable(LOSS) {
        fabric = fabric.loss(probability(&loss)?);
    }
    if let Some(path) = variable(PCAP) {
        fabric = fabric
            .record_to(&path)
            .map_err(|error| io::Error::new(error.kind(), format!("{PCAP} is {path}: {error}")))?;
    }
    let host = match variable(KEEPER) {
        Some(command) => fabric.host_in_slot(ip, command.as_ref()),
        None => fabric.host_over_udp(ip),
    };
    let host = host.map_err(|error| {
        let advice = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "another process or Linux's driver rdma_rxe has the port; use another address"
            }
            io::ErrorKind::AddrNotAvailable => {
                "this machine does not have the address; use one of `ip address`, or 127.0.0.2"
            }
            io::ErrorKind::InvalidInput => {
                "link-local addresses have no device; use another one of `ip address`"
            }
            _ => "the address is that of SOFTNIC_ADDR",
        };
        io::Error::new(
            error.kind(),
            format!("UDP port {PORT} of {addr}: {error}: {advice}"),
        )
    })?;
    Ok((fabric, host))
}

fn probability(text: &str) -> io::Result<f64> {
    let loss = text.parse().ok();
    loss.filter(|loss| (0.0..=1.0).contains(loss))
        .ok_or_else(|| io::Error::other(format!("{LOSS} is {text}: it must be between 0 and 1")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(variables: &[(&str, &str)]) -> Option<String> {
        let find = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        make(find).map(|result| result.map_or_else(|error| error.to_string(), |_| String::new()))
    }

    #[test]
    fn variables_with_bad_values_are_named_with_the_remedy() {
        assert_eq!(failure(&[]), None);
        assert_eq!(failure(&[(ADDR, "127.4.0.1")]).unwrap(), "");
        for (variables, expected) in [
            (
                &[(ADDR, "here")][..],
                "SOFTNIC_ADDR is here, which is no IP address",
            ),
            (&[(ADDR, "0.0.0.0")], "use an address of this machine"),
            (
                &[(ADDR, "203.0.113.9")],
                "this machine does not have the address",
            ),
            (
                &[(ADDR, "fe80::9")],
                "link-local addresses have no device; use another one",
            ),
            (
                &[(ADDR, "127.4.0.2"), (LOSS, "2")],
                "SOFTNIC_LOSS is 2: it must be between 0 and 1",
            ),
            (
                &[(ADDR, "127.4.0.2"), (ADVERSARY, "7:kind")],
                "SOFTNIC_ADVERSARY: no rule is named `kind`: use one of ",
            ),
            (
                &[(ADDR, "127.4.0.2"), (CARD, "connectx-9")],
                "SOFTNIC_CARD: no card is named `connectx-9`: use one of ",
            ),
            (
                &[(ADDR, "127.4.0.2"), (EXIT_STATUS, "256")],
                "SOFTNIC_CHECK_EXITCODE is 256: it must be a number from 0 to 255",
            ),
            (
                &[(ADDR, "127.4.0.2"), (PCAP, "/no/folder")],
                "SOFTNIC_PCAP is /no/folder: ",
            ),
        ] {
            let message = failure(variables).unwrap();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn address_in_use_is_reported_with_the_remedy() {
        let _first = make_at("127.4.0.3", |_| None).unwrap();
        let second = failure(&[(ADDR, "127.4.0.3")]).unwrap();
        assert!(
            second.contains("127.4.0.3: Address already in use"),
            "{second}"
        );
        assert!(second.contains("use another address"), "{second}");
    }
}
