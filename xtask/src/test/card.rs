//! `cargo xtask test --device NAME`: the suites of four crates on an RDMA device of this machine, and a report to send.
//!
//! Safe on a machine in use. Tests that would change the machine stop at `require_guest`, and root's programs run without
//! the rights in [`DROPPED`]. The kernel chooses the ports, but for the two of RDS. No package is installed.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use soft_roce::{RdmaCore, process};

use super::guests::device_script;
use super::{Options, Program, Suite};
use crate::left_out;
use crate::outcomes::DEVICE_TESTS_OF;
use crate::output;
use crate::stack::Stack;
use crate::stage::Stages;
use crate::workspace::{self, Workspace};

/// Packages with a suite for cards.
const SUITES: [&str; 4] = ["rdma-verbs", "rdma-cm", "rdma-rsocket", "rdma-rds"];

/// Rights of root that the programs lose.
const DROPPED: &str = "-net_admin,-sys_admin,-sys_module,-sys_boot";

/// Start of the message of a test that needs more than this machine (`require_guest`).
const NOT_RUN: &str = "left out: ";

/// Time limit of a suite.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// Runs the suites on the device, prints the report, and writes it to `target/device-NAME.md`. Returns whether all tests
/// passed but those left out.
///
/// # Errors
///
/// There is no such device, it has no IPv4 address, or the tests do not build.
pub(super) fn run(name: &str, options: &Options) -> Result<bool> {
    let workspace = Workspace::load()?;
    let device = Card::find(&workspace, name)?;
    let suite = Suite {
        workspace: &workspace,
        options,
        stack: &Stack::default(),
    };
    let mut cargo = suite.cargo();
    cargo.args(["test", "--locked", "--no-run", "--test", "device"]);
    cargo.args(SUITES.iter().flat_map(|package| ["--package", package]));
    let programs = suite.build(&mut cargo, |test| test == "device")?;
    let mut command = command(&programs, &device, options.filter.as_deref())?;
    let mut report = Report::default();
    let mut stages = Stages::default();
    stages.test("card", |counts| {
        suite.run_reading(&mut command, &mut |line| report.read(line))?;
        counts.passed = report.sum(|suite| suite.passed);
        counts.failed = report.sum(|suite| suite.failed.len());
        for suite in &report.suites {
            ensure!(
                suite.has_ended,
                "the suite of {} has not ended",
                suite.library
            );
        }
        suite.require_some(counts)
    });
    let text = report.markdown(&device);
    let path = workspace.target().join(format!("device-{name}.md"));
    fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    output::print(format_args!("\n{text}"));
    let passed = stages.close();
    output::print(format_args!(
        "The report, for the template `Results on a card`, is in {}.",
        path.display()
    ));
    Ok(passed)
}

/// The command that runs the programs, without rights over the machine.
fn command(programs: &[Program], device: &Card, filter: Option<&str>) -> Result<Command> {
    let arguments = |program: &Program| {
        let skipped = left_out::arguments(left_out::Run::Card, &program.library);
        filter.into_iter().chain(skipped).collect()
    };
    let script = device_script(programs, arguments, LIMIT)?;
    let mut command = if rustix::process::geteuid().is_root() {
        let mut command = Command::new("setpriv");
        command.args([
            "--no-new-privs",
            "--bounding-set",
            DROPPED,
            "--inh-caps",
            DROPPED,
        ]);
        command.arg("sh");
        command
    } else {
        Command::new("sh")
    };
    // Where the limit is lower, tests of registration fail with the limit in their message.
    command.args(["-c", &format!("ulimit -l unlimited 2>/dev/null\n{script}")]);
    command.env("RDMA_DEVICE", &device.name);
    command.env("A", device.addrs[0].to_string());
    match device.addrs.iter().find(|addr| addr.is_ipv6()) {
        Some(addr) => command.env("A6", addr.to_string()),
        None => command.env_remove("A6"),
    };
    command.env_remove("HOSTS");
    Ok(command)
}

/// The device under test.
#[derive(Debug)]
struct Card {
    name: String,
    driver: String,
    firmware: String,
    /// The IPv4 address, and the IPv6 address if any.
    addrs: Vec<IpAddr>,
    /// The output of `devinfo -v`.
    details: String,
}

impl Card {
    /// Finds the device by the example `devinfo`, which runs with the machine's libraries.
    fn find(workspace: &Workspace, name: &str) -> Result<Self> {
        let mut cargo = workspace::cargo(workspace);
        cargo.args([
            "build",
            "--locked",
            "--package",
            "examples",
            "--bin",
            "devinfo",
        ]);
        process::run(&mut cargo).context("the example devinfo does not build")?;
        let print = |option: &str| {
            let mut devinfo = Command::new(workspace.target().join("debug/devinfo"));
            process::output(devinfo.args(["--ib-dev", name, option])).with_context(|| {
                format!("the RDMA device {name} cannot be queried; `rdma link` lists devices")
            })
        };
        let card: Value =
            serde_json::from_str(&print("--json")?).context("devinfo printed no JSON")?;
        let link = fs::read_link(
            Path::new("/sys/class/infiniband")
                .join(name)
                .join("device/driver"),
        );
        let driver = link
            .ok()
            .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        Ok(Self {
            name: name.to_owned(),
            driver: driver.unwrap_or_else(|| "none in sysfs".to_owned()),
            firmware: card[0]["fw_ver"].as_str().unwrap_or_default().to_owned(),
            addrs: addresses(&card[0]["ports"][0], |name| std::env::var(name).ok())
                .with_context(|| format!("the device {name}"))?,
            details: print("--verbose")?,
        })
    }
}

/// The addresses of a port: those in `A` and `A6` of the environment, else the first ones of the GID table that are not
/// link-local.
fn addresses(port: &Value, environment: impl Fn(&str) -> Option<String>) -> Result<Vec<IpAddr>> {
    let link_layer = port["link_layer"].as_str().unwrap_or_default();
    ensure!(
        link_layer == "Ethernet",
        "port 1 has the link layer {link_layer}; the suites address peers by IPv4 GIDs, of RoCE and iWARP"
    );
    let gids = port["gids"].as_array().into_iter().flatten();
    let gids = gids.filter_map(|entry| entry["gid"].as_str()?.parse::<Ipv6Addr>().ok());
    let all: Vec<IpAddr> = gids.map(|gid| gid.to_canonical()).collect();
    let is_routable = |addr: &&IpAddr| match addr {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    };
    let first = |variable: &str, is_v4: bool| -> Result<Option<IpAddr>> {
        if let Some(text) = environment(variable) {
            let addr = text
                .parse()
                .with_context(|| format!("{variable}={text} is no address"))?;
            return Ok(Some(addr));
        }
        Ok(all
            .iter()
            .filter(is_routable)
            .find(|addr| addr.is_ipv4() == is_v4)
            .copied())
    };
    let v4 = first("A", true)?.context(
        "has no IPv4 address in its GID table: set one on its interface, or the variable A",
    )?;
    Ok([v4].into_iter().chain(first("A6", false)?).collect())
}

/// The results of one library's suite.
#[derive(Debug, Default)]
struct Results {
    library: String,
    passed: usize,
    /// Name and first lines of each failed test.
    failed: Vec<(String, Vec<String>)>,
    /// Name and reason of each test that needs more than this machine.
    omitted: Vec<(String, String)>,
    has_ended: bool,
}

/// The results of all suites.
#[derive(Debug, Default)]
struct Report {
    suites: Vec<Results>,
    kernel: String,
    /// Whether lines are those of the last failed test.
    in_failure: bool,
}

impl Report {
    /// Maximum number of lines of a failed test.
    const LINES: usize = 12;

    fn sum(&self, number: impl Fn(&Results) -> usize) -> u32 {
        let sum: usize = self.suites.iter().map(number).sum();
        sum.try_into().unwrap_or(u32::MAX)
    }

    /// Reads a line of the script's output.
    fn read(&mut self, line: &str) {
        if let Some(release) = line.strip_prefix(crate::outcomes::KERNEL) {
            self.kernel = release.to_owned();
        } else if let Some(library) = line.strip_prefix(DEVICE_TESTS_OF) {
            let library = library.to_owned();
            self.suites.push(Results {
                library,
                ..Results::default()
            });
            self.in_failure = false;
        }
        let Some(suite) = self.suites.last_mut() else {
            return;
        };
        let header = line.strip_prefix("---- ");
        // A test that reports a part left out has its result on a line of its own.
        if line.starts_with("test ") && line.ends_with(" ... ok") || line == "ok" {
            suite.passed += 1;
        } else if let Some(test) = header.and_then(|rest| rest.strip_suffix(" stdout ----")) {
            suite.failed.push((test.to_owned(), Vec::new()));
            self.in_failure = true;
        } else if line == "failures:" || line == "stack backtrace:" {
            self.in_failure = false;
        } else if line.starts_with("test result: ") {
            suite.has_ended = true;
            self.in_failure = false;
            suite.sort_out();
        } else if self.in_failure
            && !line.is_empty()
            && let Some((_, lines)) = suite.failed.last_mut()
            && lines.len() < Self::LINES
        {
            lines.push(line.to_owned());
        }
    }

    /// The report, in the shape of the template `Results on a card`.
    fn markdown(&self, device: &Card) -> String {
        let rdma_core = RdmaCore::find(Path::new("/"));
        let rdma_core = rdma_core.map_or_else(
            |_| "not found".to_owned(),
            |found| found.release().to_owned(),
        );
        let mut text = format!(
            "**Card, driver, firmware**: {}, {}, {}\n\n**Kernel and rdma-core**: {}, {rdma_core}\n\n\
             **Commands**: `cargo xtask test --device {}`, version {}\n\n\
             | suite | passed | failed | left out |\n|---|---|---|---|\n",
            device.name,
            device.driver,
            device.firmware,
            self.kernel,
            device.name,
            env!("CARGO_PKG_VERSION"),
        );
        for suite in &self.suites {
            let ended = if suite.has_ended {
                ""
            } else {
                " (has not ended)"
            };
            let (failed, omitted) = (suite.failed.len(), suite.omitted.len());
            put(
                &mut text,
                format_args!(
                    "| {}{ended} | {} | {failed} | {omitted} |",
                    suite.library, suite.passed
                ),
            );
        }
        for suite in &self.suites {
            for (test, lines) in &suite.failed {
                put(
                    &mut text,
                    format_args!(
                        "\nFailed: {} `{test}`\n```text\n{}\n```",
                        suite.library,
                        lines.join("\n")
                    ),
                );
            }
        }
        text += "\nLeft out:\n\n";
        for row in left_out::of(left_out::Run::Card) {
            let line = format_args!("- {} `{}`: {}", row.library, row.tests, row.reason);
            put(&mut text, line);
        }
        for suite in &self.suites {
            for (test, reason) in &suite.omitted {
                put(
                    &mut text,
                    format_args!("- {} `{test}`: {reason}", suite.library),
                );
            }
        }
        text + &format!(
            "\n<details><summary>devinfo -v</summary>\n\n```text\n{}```\n</details>\n",
            device.details
        )
    }
}

impl Results {
    /// Moves the tests that need more than this machine from the failed ones.
    fn sort_out(&mut self) {
        let reason = |lines: &[String]| {
            let found = lines.iter().find_map(|line| line.split_once(NOT_RUN));
            found.map(|(_, reason)| reason.to_owned())
        };
        let omitted = &mut self.omitted;
        self.failed.retain(|(test, lines)| match reason(lines) {
            Some(reason) => {
                omitted.push((test.clone(), reason));
                false
            }
            None => true,
        });
    }
}

fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _infallible = writeln!(text, "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> Card {
        Card {
            name: "mlx5_0".to_owned(),
            driver: "mlx5_core".to_owned(),
            firmware: "1.2".to_owned(),
            addrs: vec!["10.1.0.2".parse().unwrap()],
            details: "hca_id: mlx5_0\n".to_owned(),
        }
    }

    #[test]
    fn report_separates_failed_tests_from_those_left_out() {
        let mut report = Report::default();
        let output = "Kernel of the device: 6.12.1\nRunning the device tests of verbs\nrunning 4 tests\n\
            test a ... ok\ntest e ... LEFT OUT: e: the device has no windows\nok\ntest b ... FAILED\ntest c::d ... FAILED\n\nfailures:\n\n---- b stdout ----\n\n\
            thread 'b' panicked at x.rs:1:2:\nleft out: adds an address\n\n---- c::d stdout ----\nbroken | here\n\n\n\
            failures:\n    b\n    c::d\n\ntest result: FAILED. 2 passed; 2 failed; 0 ignored;\n\
            Running the device tests of rds\nrunning 1 test\n";
        output.lines().for_each(|line| report.read(line));
        assert_eq!(report.sum(|suite| suite.passed), 2);
        assert_eq!(report.sum(|suite| suite.failed.len()), 1);
        let text = report.markdown(&card());
        for part in [
            "**Card, driver, firmware**: mlx5_0, mlx5_core, 1.2\n",
            "**Kernel and rdma-core**: 6.12.1, ",
            "| verbs | 2 | 1 | 1 |",
            "| rds (has not ended) | 0 | 0 | 0 |",
            "Failed: verbs `c::d`\n```text\nbroken | here\n```",
            "- verbs `b`: adds an address\n",
            "- verbs `doorbells::*`: ",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn addresses_are_those_of_the_variables_or_the_first_routable_gids() {
        let port = |link_layer: &str, gids: &[&str]| {
            let gids: Vec<Value> = gids
                .iter()
                .map(|gid| serde_json::json!({ "gid": gid }))
                .collect();
            serde_json::json!({ "link_layer": link_layer, "gids": gids })
        };
        let gids = ["fe80::1", "::ffff:10.1.0.2", "::ffff:10.1.0.3", "fd00::2"];
        let ethernet = port("Ethernet", &gids);
        let found = |port: &Value, a: Option<&str>| {
            let text = addresses(port, |name| (name == "A").then_some(a?.to_owned()));
            text.map(|addrs| addrs.iter().map(IpAddr::to_string).collect::<Vec<_>>())
        };
        assert_eq!(found(&ethernet, None).unwrap(), ["10.1.0.2", "fd00::2"]);
        assert_eq!(
            found(&ethernet, Some("10.1.0.3")).unwrap(),
            ["10.1.0.3", "fd00::2"]
        );
        assert_eq!(
            found(&port("Ethernet", &gids[..2]), None).unwrap(),
            ["10.1.0.2"]
        );
        for (port, a) in [
            (port("Ethernet", &gids[..1]), None),
            (port("InfiniBand", &gids), None),
            (ethernet, Some("nowhere")),
        ] {
            assert!(found(&port, a).is_err(), "{port} {a:?}");
        }
    }

    #[test]
    fn programs_run_without_rights_over_the_machine_and_without_its_modules() {
        let folder = tempfile::tempdir().unwrap();
        let executable = folder.path().join("print");
        let script =
            "#!/bin/sh\necho \"$RDMA_DEVICE $A $A6\" \"$@\"\ngrep CapEff /proc/self/status\n";
        fs::write(&executable, script).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&executable, mode).unwrap();
        let program = Program {
            package: "rdma-verbs".to_owned(),
            library: "verbs".to_owned(),
            folder: folder.path().to_owned(),
            executable,
        };
        let mut command = command(&[program], &card(), Some("pair")).unwrap();
        let hosts = command.get_envs().find(|(name, _)| *name == "HOSTS");
        assert!(
            hosts.is_some_and(|(_, value)| value.is_none()),
            "the tests would believe to be in a guest"
        );
        let printed = process::output(&mut command).unwrap();
        let line = "mlx5_0 10.1.0.2  --test-threads=1 pair --skip absent:: --skip doorbells:: --skip soft_roce_events::";
        assert!(printed.contains(line), "{printed}");
        let (_, effective) = printed.split_once("CapEff:").unwrap();
        let effective = u64::from_str_radix(effective.trim(), 16).unwrap();
        // Of linux/capability.h.
        for (number, name) in [
            (12, "NET_ADMIN"),
            (16, "SYS_MODULE"),
            (21, "SYS_ADMIN"),
            (22, "SYS_BOOT"),
        ] {
            assert_eq!(effective >> number & 1, 0, "CAP_{name}");
        }
    }
}
