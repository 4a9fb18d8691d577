//! The demo's output and exit code, and a build without packages.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_demo"))
        .args(arguments)
        .output()
        .expect("the demo can be run")
}

/// Lines of the output starting with `prefix`, without it.
fn lines_of<'a>(text: &'a str, prefix: &str) -> Vec<&'a str> {
    text.lines()
        .filter_map(|line| line.strip_prefix(prefix))
        .collect()
}

/// Kinds of the frames from one host to the other, without numbers of packets.
fn kinds<'a>(text: &'a str, prefix: &str) -> Vec<&'a str> {
    let frames = lines_of(text, prefix).into_iter();
    frames
        .map(|frame| match frame.split(", ").collect::<Vec<_>>()[..] {
            [opcode, _psn] => opcode,
            [_opcode, _psn, _len, meaning] => meaning,
            [_opcode, _psn, len] => len,
            _ => frame,
        })
        .collect()
}

/// Asserts the kinds of all frames in one direction: `first`, both of `crossing` in either order, `last`.
fn assert_frames(kinds: &[&str], first: &[&str], crossing: [&str; 2], last: &[&str]) {
    let [one, other] = crossing;
    let either = [[one, other], [other, one]].map(|middle| [first, &middle, last].concat());
    assert!(either.iter().any(|kinds_of| kinds_of == kinds), "{kinds:?}");
}

#[test]
fn exchange_prints_the_lines_of_both_programs_and_each_frame() {
    let output = run(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let server = lines_of(&text, "a: ");
    assert_eq!(
        server[..2],
        ["listening on port 7471.", "received connection request."]
    );
    let client = lines_of(&text, "b: ");
    assert_eq!(client[..2], ["address resolved.", "route resolved."]);
    for (lines, peer, end) in [
        (server, "active/client", "peer disconnected."),
        (client, "passive/server", "disconnected."),
    ] {
        for expected in [
            "connected. posting send...",
            "send completed successfully.",
            &format!("received message: message from {peer} side with pid"),
            end,
        ] {
            let found = lines.iter().filter(|line| line.starts_with(expected));
            assert_eq!(found.count(), 1, "{expected}: {text}");
        }
    }
    // Both messages cross, so a side's message and its acknowledgment come in either order.
    let crossing = ["1024 bytes", "RC Acknowledge"];
    let (first, last) = (
        ["connection request (REQ)", "ready to use (RTU)"],
        ["disconnect request (DREQ)"],
    );
    assert_frames(&kinds(&text, "b > a: "), &first, crossing, &last);
    let (first, last) = (["acceptance (REP)"], ["disconnect reply (DREP)"]);
    assert_frames(&kinds(&text, "a > b: "), &first, crossing, &last);
    // Frames are between the lines of their cause and of their effect.
    let at = |part: &str| text.find(part).unwrap();
    assert!(at("b: route resolved.") < at("(REQ)"));
    assert!(at("(REQ)") < at("a: received connection request."));
}

#[test]
fn exchange_over_a_lossy_network_succeeds_with_every_seed() {
    // With this loss, the retries of a message fail once in some thousand runs. The programs mostly wait, so all run at once.
    let programs: Vec<_> = (1..=12)
        .map(|seed| {
            Command::new(env!("CARGO_BIN_EXE_demo"))
                .args(["--loss", "0.2"])
                .env("SOFTNIC_SEED", seed.to_string())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("the demo can be run")
        })
        .collect();
    for (seed, program) in (1..).zip(programs) {
        let output = program.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "seed {seed}: {errors}\n{text}");
        assert_eq!(text.matches("received message: ").count(), 2, "{text}");
    }
}

#[test]
fn client_without_network_fails_the_demo() {
    let output = run(&["--loss", "1"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("the client has failed"), "{error}");
    // All requests of the client up to the failure are in the trace.
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.matches("(REQ)").count() > 1, "{text}");
}

#[test]
fn unknown_arguments_are_refused() {
    for arguments in [&["--loss"][..], &["--loss", "2"], &["help"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(output.stdout.is_empty());
    }
}

/// As on a machine with neither rdma-core, nor its headers, nor pkg-config, nor libclang.
#[test]
fn demo_builds_without_packages() {
    // A separate folder, which keeps the build for the next run.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("without-packages");
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let output = Command::new(env!("CARGO"))
        .args([
            "build",
            "--offline",
            "--locked",
            "--manifest-path",
            manifest,
        ])
        .arg("--target-dir")
        .arg(&target)
        .env_remove("CARGO_TARGET_DIR")
        .env("PKG_CONFIG", "/nonexistent/pkg-config")
        .env("LIBCLANG_PATH", "/nonexistent")
        // Set by the workspace's `.cargo/config.toml`: programs then link libraries whose functions fail.
        .env("RDMA_STUB_LIBRARIES", "")
        .output()
        .expect("cargo can be run");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let demo = Command::new(target.join("debug/demo")).output();
    assert!(demo.expect("the demo can be run").status.success());
    // The build scripts found no library to link.
    let scripts = std::fs::read_dir(target.join("debug/build")).unwrap();
    let outputs: Vec<String> = scripts
        .filter_map(|script| std::fs::read_to_string(script.unwrap().path().join("output")).ok())
        .collect();
    assert!(
        outputs.iter().any(|text| text.contains("IBVERBS")),
        "{outputs:?}"
    );
    for output in &outputs {
        assert!(!output.contains("rustc-link-lib"), "{output}");
    }
    // The build scripts of the four -sys crates run again once a package adds a library.
    let again = outputs
        .iter()
        .filter(|text| text.contains("rerun-if-changed=/usr/lib"));
    assert_eq!(again.count(), 4, "{outputs:?}");
}
