//! Rows of the table, and their text.

use std::{fmt::Write, time::Duration};

use verbs::port_counters::PortCounters;

/// A counter of a port.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The device and the number of the port.
    pub port: String,
    /// The kernel's name of the counter.
    pub counter: String,
    /// The value.
    pub total: u64,
    /// Growth in a second; `None` at the first reading.
    pub rate: Option<f64>,
}

/// The rows of a port, compared with an earlier reading; those at zero only if `all`.
pub fn rows(
    port: &str,
    now: &PortCounters,
    earlier: Option<(Duration, &PortCounters)>,
    all: bool,
) -> Vec<Row> {
    let growth = earlier.map(|(time, counters)| (time, now.since(counters)));
    let chosen = now.iter().filter(|(_, total)| all || *total > 0);
    let row = |(name, total): (&str, u64)| Row {
        port: port.to_owned(),
        counter: name.to_owned(),
        total,
        rate: growth.as_ref().map(|(time, growth)| {
            // Rounding beyond 2^53 is invisible in the table.
            let count = growth.get(name).unwrap_or(0) as f64;
            count / time.as_secs_f64().max(f64::MIN_POSITIVE)
        }),
    };
    chosen.map(row).collect()
}

/// The table as text, without a line's end after the last row.
pub fn table(rows: &[Row]) -> String {
    let width = |of: fn(&Row) -> &str, title: &str| {
        let longest = rows.iter().map(|row| of(row).len()).max();
        longest.unwrap_or(0).max(title.len())
    };
    let port = width(|row| &row.port, "port");
    let counter = width(|row| &row.counter, "counter");
    let mut text = format!(
        "{:port$}  {:counter$}  {:>20}  {:>14}",
        "port", "counter", "total", "per second"
    );
    for row in rows {
        let rate = row
            .rate
            .map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"));
        let (name, total) = (&row.counter, row.total);
        // Writing to a string cannot fail.
        write!(
            text,
            "\n{:port$}  {name:counter$}  {total:>20}  {rate:>14}",
            row.port
        )
        .ok();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_aligns_names_and_numbers() {
        let row = |counter: &str, total, rate| Row {
            port: "rxe0/1".to_owned(),
            counter: counter.to_owned(),
            total,
            rate,
        };
        let rows = [
            row("sent_pkts", 1200, Some(60.04)),
            row("ack_deferred_longer", 3, None),
        ];
        let expected = "\
port    counter                             total      per second
rxe0/1  sent_pkts                            1200            60.0
rxe0/1  ack_deferred_longer                     3               -";
        assert_eq!(table(&rows), expected);
    }

    #[test]
    fn rate_is_the_growth_in_a_second() {
        let of = |sent, idle| {
            let counters = [("sent_pkts".to_owned(), sent), ("idle".to_owned(), idle)];
            counters.into_iter().collect::<PortCounters>()
        };
        let earlier = of(100, 0);
        let before = Some((Duration::from_millis(500), &earlier));
        let of_all = |all| rows("rxe0/1", &of(130, 0), before, all);
        assert_eq!(of_all(false).len(), 1);
        assert_eq!(
            (of_all(false)[0].total, of_all(false)[0].rate),
            (130, Some(60.0))
        );
        assert_eq!(of_all(true).len(), 2);
    }

    #[test]
    fn port_without_counters_has_no_rows() {
        let none = PortCounters::default();
        assert_eq!(rows("rxe0/1", &none, None, true), []);
        assert!(table(&[]).starts_with("port  counter"));
    }
}
