//! Every function, constant, structure and field of libibverbs is in the tables of `FUNCTIONS.md`, and their counterparts
//! are in the sources.

#![expect(clippy::panic, reason = "a test fails by panicking")]

#[path = "../shared/rust_files.rs"]
mod rust_files;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use rust_files::rust_files;

/// Files of `ibverbs-sys` that declare names of C.
const BINDINGS: [&str; 6] = [
    "bindings.rs",
    "gid.rs",
    "late.rs",
    "names.rs",
    "newer.rs",
    "strings.rs",
];

/// Fields that programs of C do not use either.
const INTERNAL: [&str; 9] = [
    "abi_compat",
    "async_events_completed",
    "comp_events_completed",
    "cond",
    "events_completed",
    "mutex",
    "ops",
    "refcnt",
    "reserved",
];

/// Structures without a row for each field.
const WITHOUT_FIELDS: [(&str, &str); 12] = [
    ("ibv_context_ops", "the provider's functions"),
    ("ibv_flow_action", "encryption by flows"),
    ("ibv_flow_action_esp", "encryption by flows"),
    ("ibv_flow_action_esp_attr", "encryption by flows"),
    ("ibv_flow_spec_action_handle", "encryption by flows"),
    ("ibv_path_data", "of the crate `cm`"),
    ("ibv_path_record", "of the crate `cm`"),
    ("ibv_sa_mcmember_rec", "of the crate `cm`"),
    ("ibv_sa_path_rec", "of the crate `cm`"),
    ("ibv_sa_service_rec", "of the subnet manager"),
    ("ibv_gid_global", "in the fields of `ibv_gid`"),
    ("ibv_buf", "opaque"),
];

/// A field newer than the checked-in bindings, found by a method of `ibverbs-sys`.
const LATE_FIELD: &str = "ibv_port_attr.active_speed_ex";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|err| panic!("{}: {err}", path.display()))
}

/// The texts of all Rust files below a folder of the workspace.
fn texts(folder: &str) -> impl Iterator<Item = String> {
    rust_files(folder).into_iter().map(|path| read(&path))
}

/// The declarations of C's names.
fn bindings() -> String {
    let folder = root().join("ibverbs-sys/src");
    let files = BINDINGS.map(|file| read(&folder.join(file)));
    let inline = texts("ibverbs-sys/src/inline");
    files.into_iter().chain(inline).collect()
}

fn is_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The identifier at the start of a text, and the rest.
fn identifier(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !is_part(c)).unwrap_or(text.len()))
}

/// A name without the underscore by which bindgen avoids Rust's keywords.
fn name_in_c(name: &str) -> String {
    name.trim_end_matches('_').to_owned()
}

/// The function declared by a line of the bindings.
fn function(line: &str) -> Option<String> {
    let line = line.trim_start();
    if !line.starts_with("pub ") && !line.starts_with("fn ") {
        return None;
    }
    let (before, after) = line.split_once("fn ")?;
    let (name, rest) = identifier(after);
    let is_function = !before.contains(['(', ':']) && rest.starts_with('(');
    // A leading underscore: called by a macro of the header only.
    (is_function && name.contains("ibv_") && !name.starts_with('_')).then(|| name.to_owned())
}

/// The constants declared by a line of the bindings: `IBV_X: type` or `IBV_X = value`.
fn constants(line: &str) -> Vec<String> {
    if line.trim_start().starts_with("//") {
        return Vec::new();
    }
    let starts = line.match_indices("IBV_").map(|(start, _)| start);
    let starts_of_names = starts.filter(|&start| !line[..start].ends_with(is_part));
    let named = starts_of_names.map(|start| identifier(&line[start..]));
    named
        .filter(|(_, rest)| rest.starts_with(": ") || rest.starts_with(" = "))
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// The type declared by a line of the bindings.
fn type_name(line: &str) -> Option<String> {
    let line = line.trim();
    let declared = ["pub struct ", "pub union ", ""]
        .iter()
        .find_map(|start| line.strip_prefix(start))?;
    let renamed = line.split_once(" as ").map(|(_, after)| after);
    let (name, rest) = identifier(renamed.unwrap_or(declared));
    let is_type = [" {", "(", ","].iter().any(|end| rest.starts_with(end));
    (is_type && name.starts_with("ibv_") && !name.contains("__bindgen")).then(|| name.to_owned())
}

/// Functions, constants and types.
fn names() -> BTreeSet<String> {
    let text = bindings();
    let mut names = BTreeSet::new();
    for line in text.lines() {
        names.extend(function(line));
        names.extend(constants(line));
        names.extend(type_name(line));
    }
    names
}

/// The fields of each structure, and whether each is a function of the provider. Fields of nested unions count as the
/// structure's.
fn fields() -> BTreeMap<String, BTreeMap<String, bool>> {
    let mut found: BTreeMap<String, BTreeMap<String, bool>> = BTreeMap::new();
    let mut inside: Option<(String, &str)> = None;
    // A long type is on a line of its own.
    let text = bindings().replace(":\n", ": ");
    for line in text.lines() {
        let indent = &line[..line.len() - line.trim_start().len()];
        let declared = line.trim_start();
        let started = ["pub struct ", "pub union "]
            .iter()
            .find_map(|start| declared.strip_prefix(start))
            .map(identifier);
        if let Some((name, " {")) = started {
            let plain_name = name.split("__bindgen").next().unwrap_or(name);
            inside = name
                .starts_with("ibv_")
                .then(|| (plain_name.to_owned(), indent));
        } else if declared == "}" && inside.as_ref().is_some_and(|(_, of)| *of == indent) {
            inside = None;
        } else if let (Some((name, _)), Some(field)) = (&inside, declared.strip_prefix("pub ")) {
            let (field, rest) = identifier(field);
            if rest.starts_with(':') && !field.starts_with("__bindgen") {
                let is_function = rest.contains("Option<");
                let fields = found.entry(name.clone()).or_default();
                fields.insert(name_in_c(field), is_function);
            }
        }
    }
    found
}

/// Rows of the tables: C's name, and the counterpart.
fn rows() -> Vec<(String, String)> {
    let text = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("FUNCTIONS.md"));
    let rows = tables::rows(&text, ["C", "here"]).expect("the tables have rows");
    let cells = rows.into_iter().map(|row| row.cells);
    cells
        .map(|[c, here]| (c.trim_matches('`').to_owned(), here.to_owned()))
        .collect()
}

/// The names in the tables: of functions, constants and types, or of fields.
fn listed(fields: bool) -> BTreeSet<String> {
    let names = rows().into_iter().map(|(c, _)| c);
    names.filter(|c| c.contains('.') == fields).collect()
}

#[test]
fn every_name_of_c_is_in_the_tables() {
    let (names, listed) = (names(), listed(false));
    assert!(names.len() > 750, "{}", names.len());
    let missing: Vec<_> = names.difference(&listed).collect();
    assert_eq!(missing, [""; 0], "not in FUNCTIONS.md");
    let missing: Vec<_> = listed.difference(&names).collect();
    assert_eq!(missing, [""; 0], "not in the bindings");
}

#[test]
fn every_field_of_c_is_in_the_tables() {
    let listed = listed(true);
    let is_listed = |structure: &str, field: &str| {
        listed
            .iter()
            .filter_map(|row| row.strip_prefix(structure)?.strip_prefix('.'))
            .any(|path| path.split('.').any(|part| part == field))
    };
    let mut missing = Vec::new();
    for (structure, fields) in fields() {
        if WITHOUT_FIELDS.iter().any(|(name, _)| *name == structure) {
            continue;
        }
        for (field, is_function) in fields {
            let is_internal = INTERNAL.contains(&field.as_str()) || field.starts_with('_');
            if !is_function && !is_internal && !is_listed(&structure, &field) {
                missing.push(format!("{structure}.{field}"));
            }
        }
    }
    assert_eq!(missing, [""; 0], "not in FUNCTIONS.md");
}

#[test]
fn every_field_of_the_tables_is_in_c() {
    let fields = fields();
    let listed = listed(true);
    assert!(listed.len() > 450, "{}", listed.len());
    let is_field = |row: &str| {
        let (structure, path) = row.split_once('.').unwrap_or((row, ""));
        let halves = fields
            .get("ibv_gid_global")
            .filter(|_| structure == "ibv_gid");
        let fields_of = fields.get(structure);
        path.split('.').all(|part| {
            fields_of.is_some_and(|fields_of| fields_of.contains_key(part))
                || halves.is_some_and(|halves| halves.contains_key(part))
        })
    };
    let missing: Vec<_> = listed
        .iter()
        .filter(|row| *row != LATE_FIELD && !is_field(row))
        .collect();
    assert_eq!(missing, [""; 0], "not in the bindings");
    let names = names();
    let excused = WITHOUT_FIELDS.map(|(name, _)| name);
    let useless: Vec<_> = excused
        .iter()
        .filter(|name| !names.contains(**name))
        .collect();
    assert_eq!(useless, [&""; 0]);
}

#[test]
fn no_name_is_in_the_tables_twice() {
    let mut names = BTreeSet::new();
    let twice: Vec<_> = rows()
        .into_iter()
        .filter_map(|(c, _)| (!names.insert(c.clone())).then_some(c))
        .collect();
    assert_eq!(twice, [""; 0]);
}

/// The first identifier of a line of Rust, if the line can be its declaration.
fn first_identifier(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    while let Some(next) = [
        "pub ", "unsafe ", "const ", "fn ", "struct ", "enum ", "trait ", "mod ",
    ]
    .iter()
    .find_map(|word| rest.strip_prefix(word))
    {
        rest = next;
    }
    let (name, after) = identifier(rest);
    let ends = [" {", "(", ":", ",", ";", " =", " ->", "<"];
    let is_declared = after.is_empty() || ends.iter().any(|end| after.starts_with(end));
    (is_declared && !name.is_empty()).then_some(name)
}

/// The paths of Rust in the counterparts, with and without a link.
fn counterparts() -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    for (_, here) in rows() {
        let mut is_link = false;
        for (index, part) in here.split('`').enumerate() {
            let is_path = is_link || (part.contains("::") && !part.starts_with("cm::"));
            if index % 2 == 1 && is_path && !part.starts_with("std::") {
                paths.insert(part.to_owned());
            }
            is_link = part.ends_with('[');
        }
    }
    paths
}

/// rustdoc stops at about 1100 links of a page, without a warning.
#[test]
fn links_are_few_enough_for_rustdoc() {
    let rows = rows();
    let links: usize = rows
        .iter()
        .map(|(_, here)| here.matches("[`").count())
        .sum();
    assert!(links < 900, "{links}");
}

/// rustdoc checks the links; this test also checks names without a link.
#[test]
fn every_counterpart_is_in_the_sources() {
    let texts: Vec<_> = texts("verbs/src").collect();
    let declared: Vec<_> = texts
        .iter()
        .map(|text| {
            let names: BTreeSet<_> = text.lines().filter_map(first_identifier).collect();
            let words: BTreeSet<_> = text.split(|c: char| !is_part(c)).collect();
            (names, words)
        })
        .collect();
    let is_there = |path: &str| {
        let (owner, name) = path.rsplit_once("::").unwrap_or(("", path));
        let owner = owner.rsplit("::").next().unwrap_or(owner);
        let is_type = owner.starts_with(|c: char| c.is_ascii_uppercase());
        declared
            .iter()
            .any(|(names, words)| names.contains(name) && (!is_type || words.contains(owner)))
    };
    let counterparts = counterparts();
    assert!(counterparts.len() > 500, "{}", counterparts.len());
    let missing: Vec<_> = counterparts.iter().filter(|path| !is_there(path)).collect();
    assert_eq!(missing, [""; 0], "not in verbs/src");
}

#[test]
fn every_row_has_a_counterpart_or_a_reason() {
    let empty: Vec<_> = rows()
        .into_iter()
        .filter(|(_, here)| here.is_empty() || here == "absent")
        .collect();
    assert!(empty.is_empty(), "{empty:?}");
}
