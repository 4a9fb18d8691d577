//! The page "Porting from C" quotes the programs: each Rust block must be part of the sources, and each function of C in
//! a table of functions.

const PAGE: &str = include_str!("../PORTING.md");

const SOURCES: [&str; 3] = [
    include_str!("client.rs"),
    include_str!("endpoint.rs"),
    include_str!("server.rs"),
];

const TABLES: [&str; 2] = [
    include_str!("../../cm/FUNCTIONS.md"),
    include_str!("../../verbs/FUNCTIONS.md"),
];

#[test]
fn every_quotation_of_the_porting_page_is_in_the_sources() {
    let count = crate::quotations::check(PAGE, &SOURCES);
    assert_eq!(PAGE.matches("```").count(), 2 * count);
    assert!(count >= 18, "{count} quotations");
}

/// Structures and events of librdmacm are in no table.
#[test]
fn functions_of_the_porting_page_are_in_the_tables() {
    let in_backticks = PAGE.split('`').skip(1).step_by(2);
    let names: Vec<_> = in_backticks
        .filter(|name| ["ibv_", "rdma_"].iter().any(|lib| name.starts_with(lib)))
        .filter(|name| *name != "rdma_conn_param")
        .collect();
    assert!(names.len() >= 30, "{names:?}");
    let is_listed = |name: &str| {
        let row = format!("| `{name}` |");
        TABLES.iter().any(|table| table.contains(&row))
    };
    let missing: Vec<_> = names.iter().filter(|name| !is_listed(name)).collect();
    assert_eq!(missing, [&""; 0]);
}
