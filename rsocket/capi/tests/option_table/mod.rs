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
    let columns = ["option", "number", "decision", "reason or note"];
    let rows = tables::rows(include_str!("../../OPTIONS.md"), columns).unwrap();
    let rows = rows.into_iter().map(|row| {
        let [name, number, decision, _] = row.cells;
        Row {
            level: row.heading.trim_matches('`'),
            name: name.trim_matches('`'),
            number: number.parse().unwrap(),
            decision,
        }
    });
    rows.collect()
}
