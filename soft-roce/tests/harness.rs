//! Tests of `cargo soft-roce` with real guests: the environment that other tests rely on.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "harness/clocks.rs"]
mod clocks;
#[path = "harness/confinement.rs"]
mod confinement;
#[path = "harness/foreign_workspace.rs"]
mod foreign_workspace;
#[path = "harness/library.rs"]
mod library;
#[path = "harness/many_hosts.rs"]
mod many_hosts;
#[path = "harness/packages.rs"]
mod packages;
#[path = "harness/readme.rs"]
mod readme;

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// Exit code, output and duration of a run of the program.
#[derive(Debug)]
struct Finished {
    code: Option<i32>,
    stdout: String,
    stderr: String,
    took: Duration,
}

impl Finished {
    #[track_caller]
    fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    #[track_caller]
    fn expect_stdout(self, text: &str) -> Self {
        assert!(self.stdout.contains(text), "no {text:?} in {self:#?}");
        self
    }

    #[track_caller]
    fn expect_stderr(self, text: &str) -> Self {
        assert!(self.stderr.contains(text), "no {text:?} in {self:#?}");
        self
    }
}

/// The program to test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_cargo-soft-roce");

/// Runs `cargo soft-roce run ARGUMENTS`.
fn run(arguments: &[&str]) -> Finished {
    let mut command = Command::new(PROGRAM);
    finish(command.args(["soft-roce", "run"]).args(arguments))
}

/// Runs a script in a guest.
fn guest(script: &str) -> Finished {
    run(&["--timeout", "60", "--", script])
}

/// Runs two scripts in two guests.
fn guests(more: &[&str], a: &str, b: &str) -> Finished {
    run(&[more, &["--timeout", "60", "--a", a, "--b", b]].concat())
}

/// A command of rdma-core's `rping`, with its output on stdout. After its last event the program may exit with 255: the thread of
/// events, `cm_thread`, ends the process if `main` has closed the channel. Tests look for the pings of the client.
fn rping(arguments: &str) -> String {
    let closed = "[ \"${out##*: }\" = 'Bad file descriptor' ]";
    format!("out=$(rping {arguments} 2>&1); code=$?; echo \"$out\"; [ $code = 0 ] || {closed}")
}

/// Commands of a server at `addr`, and of its client, which prints five pings.
fn rping_pair(addr: &str) -> [String; 2] {
    [
        rping(&format!("-s -a {addr} -C 5")),
        format!("sleep 3; {}", rping(&format!("-c -v -a {addr} -C 5"))),
    ]
}

/// Last line of the client of [`rping_pair`].
const LAST_PING: &str = "b| ping data: rdma-ping-4";

/// Runs a command with siw, up to three times on a timeout: the kernel's `siw_accept` replies to the peer before it
/// installs the socket callbacks, so the first message of a fast peer can be lost, and both sides hang.
fn over_siw(arguments: &[&str]) -> Finished {
    const TIMED_OUT: Option<i32> = Some(124);
    let attempt = || run(&[&["--device", "siw", "--timeout", "25"], arguments].concat());
    let mut attempts = (0..2).map(|_| attempt());
    attempts
        .find(|finished| finished.code != TIMED_OUT)
        .unwrap_or_else(attempt)
}

fn finish(command: &mut Command) -> Finished {
    finish_reading(command, Stdio::null())
}

fn finish_reading(command: &mut Command, input: Stdio) -> Finished {
    let begin = Instant::now();
    let output = command.stdin(input).output().unwrap();
    Finished {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        took: begin.elapsed(),
    }
}

/// Process ids of all descendants of `ancestor`.
fn descendants(ancestor: u32) -> Vec<u32> {
    let parent = |pid: u32| -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status
            .lines()
            .find_map(|line| line.strip_prefix("PPid:"))?
            .trim()
            .parse()
            .ok()
    };
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let mut ancestors = std::iter::successors(parent(*pid), |pid| parent(*pid));
        ancestors.any(|pid| pid == ancestor)
    })
    .collect()
}

fn await_true(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < limit, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Starts a run that sleeps. Returns once its command prints, with the process ids of its guest.
fn start_sleeper() -> (Child, Vec<u32>) {
    start_sleeper_in(&std::env::temp_dir())
}

/// Like [`start_sleeper`], with another folder for temporary files.
fn start_sleeper_in(temporary: &Path) -> (Child, Vec<u32>) {
    let mut command = Command::new(PROGRAM);
    command.env("TMPDIR", temporary).args([
        "soft-roce",
        "run",
        "--timeout",
        "120",
        "--",
        "echo started; exec sleep 100",
    ]);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = [0; 8];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut line)
        .unwrap();
    assert_eq!(&line, b"started\n");
    let emulators = descendants(child.id());
    // A User-Mode Linux guest has one process for each address space.
    assert!(!emulators.is_empty());
    (child, emulators)
}

fn send(child: &Child, signal: Signal) {
    rustix::process::kill_process(Pid::from_child(child), signal).unwrap();
}

fn is_alive(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

/// Scratch folders of unfinished work in the user's cache.
fn unfinished_files() -> Vec<PathBuf> {
    let paths = fs::read_dir(cache().join("soft-roce/guests"))
        .into_iter()
        .flatten()
        .flatten();
    let is_unfinished = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().contains(".unfinished-"))
    };
    paths
        .map(|entry| entry.path())
        .filter(is_unfinished)
        .collect()
}

/// The user's cache folder.
fn cache() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
    cache.unwrap_or_else(|| PathBuf::from(variable("HOME").unwrap()).join(".cache"))
}

/// The folder `$OUT` of guests. The program's path begins with the target folder.
fn out() -> PathBuf {
    let program = Path::new(PROGRAM);
    let target = program
        .ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").is_file());
    target.unwrap().join("soft-roce/out")
}

#[test]
fn device_after_boot_is_active() {
    guest("ibv_devinfo -d rxe0 | grep PORT_ACTIVE")
        .expect_code(0)
        .expect_stdout("PORT_ACTIVE");
}

#[test]
fn exit_code_of_run_is_the_commands() {
    guest("exit 7").expect_code(7);
}

#[test]
fn run_with_several_words_passes_them_as_arguments() {
    run(&["--timeout", "60", "--", "printf", "%s|", "a b", "c"])
        .expect_code(0)
        .expect_stdout("a b|c|");
}

#[test]
fn run_after_first_boot_is_fast() {
    guest("true").expect_code(0);
    let warm = run(&["--verbose", "--", "true"])
        .expect_code(0)
        .expect_stderr("guest up in");
    assert!(warm.took < Duration::from_secs(60), "{warm:?}");
}

#[test]
fn timeout_stops_the_command_and_is_reported() {
    let finished = run(&["--timeout", "5", "--", "sleep 60"]).expect_stderr("timeout");
    assert_ne!(finished.code, Some(0), "{finished:?}");
    // Five seconds after the boot; a busy machine boots slowly.
    assert!(finished.took < Duration::from_secs(40), "{finished:?}");
}

#[test]
fn kernel_panic_fails_the_run() {
    let out_of_memory = "echo 1 > /proc/sys/vm/panic_on_oom; tail /dev/zero";
    run(&["--memory", "256", "--timeout", "60", "--", out_of_memory])
        .expect_code(125)
        .expect_stderr("Kernel panic");
}

#[test]
fn guest_power_off_fails_the_run() {
    let finished = guest("/run/soft-roce/busybox poweroff -f; sleep 30")
        .expect_stderr("without reporting an exit code");
    assert_eq!(finished.code, Some(125));
}

/// Name of the program of a process.
fn program(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default()
}

#[test]
fn boot_after_stall_is_repeated() {
    let mut command = Command::new(PROGRAM);
    let arguments = ["soft-roce", "run", "--backend", "qemu", "--timeout", "60"];
    let child = command
        .args(arguments)
        .args(["--", "echo done"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stopped = None;
    await_true("the guest starts", Duration::from_secs(100), || {
        let mut emulators = descendants(child.id()).into_iter();
        stopped = emulators.find(|pid| program(*pid).starts_with("qemu"));
        stopped.is_some()
    });
    let pid = Pid::from_raw(i32::try_from(stopped.unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(output.stdout, b"done\n");
    assert!(stderr.contains("guest a: its boot stalled"), "{stderr}");
    assert_eq!(stderr.matches("Starting again").count(), 1, "{stderr}");
}

#[test]
fn output_of_both_streams_is_separate_and_complete() {
    let finished = guest("seq 20000; seq 20000 >&2; echo late > /dev/stderr").expect_code(0);
    let numbers: String = (1..=20000).map(|number| format!("{number}\n")).collect();
    // Not `assert_eq`: the printed difference would be huge.
    assert!(
        finished.stdout == numbers,
        "standard output has {} bytes",
        finished.stdout.len()
    );
    assert!(
        finished.stderr == numbers + "late\n",
        "standard error has {} bytes",
        finished.stderr.len()
    );
}

#[test]
fn output_is_forwarded_while_the_command_runs() {
    let (mut child, _) = start_sleeper();
    // The command has printed one line and sleeps, so the line was forwarded before its end.
    assert!(child.try_wait().unwrap().is_none());
    send(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
}

#[test]
fn background_process_does_not_delay_the_end_of_a_run() {
    let finished = guest("sleep 1000 & echo done")
        .expect_code(0)
        .expect_stdout("done");
    assert!(finished.took < Duration::from_secs(40), "{finished:?}");
}

#[test]
fn interrupt_removes_guest_and_scratch_files() {
    let before = unfinished_files();
    let temporary = tempfile::tempdir().unwrap();
    let (mut child, emulators) = start_sleeper_in(temporary.path());
    send(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 2));
    // The processes of User-Mode Linux are killed, and end a little later than the one that was waited for.
    await_true("the emulator ends", Duration::from_secs(20), || {
        emulators.iter().all(|pid| !is_alive(*pid))
    });
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
    // Other tests may have scratch folders at this moment.
    await_true(
        "scratch folders are removed",
        Duration::from_secs(20),
        || unfinished_files().iter().all(|file| before.contains(file)),
    );
}

#[test]
fn guest_after_program_is_killed_exits() {
    let (mut child, emulators) = start_sleeper();
    send(&child, Signal::KILL);
    child.wait().unwrap();
    await_true("the emulator ends", Duration::from_secs(20), || {
        emulators.iter().all(|pid| !is_alive(*pid))
    });
}

#[test]
fn concurrent_runs_do_not_interfere() {
    let runs: Vec<_> = (0..2)
        .map(|index| thread::spawn(move || guest(&format!("sleep 1; echo {index}"))))
        .collect();
    for (index, run) in runs.into_iter().enumerate() {
        run.join()
            .unwrap()
            .expect_code(0)
            .expect_stdout(&index.to_string());
    }
}

#[test]
fn guest_environment_is_as_documented() {
    let script = r#"
        set -e
        test "$(ulimit -l)" = unlimited
        test -f "$WORKSPACE/Cargo.toml"
        test "$RDMA_DEVICE" = rxe0
        test "$A" = 10.9.0.1
        python3 -c 'print("python", 6 * 7)'
        rdma link show rxe0/1 | grep -q 'state ACTIVE'
        ip address show dev dummy0 | grep -q 10.9.0.1/24
        ip -6 address show dev dummy0 | grep -q "$A6"
        for folder in /dev/shm /tmp /run; do test "$(stat -f -c %T "$folder")" = tmpfs; done
        test -c /dev/infiniband/uverbs0
        echo ok > "$OUT/harness"
    "#;
    guest(script).expect_code(0).expect_stdout("python 42");
    let shared = out().join("harness");
    assert_eq!(fs::read_to_string(&shared).unwrap(), "ok\n");
    fs::remove_file(shared).unwrap();
}

#[test]
fn write_in_guest_does_not_reach_the_host() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("written-in-a-guest");
    let quoted = soft_roce::quote(&file).unwrap();
    let script =
        format!("echo x > {quoted} && cat {quoted} && rm /etc/passwd && ! test -e /etc/passwd");
    guest(&script).expect_code(0).expect_stdout("x");
    assert!(!file.exists());
    assert!(Path::new("/etc/passwd").exists());
}

/// A folder below `/tmp`, hidden by the guest's own file system, with a script and a text file.
fn folder_with_program() -> tempfile::TempDir {
    let folder = tempfile::Builder::new()
        .prefix("a b,c:d")
        .tempdir_in("/tmp")
        .unwrap();
    let program = folder.path().join("say");
    fs::write(&program, "#!/bin/sh\ncat \"${0%/*}/word\" \"$@\"\n").unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    fs::write(folder.path().join("word"), "word\n").unwrap();
    folder
}

#[test]
fn command_below_tmp_runs_in_the_callers_folder() {
    let folder = folder_with_program();
    let hidden = tempfile::NamedTempFile::new_in("/tmp").unwrap();
    let mut command = Command::new(PROGRAM);
    let script = format!(
        "pwd; ./say; echo x >word && cat word && test ! -e {}",
        hidden.path().display()
    );
    command
        .current_dir(folder.path())
        .args(["soft-roce", "run", "--timeout", "60", "--", &script]);
    let expected = format!("{}\nword\nx\n", folder.path().display());
    let finished = finish(&mut command).expect_code(0);
    assert_eq!(finished.stdout, expected, "{finished:?}");
    let word = fs::read_to_string(folder.path().join("word")).unwrap();
    assert_eq!(word, "word\n", "a write has reached the host");
}

#[test]
fn program_below_tmp_is_visible_when_named_by_a_word() {
    let folder = folder_with_program();
    let single = tempfile::NamedTempFile::new_in("/tmp").unwrap();
    fs::write(single.path(), "alone\n").unwrap();
    let program = folder.path().join("say");
    let (program, single) = (program.to_str().unwrap(), single.path().to_str().unwrap());
    let finished = run(&["--timeout", "60", "--", program, single]).expect_code(0);
    assert_eq!(finished.stdout, "word\nalone\n");
}

#[test]
fn hidden_path_in_failed_script_is_explained() {
    let folder = folder_with_program();
    let script = format!("'{}/say'", folder.path().display());
    // The first word of a script is mounted, later words are not.
    guest(&script).expect_code(0).expect_stdout("word");
    let file = tempfile::NamedTempFile::new_in("/tmp").unwrap();
    let path = file.path().to_str().unwrap();
    guest(&format!("test -e {path}"))
        .expect_code(1)
        .expect_stderr(&format!("note: {path} is not in the guest"));
}

/// Runs a script in a guest with `input` as standard input.
fn guest_reading(script: &str, input: &[u8]) -> Finished {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(input).unwrap();
    file.rewind().unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["soft-roce", "run", "--timeout", "60", "--", script]);
    finish_reading(&mut command, file.into())
}

#[test]
fn stdin_of_megabytes_arrives_complete() {
    let input: Vec<u8> = (0..3_000_001_u32)
        .flat_map(|number| number.to_le_bytes())
        .take(3_000_001)
        .collect();
    let program = "import sys; data = sys.stdin.buffer.read(); print(len(data), sum(data))";
    let sum: u64 = input.iter().map(|byte| u64::from(*byte)).sum();
    guest_reading(&format!("python3 -c '{program}'"), &input)
        .expect_code(0)
        .expect_stdout(&format!("{} {sum}\n", input.len()));
}

#[test]
fn stdin_left_unread_does_not_delay_the_end() {
    let finished = guest_reading("head -c 3; sleep 1; exit 5", &[b'x'; 3_000_000]).expect_code(5);
    assert_eq!(finished.stdout, "xxx");
}

#[test]
fn stdin_is_forwarded_while_the_command_runs() {
    let mut command = Command::new(PROGRAM);
    command.args(["soft-roce", "run", "--timeout", "60", "--"]);
    let mut child = command
        .arg("cat; echo end")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    for line in [b"one\n", b"two\n"] {
        input.write_all(line).unwrap();
        let mut back = [0; 4];
        output.read_exact(&mut back).unwrap();
        assert_eq!(&back, line);
    }
    drop(input);
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "end\n");
    assert!(child.wait().unwrap().success());
}

#[test]
fn help_names_variables_set_in_a_guest() {
    let mut command = Command::new(PROGRAM);
    let help = finish(command.args(["soft-roce", "run", "--help"])).expect_code(0);
    let names: BTreeSet<&str> = help
        .stdout
        .split('$')
        .skip(1)
        .map(|rest| {
            let end =
                rest.find(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_');
            &rest[..end.unwrap_or(rest.len())]
        })
        .collect();
    for name in ["OUT", "RDMA_DEVICE", "PATH", "A6", "HOST"] {
        assert!(names.contains(name), "{name}: {help:?}");
    }
    let names: Vec<&str> = names.into_iter().collect();
    let script = format!(
        "for name in {}; do eval \"value=\\$$name\"; [ \"$value\" ] || exit 1; done",
        names.join(" ")
    );
    guests(&[], &script, &script).expect_code(0);
}

#[test]
fn variable_of_env_option_reaches_the_command() {
    run(&["--env", "X=a 'b", "--", "printf '%s' \"$X\""])
        .expect_code(0)
        .expect_stdout("a 'b");
}

#[test]
fn rping_between_two_guests_succeeds() {
    let [server, client] = rping_pair("$A");
    guests(&[], &server, &client)
        .expect_code(0)
        .expect_stdout(LAST_PING);
}

#[test]
fn rping_between_two_guests_over_ipv6_succeeds() {
    let [server, client] = rping_pair("$A6");
    guests(&[], &server, &client)
        .expect_code(0)
        .expect_stdout(LAST_PING);
}

#[test]
fn rping_between_two_guests_over_siw_succeeds() {
    let [server, client] = rping_pair("$A");
    over_siw(&["--a", &server, "--b", &client])
        .expect_code(0)
        .expect_stdout(LAST_PING);
}

#[test]
fn rping_on_one_siw_guest_succeeds() {
    let client = rping("-c -v -a $A -C 3");
    let script = format!(
        "rping -s -a $A -C 3 & sleep 3; {{ {client}; }} && ibv_devinfo -d siw0 | grep iWARP"
    );
    over_siw(&["--", &script])
        .expect_code(0)
        .expect_stdout("ping data: rdma-ping-2")
        .expect_stdout("iWARP");
}

#[test]
fn ping_of_other_guest_by_name_and_ipv6_succeeds() {
    let script = "/run/soft-roce/busybox ping -c 1 b && /run/soft-roce/busybox ping6 -c 1 $B6";
    guests(&[], script, "sleep 5")
        .expect_code(0)
        .expect_stdout("a| 1 packets transmitted, 1 packets received");
}

#[test]
fn exit_code_of_two_commands_is_the_first_failure() {
    let finished = guests(&[], "sleep 100", "echo no >&2; exit 3")
        .expect_code(3)
        .expect_stderr("b| no");
    assert!(finished.took < Duration::from_secs(60), "{finished:?}");
}

#[test]
fn until_option_stops_the_server_after_the_client() {
    let finished = guests(&["--until", "b"], "sleep 1000", "echo hi")
        .expect_code(0)
        .expect_stdout("b| hi");
    assert!(finished.took < Duration::from_secs(60), "{finished:?}");
}

#[test]
fn keep_going_option_runs_the_other_command_after_a_failure() {
    let finished = guests(&["--keep-going"], "exit 4", "sleep 8; echo still here").expect_code(4);
    finished.expect_stdout("b| still here");
}

#[test]
fn mtu_option_sets_interface_and_path_mtu() {
    let script = "ip link show eth0 | grep -q 'mtu 1500' && ibv_devinfo -d rxe0 | grep active_mtu";
    guests(&["--mtu", "1500"], script, "true")
        .expect_code(0)
        .expect_stdout("1024");
    run(&["--", "ibv_devinfo -d rxe0 | grep active_mtu"])
        .expect_code(0)
        .expect_stdout("4096");
}

#[test]
fn rds_option_loads_rds_on_the_named_host_only() {
    let script = "if grep -q ^rds_rdma /proc/modules; then echo has rds; else echo has none; fi";
    guests(&["--rds", "a"], script, script)
        .expect_code(0)
        .expect_stdout("a| has rds")
        .expect_stdout("b| has none");
}

/// Opens a socket of a family whose module is not loaded, then an RDS socket.
const SOCKETS: &str = "
import errno, socket
with socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET) as hash:
    hash.bind(('hash', 'sha512'))
AF_RDS = 21
try:
    socket.socket(AF_RDS, socket.SOCK_SEQPACKET)
except OSError as error:
    print('AF_RDS:', errno.errorcode[error.errno])
";

#[test]
fn modules_except_rds_load_on_demand() {
    // Debian's RDS module lacks the alias of other distributions.
    let script = format!(
        "echo alias net-pf-21 rds >/etc/modprobe.d/alias.conf; ! grep -q ^af_alg /proc/modules \
            && python3 -c \"{SOCKETS}\" && grep -q ^algif_hash /proc/modules \
            && ! grep ^rds /proc/modules && modprobe rds && grep -q ^rds /proc/modules"
    );
    // The modules of User-Mode Linux are built in, except RDS.
    run(&["--backend", "qemu", "--timeout", "60", "--", &script])
        .expect_code(0)
        .expect_stdout("AF_RDS: EAFNOSUPPORT");
}

#[test]
fn pcap_option_records_roce_packets() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("wire.pcap");
    let [server, client] = rping_pair("$A");
    guests(&["--pcap", file.to_str().unwrap()], &server, &client).expect_code(0);
    let bytes = fs::read(&file).unwrap();
    // The magic number of a capture with microseconds, then a UDP packet to RoCE's port 4791.
    assert_eq!(bytes[..4], 0xa1b2_c3d4_u32.to_le_bytes());
    assert!(bytes.windows(2).any(|pair| pair == 4791_u16.to_be_bytes()));
}

#[test]
fn pcap_option_with_one_guest_is_refused() {
    run(&["--pcap", "/nowhere", "--", "true"])
        .expect_code(1)
        .expect_stderr("needs two guests");
}

#[test]
fn on_host_option_creates_and_removes_the_device() {
    // Runs inside a guest, as a machine with a suitable kernel. The guest's own device is removed first.
    let name = "SOFT_ROCE_RDMA_CORE";
    let quote = |path: &str| soft_roce::quote(Path::new(path)).unwrap();
    let rdma_core =
        std::env::var(name).map(|chosen| format!("export {name}={} && ", quote(&chosen)));
    let script = format!(
        "{}rdma link del rxe0 && export CARGO={} && {} soft-roce run --on host -- '\
            ibv_devinfo -d rxe0 | grep -q PORT_ACTIVE && test $A = 10.9.0.1 && exit 9'; \
            code=$?; rdma link show | grep rxe0; ip link show softroce0; exit $code",
        rdma_core.unwrap_or_default(),
        quote(env!("CARGO")),
        quote(PROGRAM),
    );
    let finished = run(&["--timeout", "120", "--", &script])
        .expect_code(9)
        .expect_stderr("softroce0");
    assert!(!finished.stdout.contains("rxe0"), "{finished:?}");
}

#[test]
fn missing_qemu_is_reported_with_the_package_manager() {
    let mut command = Command::new(PROGRAM);
    command
        .args(["soft-roce", "run", "--backend", "qemu", "--", "true"])
        .env("PATH", "");
    finish(&mut command)
        .expect_code(1)
        .expect_stderr("qemu-system-x86_64")
        .expect_stderr("install");
}

#[test]
fn kernel_without_rxe_is_refused_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let modules = folder.path().join("lib/modules/6.1.0-1-cloud-amd64");
    fs::create_dir_all(modules.join("kernel")).unwrap();
    let image = folder.path().join("vmlinuz");
    fs::write(&image, "").unwrap();
    let (image, modules) = (image.to_str().unwrap(), modules.to_str().unwrap());
    let kernel = ["--backend", "qemu", "--kernel", image, "--modules", modules];
    run(&[&kernel[..], &["--", "true"]].concat())
        .expect_code(1)
        .expect_stderr("no module rdma_rxe")
        .expect_stderr("generic flavour");
}

#[test]
fn memory_beyond_the_hosts_is_refused_with_advice() {
    run(&["--memory", "100000000", "--", "true"])
        .expect_code(1)
        .expect_stderr("--memory");
}
