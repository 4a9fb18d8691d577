//! `CALLS.md`, compared with the symbols of the libraries and with the C library's headers.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    ffi::CString,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::program::exclusive;

/// Set for a child process with a test alone.
const CHILD: &str = "PRELOAD_LIBRARY_IS_CLOSED";

/// Headers with calls that take descriptors.
const HEADERS: [&str; 30] = [
    "aio.h",
    "dirent.h",
    "fcntl.h",
    "netinet/in.h",
    "poll.h",
    "spawn.h",
    "stdio.h",
    "stdlib.h",
    "sys/epoll.h",
    "sys/eventfd.h",
    "sys/fanotify.h",
    "sys/file.h",
    "sys/inotify.h",
    "sys/ioctl.h",
    "sys/mman.h",
    "sys/select.h",
    "sys/sendfile.h",
    "sys/signalfd.h",
    "sys/socket.h",
    "sys/stat.h",
    "sys/statfs.h",
    "sys/statvfs.h",
    "sys/time.h",
    "sys/timerfd.h",
    "sys/uio.h",
    "sys/wait.h",
    "sys/xattr.h",
    "termios.h",
    "unistd.h",
    "utime.h",
];

/// Beginnings of the names of parameters for descriptors, without underscores.
const PARAMETERS: [&str; 11] = [
    "fd", "fildes", "infd", "outfd", "in_fd", "out_fd", "epfd", "oldfd", "newfd", "dfd", "lowfd",
];

/// Types of parameters that contain descriptors.
const TYPES: [&str; 3] = ["struct aiocb", "struct pollfd", "fd_set"];

/// Decisions by call.
fn table() -> BTreeMap<&'static str, &'static str> {
    let columns = ["call", "decision", "reason"];
    let rows = tables::rows(include_str!("../../CALLS.md"), columns).unwrap();
    rows.into_iter()
        .map(|row| {
            let [call, decision, reason] = row.cells;
            let explained = match decision {
                "intercepted" => reason.is_empty(),
                "refused" | "harmless" | "fails" => !reason.is_empty(),
                _ => false,
            };
            assert!(explained, "{row:?}");
            (call.trim_matches('`'), decision)
        })
        .collect()
}

/// Functions defined by a library.
fn symbols(library: &Path) -> BTreeSet<String> {
    let mut command = Command::new("nm");
    let output = command.args(["-D", "--defined-only"]).arg(library);
    let output = output.output().unwrap();
    assert!(output.status.success(), "{}", library.display());
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.nth(2)?;
        Some(name.split('@').next()?.to_owned())
    });
    names.collect()
}

fn c_library() -> BTreeSet<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let library = maps.lines().find_map(|line| {
        let path = line.split_whitespace().nth(5)?;
        path.ends_with("/libc.so.6").then(|| Path::new(path))
    });
    symbols(library.unwrap())
}

/// Cargo builds the library for this test, into the same folder.
fn library_path() -> PathBuf {
    let program = env::current_exe().unwrap();
    program.with_file_name("librspreload.so")
}

fn library_symbols_of() -> BTreeSet<String> {
    symbols(&library_path())
}

fn is_of_descriptor(parameter: &str) -> bool {
    let words: Vec<&str> = parameter
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .collect();
    let name = words.iter().rfind(|word| !word.is_empty());
    let name = name.map_or("", |name| name.trim_start_matches('_'));
    let begins = PARAMETERS.iter().any(|start| {
        let rest = name.strip_prefix(start);
        rest.is_some_and(|rest| rest.is_empty() || rest.bytes().all(|b| b.is_ascii_digit()))
    });
    begins && words.contains(&"int") || TYPES.iter().any(|kind| parameter.contains(kind))
}

/// Functions of the headers with a descriptor among their parameters.
fn declared() -> BTreeSet<String> {
    let mut compiler = Command::new("cc")
        .args(["-D_GNU_SOURCE", "-E", "-P", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = compiler.stdin.take().unwrap();
    for header in HEADERS {
        writeln!(input, "#include <{header}>").unwrap();
    }
    drop(input);
    let output = compiler.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let declarations = text.split(';').filter(|text| text.contains("extern"));
    let functions = declarations.filter_map(|text| {
        let (before, parameters) = text.split_once('(')?;
        let (parameters, _) = parameters.split_once(')')?;
        let name = before.split_whitespace().next_back()?;
        let name = name.trim_start_matches('*');
        parameters
            .split(',')
            .any(is_of_descriptor)
            .then(|| name.to_owned())
    });
    functions.collect()
}

#[test]
fn intercepted_and_refused_calls_are_exported_and_no_others() {
    // Other tests limit the descriptors of the process.
    let _exclusive = exclusive();
    let c_library = c_library();
    let library_symbols = library_symbols_of();
    let exported: BTreeSet<&str> = library_symbols
        .intersection(&c_library)
        .map(String::as_str)
        .collect();
    let listed = table().into_iter();
    let listed = listed.filter(|(_, decision)| ["intercepted", "refused"].contains(decision));
    assert_eq!(
        listed.map(|(call, _)| call).collect::<BTreeSet<_>>(),
        exported
    );
}

/// Older C libraries have fewer calls, newer ones may have more.
#[test]
fn call_of_the_headers_with_a_descriptor_has_a_decision() {
    // Other tests limit the descriptors of the process.
    let _exclusive = exclusive();
    let table = table();
    let declared = declared();
    assert!(declared.len() > 150, "{declared:?}");
    let c_library = c_library();
    let missing: Vec<&String> = declared
        .iter()
        .filter(|call| c_library.contains(*call) && !table.contains_key(call.as_str()))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Handlers of the C library refer to the library's functions, and its threads run them.
#[test]
fn library_stays_loaded_after_its_dlclose() {
    // Other tests limit the descriptors of the process.
    let _exclusive = exclusive();
    let path = library_path();
    if env::var_os(CHILD).is_none() {
        // The library stays until the end of its process.
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", "calls::library_stays_loaded_after_its_dlclose"]);
        let output = child.env(CHILD, "1").output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && printed.contains("1 passed"),
            "{output:?}"
        );
        return;
    }
    let file = CString::new(path.to_str().unwrap()).unwrap();
    let is_loaded = || {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        maps.contains(path.to_str().unwrap())
    };
    assert!(!is_loaded());
    // SAFETY: the path is a string of C. The library's initializers have no requirement.
    let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    // SAFETY: the handle has no other owner, and no function of the library is used.
    assert_eq!(unsafe { libc::dlclose(library) }, 0);
    assert!(is_loaded());
}
