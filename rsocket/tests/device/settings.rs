//! Settings from the configuration files of the system.

use std::{env, process::Command};

use rsocket::{Listener, Stream};
use tokio::runtime::Builder;

use crate::local;

/// Sizes from the system's files, for each kind of socket; without files, the defaults.
#[test]
fn stream_has_settings_of_the_config_files() {
    let expected: u16 = env::var("SQSIZE").map_or(384, |size| size.parse().unwrap());
    let listener = Listener::bind(local()).unwrap();
    let client = Stream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    assert_eq!(client.settings().send_depth, expected);
    assert_eq!(server.settings().send_depth, expected);
    let runtime = Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        let client = rsocket::tokio::Stream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        assert_eq!(client.get_ref().settings().send_depth, expected);
    });
}

#[test]
fn config_files_of_the_system_set_stream_settings() {
    const SCRIPT: &str = "
        cd \"$1\" && shift && mkdir -p rdma/rsocket && cp -r /etc/libibverbs.d . &&
        echo 100 >rdma/rsocket/sqsize_default && mount --bind . /etc &&
        SQSIZE=100 exec \"$@\"";
    let etc = tempfile::tempdir().unwrap();
    // An ordinary user may mount as root of a namespace of users.
    let user: &[&str] = match rustix::process::geteuid().is_root() {
        true => &[],
        false => &["--map-root-user"],
    };
    let ran = Command::new("unshare")
        .args(user)
        .args(["--mount", "sh", "-c", SCRIPT, "sh"])
        .arg(etc.path())
        .arg(env::current_exe().unwrap())
        .args([
            "--exact",
            "settings::stream_has_settings_of_the_config_files",
        ])
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&ran.stdout);
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(
        ran.status.success() && output.contains("1 passed"),
        "{output}{errors}"
    );
}
