//! `cargo soft-roce test`: cargo's test programs, each in a guest of its own.
//!
//! Cargo starts test programs by the program of the setting `target.<TRIPLE>.runner`, and so does nextest, which starts
//! one program for each test. The runner is this program: `cargo soft-roce runner PROGRAM ARGUMENTS`. Options travel in
//! [`OPTIONS`].

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser};

use crate::commands::cli::{self, GuestArguments};
use crate::commands::command::{finish, is_readable, with_guest, working_directory};
use crate::commands::report::{Printer, Style};
use crate::commands::setup;
use crate::run::Run;
use crate::workspace::Workspace;
use crate::{backend, process, shown};

/// Variable with the runner's options, as words of a shell.
const OPTIONS: &str = "SOFT_ROCE_OPTIONS";

/// Folders at the end of `PATH` in a guest: commands run as root.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Variables of the caller that do not apply in a guest: another user, other temporary folders, no display, no
/// descriptors of a jobserver; and the variables that the guest sets.
const NOT_PASSED_ON: [&str; 28] = [
    "_",
    "A",
    "A6",
    "B",
    "B6",
    "CARGO_MAKEFLAGS",
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "HOST",
    "HOSTS",
    "LOGNAME",
    "MAIL",
    "MAKEFLAGS",
    "MFLAGS",
    "OLDPWD",
    "OUT",
    "PATH",
    "PWD",
    "RDMA_DEVICE",
    "SHLVL",
    "SSH_AUTH_SOCK",
    "TEMP",
    "TMP",
    "TMPDIR",
    "USER",
    "WAYLAND_DISPLAY",
    "WORKSPACE",
    "XDG_RUNTIME_DIR",
];

/// Arguments of `test`.
#[derive(Debug, Args)]
pub struct TestArguments {
    #[command(flatten)]
    guest: GuestArguments,
    /// Stop a test program after S seconds, excluding the boot
    #[arg(long, value_name = "S", value_parser = cli::seconds)]
    timeout: Option<Duration>,
    /// Run `cargo nextest run`, with a guest for each test, instead of `cargo test`
    #[arg(long)]
    nextest: bool,
    /// Arguments of cargo; after `--`, of the tests
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    arguments: Vec<OsString>,
}

/// Options of the runner, in [`OPTIONS`].
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct RunnerOptions {
    #[command(flatten)]
    guest: GuestArguments,
    #[arg(long, value_parser = cli::seconds)]
    timeout: Option<Duration>,
    /// Root of the workspace, and its target folder.
    #[arg(long, requires = "target")]
    workspace: Option<PathBuf>,
    #[arg(long, requires = "workspace")]
    target: Option<PathBuf>,
}

/// Runs the tests of the workspace, and returns cargo's exit code.
pub(crate) fn test(arguments: TestArguments, workspace: &Workspace) -> Result<ExitCode> {
    let TestArguments {
        guest,
        timeout,
        nextest,
        arguments,
    } = arguments;
    let arguments = with_separator(arguments, env::args_os().collect());
    setup::ensure(&[setup::Group::Guest])?;
    backend::prepare_for_many_runs(guest.backend, &guest.kernel()?)?;
    let mut words = guest.words()?;
    if let Some(timeout) = timeout {
        words.extend(["--timeout".to_owned(), timeout.as_secs_f64().to_string()]);
    }
    for (name, folder) in [
        ("--workspace", workspace.root()),
        ("--target", workspace.target()),
    ] {
        words.extend([name.to_owned(), cli::text(folder.as_os_str())?.to_owned()]);
    }
    let mut cargo = Command::new(cargo());
    cargo.args(if nextest {
        &["nextest", "run"][..]
    } else {
        &["test"]
    });
    let program = env::current_exe().context("cannot determine the path of this program")?;
    for triple in triples(&arguments)? {
        cargo.args([
            "--config",
            &setting(&triple, cli::text(program.as_os_str())?),
        ]);
    }
    cargo.args(&arguments);
    cargo.env(OPTIONS, shlex::try_join(words.iter().map(String::as_str))?);
    let status = process::status(&mut cargo)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
}

fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The arguments, with the `--` that the parser of the command line has removed if it came first.
fn with_separator(arguments: Vec<OsString>, line: Vec<OsString>) -> Vec<OsString> {
    let Some(before) = line.strip_suffix(&arguments[..]) else {
        return arguments;
    };
    if before.last().is_some_and(|word| word == "--") {
        return [vec!["--".into()], arguments].concat();
    }
    arguments
}

/// The targets that cargo may build for: the host's, and the chosen one.
fn triples(arguments: &[OsString]) -> Result<Vec<String>> {
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let version = process::output(rustc.arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let mut triples = vec![host.context("rustc -vV prints no host")?.to_owned()];
    let cargos = arguments.iter().map_while(|word| word.to_str());
    let cargos: Vec<&str> = cargos.take_while(|word| *word != "--").collect();
    for (index, word) in cargos.iter().enumerate() {
        let value = match word.strip_prefix("--target") {
            Some("") => cargos.get(index + 1).copied(),
            Some(value) => value.strip_prefix('='),
            None => None,
        };
        triples.extend(value.map(str::to_owned));
    }
    triples.extend(env::var("CARGO_BUILD_TARGET"));
    Ok(triples)
}

/// The setting of cargo for a target's runner, in TOML.
fn setting(triple: &str, program: &str) -> String {
    let program = program.replace('\\', "\\\\").replace('"', "\\\"");
    format!("target.{triple:?}.runner=[\"{program}\", \"soft-roce\", \"runner\"]")
}

/// Runs a test program in a guest, with the caller's environment and working directory, and returns its exit code.
pub(crate) fn run(words: &[OsString], here: &Workspace) -> Result<ExitCode> {
    let options = match env::var(OPTIONS) {
        Ok(options) => {
            shlex::split(&options).with_context(|| format!("{OPTIONS} has an open quotation"))?
        }
        Err(_) => Vec::new(),
    };
    let options = RunnerOptions::try_parse_from(options)
        .with_context(|| format!("{OPTIONS} has unknown options"))?;
    let workspace = match (options.workspace, options.target) {
        (Some(root), Some(target)) => Workspace::new(root, target),
        _ => here.clone(),
    };
    let words = words.iter().map(|word| cli::text(word));
    let words: Vec<String> = words
        .map(|word| Ok(word?.to_owned()))
        .collect::<Result<_>>()?;
    if words.is_empty() {
        bail!(
            "runner needs a program: cargo starts it with one, see `cargo soft-roce test --help`"
        );
    }
    let folder = working_directory()?;
    let named = shown::named(&words, &folder);
    let script = shlex::try_join(words.iter().map(String::as_str))?;
    let plan = with_guest(Run::single(format!("exec {script}")), options.guest)?
        .folder(folder)
        .showing(named)
        .timeout(options.timeout)
        .stdin(is_readable(&std::io::stdin()));
    let plan = passed_on(env::vars_os())
        .into_iter()
        .fold(plan, |plan, (name, value)| plan.env(name, value));
    let mut printer = Printer::new(Style::Raw, false);
    let outcome = plan.execute(&workspace, &mut |event| printer.print(event))?;
    Ok(finish(&outcome))
}

/// The caller's variables for a program in a guest.
pub(crate) fn passed_on(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Vec<(String, String)> {
    let mut passed = Vec::new();
    let mut folders: Vec<PathBuf> = Vec::new();
    for (name, value) in variables {
        if name == "PATH" {
            folders.extend(env::split_paths(&value));
        }
        let Some(name) = name.to_str().filter(|name| is_passed_on(name)) else {
            continue;
        };
        // A shell cannot set other values.
        if let Some(value) = value.to_str() {
            passed.push((name.to_owned(), value.to_owned()));
        }
    }
    for folder in SYSTEM_FOLDERS {
        if !folders.iter().any(|one| one == Path::new(folder)) {
            folders.push(folder.into());
        }
    }
    if let Some(path) = env::join_paths(folders)
        .ok()
        .as_deref()
        .and_then(OsStr::to_str)
    {
        passed.push(("PATH".to_owned(), path.to_owned()));
    }
    passed
}

fn is_passed_on(name: &str) -> bool {
    let is_of_shells = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !name.starts_with(|c: char| c.is_ascii_digit());
    // A cargo in the guest must not start guests.
    let is_runner = name.starts_with("CARGO_TARGET_") && name.ends_with("_RUNNER");
    is_of_shells && !is_runner && name != OPTIONS && !NOT_PASSED_ON.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn separator_before_the_first_argument_is_restored() {
        let separated = |arguments: &str, line: &str| with_separator(words(arguments), words(line));
        assert_eq!(
            separated("--nocapture", "cargo test -- --nocapture"),
            words("-- --nocapture")
        );
        assert_eq!(
            separated("-p x -- y", "cargo test -p x -- y"),
            words("-p x -- y")
        );
        assert_eq!(separated("", "cargo test"), words(""));
    }

    #[test]
    fn setting_of_a_runner_is_toml_for_any_path() {
        assert_eq!(
            setting("x86_64-unknown-linux-gnu", r#"/a b/"c"\d"#),
            r#"target."x86_64-unknown-linux-gnu".runner=["/a b/\"c\"\\d", "soft-roce", "runner"]"#
        );
    }

    #[test]
    fn triples_include_the_chosen_target() {
        for line in ["--target t", "--lib --target=t", "--target t -- --target u"] {
            let triples = triples(&words(line)).unwrap();
            assert_eq!(triples[1..], ["t"], "{line}");
        }
    }

    #[test]
    fn environment_passed_on_has_no_runner_and_the_system_folders() {
        let variables = [
            ("X", "a b"),
            ("CARGO_TARGET_T_RUNNER", "x"),
            ("BASH_FUNC_f%%", "() { :; }"),
            ("TMPDIR", "/tmp/x"),
            ("PATH", "/bin:/sbin"),
        ];
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        let passed = passed_on(variables.into_iter());
        let expected = [
            ("X", "a b"),
            ("PATH", "/bin:/sbin:/usr/local/sbin:/usr/sbin"),
        ];
        assert_eq!(
            passed,
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }

    #[test]
    fn options_of_the_runner_survive_as_words() {
        let line = "--device siw --backend uml --memory 512 --cpus 1 --mtu 1500 --kernel 6.12 --rdma-core newest --rds a --env X=y=z";
        let options = RunnerOptions::try_parse_from(words(line)).unwrap();
        assert_eq!(options.guest.words().unwrap().join(" "), line);
    }
}
