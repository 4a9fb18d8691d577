//! `OPTIONS.md`, compared with the kernel headers.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod option_table;

use std::{collections::BTreeMap, fs};

/// Levels, the headers of their options, and the prefixes of their names.
const LEVELS: [(&str, &str, &[&str]); 4] = [
    ("SOL_SOCKET", "asm-generic/socket.h", &["SO_"]),
    ("IPPROTO_TCP", "linux/tcp.h", &["TCP_"]),
    ("IPPROTO_IP", "linux/in.h", &["IP_", "MCAST_"]),
    ("IPPROTO_IPV6", "linux/in6.h", &["IPV6_"]),
];

/// Prefixes of option values.
const VALUES: [&str; 13] = [
    "TCP_MSS_",
    "TCP_REPAIR_O",
    "TCP_MD5SIG_MAX",
    "TCP_MD5SIG_FLAG",
    "TCP_RECEIVE_",
    "IP_PMTUDISC_",
    "IP_DEFAULT_",
    "MCAST_EXCLUDE",
    "MCAST_INCLUDE",
    "IPV6_FL_",
    "IPV6_TLV_",
    "IPV6_PMTUDISC_",
    "IPV6_PREFER_",
];

/// Returns the options defined in a header by number.
fn defined(header: &str, beginnings: &[&str]) -> BTreeMap<String, i32> {
    let text = fs::read_to_string(format!("/usr/include/{header}")).unwrap();
    let definitions = text.lines().filter_map(|line| {
        let mut words = line.trim().strip_prefix('#')?.split_whitespace();
        (words.next()? == "define").then_some(())?;
        let name = words.next()?;
        let number = words.next()?.parse().ok()?;
        let is_value = VALUES.iter().any(|value| name.starts_with(value));
        let is_option = beginnings.iter().any(|start| name.starts_with(start)) && !is_value;
        // With 64-bit times, programs use the old numbers.
        is_option.then(|| (name.trim_end_matches("_OLD").to_owned(), number))
    });
    definitions.collect()
}

/// Newer headers may define options with higher numbers.
#[test]
fn option_of_each_header_has_a_decision() {
    let rows = option_table::rows();
    for (level, header, beginnings) in LEVELS {
        let of_level = || rows.iter().filter(|row| row.level == level);
        let highest = of_level().map(|row| row.number).max().unwrap();
        assert!(of_level().all(|row| !row.decision.is_empty()));
        let listed: BTreeMap<String, i32> = of_level()
            .map(|row| (row.name.to_owned(), row.number))
            .collect();
        assert_eq!(
            listed.len(),
            of_level().count(),
            "{level}: one is there twice"
        );
        for (name, number) in defined(header, beginnings) {
            let decided = listed.get(&name);
            assert!(
                decided == Some(&number) || decided.is_none() && number > highest,
                "{level}, {name}, {number}: the table has {decided:?}"
            );
        }
    }
}
