//! `cargo soft-roce test` in a workspace outside of this one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::{Finished, PROGRAM, finish};

/// A package with tests that pass in a guest only, and a failing test.
const TESTS: &str = r#"
    //! ```
    //! assert!(std::path::Path::new("/sys/class/infiniband/rxe0").exists());
    //! ```

    #[test]
    fn device_is_active() {
        let state = std::fs::read_to_string("/sys/class/infiniband/rxe0/ports/1/state").unwrap();
        assert!(state.contains("ACTIVE"));
        assert_eq!(std::env::var("RDMA_DEVICE").unwrap(), "rxe0");
    }

    #[test]
    fn environment_is_the_callers() {
        let folder = std::env::current_dir().unwrap();
        assert_eq!(folder.to_str().unwrap(), env!("CARGO_MANIFEST_DIR"));
        assert_eq!(std::env::var("CARGO_MANIFEST_DIR").unwrap(), env!("CARGO_MANIFEST_DIR"));
        assert_eq!(std::env::var("VALUE").unwrap(), "a 'b\n");
        assert_eq!(std::env::var("LARGE").unwrap().len(), 50_000);
        assert!(std::env::var("TMPDIR").is_err());
        println!("printed in {}", folder.display());
    }

    #[test]
    fn fails() {
        panic!("on purpose");
    }
"#;

/// The workspace, in a folder with the package `member`.
struct Workspace(TempDir);

impl Workspace {
    fn new(parent: &Path) -> Self {
        let folder = tempfile::tempdir_in(parent).unwrap();
        let member = folder.path().join("member");
        fs::create_dir_all(member.join("src")).unwrap();
        let manifest = "[workspace]\nmembers = [\"member\"]\nresolver = \"2\"\n";
        fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
        let manifest = "[package]\nname = \"member\"\nversion = \"0.1.0\"\nedition = \"2021\"\n";
        fs::write(member.join("Cargo.toml"), manifest).unwrap();
        fs::write(member.join("src/lib.rs"), TESTS).unwrap();
        Self(folder)
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.0.path())
            .args(arguments)
            .env("VALUE", "a 'b\n")
            .env("LARGE", "x".repeat(50_000))
            .env("TMPDIR", "/var/tmp")
            .env("RUST_BACKTRACE", "0");
        for name in ["CARGO_TARGET_DIR", "RUSTFLAGS", "CARGO_MANIFEST_DIR"] {
            command.env_remove(name);
        }
        command
    }

    fn test(&self, arguments: &[&str]) -> Finished {
        let arguments = [&["soft-roce", "test", "--timeout", "60"], arguments].concat();
        finish(&mut self.command(PROGRAM, &arguments))
    }

    /// The unit test program of `member`.
    fn program(&self) -> PathBuf {
        let entries = fs::read_dir(self.0.path().join("target/debug/deps")).unwrap();
        let mut paths = entries.flatten().map(|entry| entry.path());
        let is_program = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with("member-") && path.extension().is_none()
        };
        paths.find(is_program).unwrap()
    }
}

#[test]
fn tests_of_another_workspace_run_in_a_guest() {
    // The guest's own /tmp hides the workspace, except for a mount of it.
    for parent in ["/tmp", "/var/tmp"] {
        let workspace = Workspace::new(Path::new(parent));
        workspace
            .test(&["--lib", "--", "--skip", "fails"])
            .expect_code(0)
            .expect_stdout("2 passed; 0 failed; 0 ignored; 0 measured; 1 filtered out");
    }
}

#[test]
fn arguments_and_exit_codes_of_tests_are_cargos() {
    let workspace = Workspace::new(Path::new("/var/tmp"));
    let root = workspace.0.path().canonicalize().unwrap();
    workspace
        .test(&["--", "--nocapture"])
        .expect_code(101)
        .expect_stdout(&format!("printed in {}/member", root.display()))
        .expect_stdout("2 passed; 1 failed")
        .expect_stderr("on purpose");
    workspace
        .test(&["--doc"])
        .expect_code(0)
        .expect_stdout("1 passed");
    workspace
        .test(&["-p", "absent"])
        .expect_code(101)
        .expect_stderr("absent");
}

#[test]
fn runner_with_nextests_calls_lists_and_runs_one_test() {
    let workspace = Workspace::new(Path::new("/var/tmp"));
    let built = workspace
        .command("cargo", &["test", "--lib", "--no-run"])
        .status();
    assert!(built.unwrap().success());
    let program = workspace.program();
    let run = |arguments: &[&str]| {
        let program = program.to_str().unwrap();
        let arguments = [&["soft-roce", "runner", program], arguments].concat();
        let mut command = workspace.command(PROGRAM, &arguments);
        let member = workspace.0.path().join("member");
        finish(
            command
                .current_dir(&member)
                .env("CARGO_MANIFEST_DIR", member),
        )
    };
    let listed = run(&["--list", "--format", "terse"]).expect_code(0);
    assert_eq!(
        listed.stdout,
        "device_is_active: test\nenvironment_is_the_callers: test\nfails: test\n"
    );
    run(&["--exact", "device_is_active", "--nocapture"])
        .expect_code(0)
        .expect_stdout("1 passed");
    run(&["--exact", "fails", "--nocapture"])
        .expect_code(101)
        .expect_stderr("on purpose");
}

#[test]
fn doctor_names_the_machine_of_guests() {
    let workspace = Workspace::new(Path::new("/var/tmp"));
    let doctor = |path: &str| {
        finish(
            workspace
                .command(PROGRAM, &["soft-roce", "doctor"])
                .env("PATH", path),
        )
    };
    let path = std::env::var("PATH").unwrap();
    doctor(&path).expect_code(0).expect_stdout("\nGuests ");
    let empty = workspace.0.path().join("empty");
    doctor(empty.to_str().unwrap())
        .expect_code(1)
        .expect_stdout("missing  packages")
        .expect_stdout("Guests cannot start yet");
}
