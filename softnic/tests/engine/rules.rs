//! The tables of rules name tests that exist.

use std::{fs, path::Path};

/// The tables of rules: of the transport, and of fields used as in Linux.
const TRANSPORT: &str = include_str!("../../TRANSPORT.md");
const LINUX: &str = include_str!("../../LINUX.md");

/// Heading after the rules that are the same as in Linux.
const DIFFERENT: &str = "## Different";

/// Rules of a table, each with the names of its tests.
fn rules(table: &'static str) -> Vec<(&'static str, Vec<&'static str>)> {
    let rows = table.lines().filter_map(|line| {
        let (rule, tests) = line
            .strip_prefix("| ")?
            .strip_suffix(" |")?
            .split_once(" | ")?;
        let names = tests.split('`').filter(|part| part.contains("::"));
        Some((rule, names.collect()))
    });
    rows.filter(|(rule, _)| *rule != "rule").collect()
}

#[test]
fn rules_of_the_table_have_tests_that_exist() {
    let (same, _) = LINUX.split_once(DIFFERENT).unwrap();
    let [mut rules, linux] = [rules(TRANSPORT), rules(same)];
    assert!(rules.len() > 40 && linux.len() > 20, "{}", rules.len());
    rules.extend(linux);
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for (rule, names) in rules {
        assert!(!names.is_empty(), "no test: {rule}");
        for name in names {
            let (module, test) = name.split_once("::").unwrap();
            let path = if module.contains('/') {
                format!("{module}.rs")
            } else {
                format!("engine/{module}.rs")
            };
            let source = fs::read_to_string(tests.join(path)).unwrap();
            let lines: Vec<_> = source.lines().map(str::trim).collect();
            let start = format!("fn {test}(");
            let is_there = lines
                .windows(2)
                .any(|pair| pair[0] == "#[test]" && pair[1].starts_with(&start));
            assert!(is_there, "{name} is no test: {rule}");
        }
    }
}
