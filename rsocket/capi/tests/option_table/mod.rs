//! The tables of `OPTIONS.md`.

/// An option with its decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) level: &'static str,
    pub(crate) name: &'static str,
    pub(crate) number: i32,
    pub(crate) decision: &'static str,
}

/// Returns all rows in order.
pub(crate) fn rows() -> Vec<Row> {
    let mut level = "";
    let mut rows = Vec::new();
    for line in include_str!("../../OPTIONS.md").lines() {
        if let Some(title) = line.strip_prefix("## `") {
            level = title.trim_end_matches('`');
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let (&[_, name, number, decision, _, _], false) = (&cells[..], level.is_empty()) else {
            continue;
        };
        if let Ok(number) = number.parse() {
            let name = name.trim_matches('`');
            rows.push(Row {
                level,
                name,
                number,
                decision,
            });
        }
    }
    rows
}
