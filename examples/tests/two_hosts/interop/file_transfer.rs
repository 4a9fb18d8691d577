//! The-geek-in-the-corner's third example.

use super::{Cell, CellOutput};

const SERVER: &str = env!("CARGO_BIN_EXE_file-transfer-server");
const CLIENT: &str = env!("CARGO_BIN_EXE_file-transfer-client");

/// Three chunks on a device with a maximum message size of 8 MiB, the last one partial.
const SIZE: u32 = 17_000_001;

pub(super) fn cells() -> Vec<Cell> {
    let server = |port: u32, setup: &str, options: &str| {
        format!(
            "mkdir {port}; {setup}; {SERVER} --port {port} --clients 1 --folder {port} {options}; \
             code=$?; ls -A {port}; cksum {port}/* 2> /dev/null | cut -d ' ' -f 1,2; exit $code"
        )
    };
    let whole = |port: u32, address: &'static str, size: u32, setup: &str, options: &str| {
        // The content is random, so the test compares both sides.
        let make = format!("head -c {size} /dev/urandom > {port}");
        Cell::of_ours(
            "file-transfer",
            server(port, setup, options),
            format!("{make}; {CLIENT} -p {port} {address} {port} && cksum {port}"),
            move |output| is_whole(output, size),
        )
    };
    let refused =
        |port: u32, setup: &str, client: &str, reason: &'static str, remaining: &'static [&str]| {
            Cell::of_ours(
                "file-transfer",
                server(port, setup, "--max-size 1000"),
                format!("head -c 1001 /dev/zero > {port}; {CLIENT} -p {port} $A {port} {client}"),
                move |output| is_refused(output, reason, remaining),
            )
        };
    vec![
        whole(7111, "$A", SIZE, "ibv_devinfo -v | grep max_msg_sz", ""),
        whole(7112, "$A6", 0, "true", ""),
        whole(7113, "$A", 100, "echo old > 7113/7113", "--force"),
        refused(
            7114,
            "echo old > 7114/7114",
            "",
            "7114/7114 is there already; --force replaces it",
            &["7114", "2371713802 4"],
        ),
        refused(
            7115,
            "true",
            "--name ../evil",
            "the peer has sent an invalid file name: \"../evil\\x00\"",
            &[],
        ),
        refused(7116, "true", "", "the file is larger than 1000 bytes", &[]),
    ]
}

/// Chunk size of the server: 10 MiB as in the original, or the device's maximum message size.
fn part_size(output: &CellOutput) -> u32 {
    let reported = output.server.iter().find_map(|line| {
        line.trim()
            .strip_prefix("max_msg_sz:")?
            .trim()
            .strip_prefix("0x")
    });
    let largest = reported.and_then(|hex| u32::from_str_radix(hex, 16).ok());
    largest.map_or(8 << 20, |largest| largest.min(10 << 20))
}

/// Both sides agree on the content, and the folder holds no other file.
fn is_whole(output: &CellOutput, size: u32) -> Result<(), String> {
    let checksums = |lines: &[String]| -> Vec<String> {
        let is_sum = |line: &&String| {
            let words: Vec<&str> = line.split(' ').collect();
            matches!(words[..], [sum, len, ..] if sum.parse::<u32>().is_ok() && len == size.to_string())
        };
        let words = |line: &String| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
        lines.iter().filter(is_sum).map(words).collect()
    };
    let (server, client) = (checksums(&output.server), checksums(&output.client));
    if server.len() != 1 || server != client {
        return Err(format!("checksums {server:?} and {client:?}"));
    }
    let ends = |lines: &[String], end: &str| lines.last().is_some_and(|line| line == end);
    let parts = output
        .server
        .iter()
        .filter(|line| line.starts_with("received "));
    let verified = |line: &String| line.starts_with(&format!("verified {size} bytes, CRC-32 "));
    let expected = usize::try_from(size.div_ceil(part_size(output))).unwrap_or(0);
    match parts.count() {
        count
            if count == expected
                && output.server.iter().any(verified)
                && ends(&output.server, "exit 0")
                && ends(&output.client, "exit 0") =>
        {
            Ok(())
        }
        parts => Err(format!("{parts} parts, or no success")),
    }
}

/// The server reports the reason, and the folder's content is unchanged.
fn is_refused(output: &CellOutput, reason: &str, remaining: &[&str]) -> Result<(), String> {
    let server: Vec<&str> = output.server.iter().map(String::as_str).collect();
    let Some(at) = server.iter().position(|line| *line == reason) else {
        return Err(format!("not refused with {reason:?}"));
    };
    if server[at + 1..] != [remaining, &["exit 1"]].concat() {
        return Err(format!("the folder has changed: {remaining:?}"));
    }
    let broken = "the receiver disconnected before the end of the file";
    match output.client.iter().any(|line| line.ends_with(broken)) {
        true => Ok(()),
        false => Err("the client does not notice".to_owned()),
    }
}

/// iWARP has no RDMA write with immediate data.
pub(super) fn refused_by_iwarp() -> Vec<Cell> {
    vec![Cell::of_ours(
        "file-transfer",
        // The client does not connect.
        "true".to_owned(),
        format!("echo text > text; {CLIENT} -p 7111 $A text"),
        |output| {
            let reason = "iWARP has no RDMA write with immediate data, which this protocol needs";
            match output.client.iter().any(|line| line.ends_with(reason)) {
                true => Ok(()),
                false => Err("iWARP is not refused".to_owned()),
            }
        },
    )]
}
