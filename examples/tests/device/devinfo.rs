//! Output of `devinfo` against rdma-core's `ibv_devinfo`.

use std::process::{Command, Output};

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap()
}

fn ours(args: &[&str]) -> Output {
    run(env!("CARGO_BIN_EXE_devinfo"), args)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn name() -> String {
    let devices = verbs::devices().unwrap();
    devices.iter().next().unwrap().name().to_owned()
}

/// Flags that older releases of C's program count among unknown ones.
const NEWER: [&str; 2] = ["SUPPORT_FLUSH", "SUPPORT_ATOMIC_WRITE"];

/// The lines of `text` without those for flags that C's program does not know.
fn shared<'t>(text: &'t str, theirs: &str) -> Vec<&'t str> {
    if NEWER.iter().any(|flag| theirs.contains(flag)) {
        return text.lines().collect();
    }
    let is_known = |line: &&str| !NEWER.contains(&line.trim()) && !line.contains("Unknown flags");
    text.lines().filter(is_known).collect()
}

#[test]
fn devinfo_text_matches_c() {
    let name = name();
    for args in [
        &[][..],
        &["-v"],
        &["-l"],
        &["--list"],
        &["-d", &name],
        &["-d", &name, "-i", "1", "-v"],
        &["--ib-dev", &name, "--ib-port", "1", "--verbose"],
    ] {
        let (ours, theirs) = (ours(args), run("ibv_devinfo", args));
        let (our_text, their_text) = (text(&ours.stdout), text(&theirs.stdout));
        let lines = [&our_text, &their_text].map(|text| shared(text, &their_text));
        for (ours, theirs) in lines[0].iter().zip(&lines[1]) {
            assert_eq!(ours, theirs, "{args:?}");
        }
        assert_eq!(lines[0], lines[1], "{args:?}");
        assert_eq!(ours.status, theirs.status, "{args:?}");
        assert!(ours.status.success());
    }
}

#[test]
fn devinfo_of_missing_device_or_port_fails_as_in_c() {
    let args = ["-d", "no such device"];
    let (ours, theirs) = (ours(&args), run("ibv_devinfo", &args));
    assert_eq!(text(&ours.stderr), text(&theirs.stderr));
    assert_eq!(ours.status.code(), theirs.status.code());
    let other_port = self::ours(&["-i", "9"]);
    assert!(text(&other_port.stderr).contains("Invalid port requested for device"));
    assert!(!other_port.status.success());
}

#[test]
fn devinfo_json_has_the_same_data() {
    let json = ours(&["--json"]);
    assert!(json.status.success());
    let json = text(&json.stdout);
    let ctx = verbs::devices()
        .unwrap()
        .find(&name())
        .unwrap()
        .open()
        .unwrap();
    let attr = ctx.query_device().unwrap();
    for part in [
        format!("[{{\"hca_id\":\"{}\"", name()),
        format!("\"node_guid\":\"{}\"", attr.node_guid()),
        format!("\"max_qp\":{},", attr.max_qp()),
        "\"ports\":[{\"port\":1,\"state\":\"PORT_ACTIVE\"".to_owned(),
        format!("\"gid\":\"{}\"", ctx.query_gid_table().unwrap()[0].gid),
    ] {
        assert!(json.contains(&part), "{part} is not in {json}");
    }
    // Opening and closing brackets balance.
    let count = |c| json.matches(c).count();
    assert_eq!((count('{'), count('[')), (count('}'), count(']')));
}

#[test]
fn devinfo_route_marks_one_gid_as_the_best() {
    let devices = verbs::devices().unwrap();
    let ctx = devices.first().unwrap().open().unwrap();
    let mut table = ctx.query_gid_table().unwrap().into_iter();
    let local = table.find(|entry| entry.gid.to_ip().is_ipv4()).unwrap();
    let local = local.gid.to_ip().to_string();
    let output = ours(&["--route", &local]);
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let best: Vec<_> = printed
        .lines()
        .filter(|line| line.ends_with("yes, the best"))
        .collect();
    assert_eq!(best.len(), 1, "{printed}");
    assert!(best[0].contains(&format!("::ffff:{local} ")), "{printed}");
    assert!(!ours(&["--route", "no address"]).status.success());
}
