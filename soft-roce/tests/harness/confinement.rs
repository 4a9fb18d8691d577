//! The host's files stay as they are, for a guest whose root tries to change them, and after every end of a run.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use super::{PROGRAM, await_true, cache, finish, guest, is_alive, out, send, start_sleeper};

/// Each line changes the folder `$1`, which has the files `file` and `other`, and the link `link`.
const CHANGES: &str = r#"
echo x >>"$1/file"; true >"$1/file"; echo x >>"$1/link"
rm -f "$1/other"; mv "$1/file" "$1/moved"; ln "$1/file" "$1/second"; ln -f "$1/other" "$1/file"
echo x >"$1/new"; mkdir "$1/folder"; ln -s /etc/passwd "$1/passwd"
mkfifo "$1/fifo"; mknod "$1/device" c 1 3; mknod "$1/disk" b 8 0
python3 -c "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])" "$1/socket"
cp /bin/true "$1/program"; chmod 4755 "$1/program" "$1/file"; chmod 600 "$1/file"; chmod 0 "$1"
chown 1234:1234 "$1/file"; touch -d 2001-01-01 "$1/file"
python3 -c "import os, sys; os.truncate(sys.argv[1], 1)" "$1/file"
python3 -c "import os, sys; os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY, 0o6755)" "$1/set-id"
"#;

/// Name, type and mode, owner, size, and time of the last change of each file in a folder and of the folder itself.
fn state(folder: &Path) -> Vec<(PathBuf, u32, u32, u64, i64)> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.push(folder.to_owned());
    paths.sort();
    let state = |path: PathBuf| {
        let data = fs::symlink_metadata(&path).unwrap();
        (path, data.mode(), data.uid(), data.size(), data.mtime())
    };
    paths.into_iter().map(state).collect()
}

#[test]
fn root_of_a_guest_changes_no_file_of_the_host() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    for name in ["file", "other"] {
        fs::write(folder.path().join(name), "contents").unwrap();
    }
    symlink("file", folder.path().join("link")).unwrap();
    let before = state(folder.path());
    let path = soft_roce::quote(folder.path()).unwrap();
    // By a second mount of the folder, of the host's root, and by the guest's own view. Under QEMU each share can be mounted
    // once.
    let script = format!(
        "change() {{ [ -e \"$1/file\" ] && echo \"reached by $2\"\n{CHANGES}\n}}\n\
         . /run/soft-roce/config; mkdir -p /mnt/folder /mnt/root\n\
         if [ $BACKEND = uml ]; then mount -t hostfs -o {path} none /mnt/folder && mount -t hostfs -o / none /mnt/root\n\
         else mount -o remount,rw /lower; fi\n\
         change /mnt/folder folder; change /mnt/root{path} root; change {path} overlay; rm -rf {path}\n\
         [ $BACKEND = qemu ] || [ -e /mnt/folder/file ] && echo end"
    );
    let finished = guest(&script)
        .expect_code(0)
        .expect_stdout("reached by overlay")
        .expect_stdout("end");
    assert_eq!(state(folder.path()), before, "{finished:#?}");
    let contents = fs::read_to_string(folder.path().join("file")).unwrap();
    assert_eq!(contents, "contents");
}

#[test]
fn out_gets_only_plain_files_of_the_user() {
    let folder = tempfile::tempdir_in(out()).unwrap();
    let outside = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    let path = soft_roce::quote(folder.path()).unwrap();
    let script = format!(
        "set -- {path}; echo x >$1/file; echo x >$1/other\n{CHANGES}\n\
         ln -f {} $1/outside; python3 -c \"import os, sys; os.mknod(sys.argv[1], 0o104755)\" $1/node\n\
         set -e; cd $1; mkdir results; cp -p /bin/true results/program; results/program; echo done >one; mv one results/two\n\
         python3 -c \"import shutil; shutil.copy('results/two', 'copy')\"; rm results/program",
        soft_roce::quote(outside.path()).unwrap()
    );
    let finished = guest(&script).expect_code(0);
    let user = rustix::process::geteuid().as_raw();
    for (path, ..) in state(folder.path()) {
        let data = fs::symlink_metadata(&path).unwrap();
        let kind = data.file_type();
        assert!(kind.is_file() || kind.is_dir(), "{path:?}: {finished:#?}");
        assert!(!kind.is_socket() && data.mode() & 0o6000 == 0, "{path:?}");
        assert_eq!(data.uid(), user, "{path:?}");
    }
    let two = fs::read_to_string(folder.path().join("results/two"));
    assert_eq!(two.unwrap(), "done\n", "{finished:#?}");
    assert!(folder.path().join("copy").exists());
    assert_eq!(fs::metadata(outside.path()).unwrap().nlink(), 1);
}

/// The folder of a User-Mode Linux process, from the command line of its kernel.
fn private_folder(command_line: &str) -> Option<PathBuf> {
    let mut words = command_line.split_whitespace();
    words.find_map(|word| word.strip_prefix("uml_dir=").map(PathBuf::from))
}

#[test]
fn run_with_a_timeout_leaves_nothing() {
    let (home, temporary) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut command = Command::new(PROGRAM);
    command
        .env("XDG_CACHE_HOME", cache())
        .env("HOME", home.path())
        .env("TMPDIR", temporary.path());
    let script = "cat /proc/cmdline; exec sleep 100";
    command.args(["soft-roce", "run", "--timeout", "3", "--", script]);
    let finished = finish(&mut command).expect_code(124);
    if let Some(folder) = private_folder(&finished.stdout) {
        assert!(!folder.exists(), "{folder:?}");
    }
    for folder in [home.path(), temporary.path()] {
        let mut remains = fs::read_dir(folder).unwrap().flatten();
        let first = remains.next();
        assert!(first.is_none(), "{first:?}: {finished:#?}");
    }
}

#[test]
fn folder_of_a_killed_run_is_removed_by_the_next() {
    let (mut child, emulators) = start_sleeper();
    let command_lines = emulators.iter().map(|pid| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).replace('\0', " ")
    });
    let folders: Vec<PathBuf> = command_lines
        .filter_map(|line| private_folder(&line))
        .collect();
    send(&child, Signal::KILL);
    child.wait().unwrap();
    await_true("the emulator ends", Duration::from_secs(20), || {
        emulators.iter().all(|pid| !is_alive(*pid))
    });
    guest("true").expect_code(0);
    let remaining: Vec<_> = folders.iter().filter(|folder| folder.exists()).collect();
    assert!(remaining.is_empty(), "{remaining:?}");
}
