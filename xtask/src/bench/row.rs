//! A row of the result: our figure, the reference's, and the bar.

use std::fmt::{self, Write};

use serde_json::{Value, json};

/// One line of the result.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    /// Name of the measurement.
    pub(super) case: String,
    /// Unit of both figures.
    pub(super) unit: &'static str,
    pub(super) ours: f64,
    /// The figure of the reference, if there is a reference.
    pub(super) reference: Option<f64>,
    /// The limit; a row without a bar is informational.
    pub(super) bar: Option<Bar>,
}

/// Limit of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bar {
    /// Maximum ratio to the reference.
    Times(f64),
    /// Minimum ratio to the reference.
    NotBelow(f64),
    /// Maximum difference from the reference.
    Added(f64),
    /// Maximum value, independent of the reference.
    Total(f64),
}

impl Row {
    /// Ratio of our figure to the reference's.
    pub(super) fn ratio(&self) -> Option<f64> {
        let reference = self.reference?;
        (reference > 0.0).then(|| self.ours / reference)
    }

    /// Whether the bar is met; `None` without a bar.
    ///
    /// A bar relative to a missing reference is not met.
    pub(super) fn pass(&self) -> Option<bool> {
        let ratio = self.ratio();
        Some(match self.bar? {
            Bar::Times(limit) => ratio.is_some_and(|ratio| ratio <= limit),
            Bar::NotBelow(limit) => ratio.is_some_and(|ratio| ratio >= limit),
            Bar::Added(limit) => self
                .reference
                .is_some_and(|reference| self.ours - reference <= limit),
            Bar::Total(limit) => self.ours <= limit,
        })
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "case": self.case,
            "unit": self.unit,
            "ours": self.ours,
            "reference": self.reference,
            "ratio": self.ratio(),
            "bar": self.bar.map(|bar| bar.to_string()),
            "pass": self.pass(),
        })
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Times(limit) => write!(f, "<= {limit}x"),
            Self::NotBelow(limit) => write!(f, ">= {limit}x"),
            Self::Added(limit) => write!(f, "<= +{limit}"),
            Self::Total(limit) => write!(f, "<= {limit}"),
        }
    }
}

/// Formats a number with three significant digits, or as an integer from 100.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Formats the rows as a table for a terminal.
pub(super) fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.case.len()).max().unwrap_or(0);
    let mut text = format!(
        "{:width$}  {:>8} {:>9} {:>6}  {:8} {:6}  unit\n",
        "case", "ours", "reference", "ratio", "bar", ""
    );
    for row in rows {
        let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let verdict = match row.pass() {
            Some(true) => "ok",
            Some(false) => "MISSED",
            None => "",
        };
        // Writing to a string cannot fail.
        let _infallible = writeln!(
            text,
            "{:width$}  {:>8} {:>9} {:>6}  {:8} {verdict:6}  {}",
            row.case,
            number(row.ours),
            or_none(row.reference.map(number)),
            or_none(row.ratio().map(|ratio| format!("{ratio:.3}"))),
            or_none(row.bar.map(|bar| bar.to_string())),
            row.unit,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ours: f64, reference: Option<f64>, bar: Bar) -> Row {
        Row {
            case: "send, time".to_owned(),
            unit: "ns",
            ours,
            reference,
            bar: Some(bar),
        }
    }

    #[test]
    fn bar_at_its_limit_is_met_and_beyond_is_missed() {
        let pass = |ours, bar| row(ours, Some(100.0), bar).pass();
        assert_eq!(pass(125.0, Bar::Times(1.25)), Some(true));
        assert_eq!(pass(126.0, Bar::Times(1.25)), Some(false));
        assert_eq!(pass(97.0, Bar::NotBelow(0.97)), Some(true));
        assert_eq!(pass(96.0, Bar::NotBelow(0.97)), Some(false));
        assert_eq!(pass(150.0, Bar::Added(50.0)), Some(true));
        assert_eq!(pass(151.0, Bar::Added(50.0)), Some(false));
        assert_eq!(pass(0.0, Bar::Total(0.0)), Some(true));
        assert_eq!(pass(1.0, Bar::Total(0.0)), Some(false));
    }

    #[test]
    fn bar_relative_to_missing_reference_is_missed() {
        for bar in [Bar::Times(9.0), Bar::NotBelow(0.0), Bar::Added(9.0)] {
            assert_eq!(row(1.0, None, bar).pass(), Some(false));
        }
        assert_eq!(row(1.0, None, Bar::Total(2.0)).pass(), Some(true));
    }

    #[test]
    fn row_to_json_has_a_field_for_each_column() {
        let json = row(110.0, Some(100.0), Bar::Times(1.25)).to_json();
        let expected = json!({
            "case": "send, time", "unit": "ns", "ours": 110.0, "reference": 100.0, "ratio": 1.1,
            "bar": "<= 1.25x", "pass": true,
        });
        assert_eq!(json, expected);
        let json = Row {
            bar: None,
            ..row(0.0, Some(0.0), Bar::Total(0.0))
        }
        .to_json();
        assert_eq!(
            (&json["ratio"], &json["bar"], &json["pass"]),
            (&Value::Null, &Value::Null, &Value::Null)
        );
    }

    #[test]
    fn table_of_missed_bar_marks_its_row() {
        let rows = [
            row(1.0, Some(100.0), Bar::Added(0.0)),
            row(1234.5, Some(100.0), Bar::Times(1.02)),
        ];
        let table = table(&rows);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[1].contains("0.010  <= +0    ok"), "{table}");
        assert!(
            lines[2].contains("1234") && lines[2].contains("12.345  <= 1.02x MISSED"),
            "{table}"
        );
    }
}
