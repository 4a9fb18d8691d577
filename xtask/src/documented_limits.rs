//! Limits in the tables of `SECURITY.md`: each number equals the constant of the source, and each test exists.
//!
//! The list is `ci/limits.md`, with tables below the headings of the document whose rows are checked. A row has the start of
//! a row of the document, a number in this row, the file and the constant or the field. A number that is no constant has no
//! file, and a reason for the constant.

use std::collections::HashSet;

/// The document with the tables, and the list of its constants.
pub(crate) const DOCUMENT: &str = "SECURITY.md";
pub(crate) const LIST: &str = "ci/limits.md";

/// A number of the document, and the constant with the same value.
#[derive(Debug, PartialEq, Eq)]
struct Limit<'t> {
    line: usize,
    heading: &'t str,
    row: &'t str,
    number: &'t str,
    file: &'t str,
    constant: &'t str,
}

/// A row of a table.
#[derive(Debug)]
struct Row<'t> {
    line: usize,
    heading: &'t str,
    /// The text from the first cell on.
    text: &'t str,
}

/// Complains about numbers that differ from their constants or have none, and about names of absent tests. `source`
/// returns the text of a file.
pub(crate) fn differing(
    document: &str,
    list: &str,
    tests: &HashSet<String>,
    source: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let (rows, limits) = match (rows(document), parse(list)) {
        (Ok(rows), Ok(limits)) => (rows, limits),
        (Err(error), _) => return vec![format!("{DOCUMENT}:{error}")],
        (_, Err(error)) => return vec![format!("{LIST}:{error}")],
    };
    let mut complaints = Vec::new();
    for limit in &limits {
        if let Err(reason) = check(limit, &rows, &source) {
            complaints.push(format!("{LIST}:{}: {reason}", limit.line));
        }
    }
    for row in &rows {
        if !limits.iter().any(|limit| limit.heading == row.heading) {
            continue;
        }
        for (number, _) in numbers(row.text) {
            let is_listed = limits.iter().any(|limit| {
                limit.heading == row.heading
                    && row.text.starts_with(limit.row)
                    && limit.number == number
            });
            if !is_listed {
                complaints.push(format!(
                    "{DOCUMENT}:{}: `{number}` has no constant in {LIST}",
                    row.line
                ));
            }
        }
    }
    for (index, line) in document.lines().enumerate() {
        let absent = test_names(line).filter(|name| !tests.contains(*name));
        complaints.extend(
            absent.map(|name| format!("{DOCUMENT}:{}: no test is called `{name}`", index + 1)),
        );
    }
    complaints
}

fn check(
    limit: &Limit<'_>,
    rows: &[Row<'_>],
    source: impl Fn(&str) -> Option<String>,
) -> Result<(), String> {
    let matching = |row: &&Row<'_>| row.heading == limit.heading && row.text.starts_with(limit.row);
    let mut matching = rows.iter().filter(matching);
    let (Some(row), None) = (matching.next(), matching.next()) else {
        return Err(format!("not one row starts with `{}`", limit.row));
    };
    let documented = numbers(row.text).find(|(number, _)| *number == limit.number);
    let (_, documented) =
        documented.ok_or_else(|| format!("the row has no number `{}`", limit.number))?;
    if limit.file.is_empty() {
        return Ok(());
    }
    let text = source(limit.file).ok_or_else(|| format!("no file `{}`", limit.file))?;
    let value = constant(&text, limit.constant)
        .ok_or_else(|| format!("{} defines no number `{}`", limit.file, limit.constant))?;
    if value == documented {
        return Ok(());
    }
    Err(format!(
        "`{}` of {} is {value}, and {DOCUMENT}:{} has {documented} ({})",
        limit.constant, limit.file, row.line, limit.number
    ))
}

/// The limits of a list.
fn parse(list: &str) -> Result<Vec<Limit<'_>>, String> {
    let rows = tables::rows(list, ["row", "number", "file", "constant"])?;
    let limits = rows.into_iter().map(|row| {
        let [start, number, file, constant] = row.cells;
        Limit {
            line: row.line,
            heading: row.heading,
            row: start,
            number,
            file: file.trim_matches('`'),
            constant: constant.trim_matches('`'),
        }
    });
    Ok(limits.collect())
}

/// The rows of all tables.
fn rows(document: &str) -> Result<Vec<Row<'_>>, String> {
    let lines: Vec<_> = document.lines().collect();
    let rows = tables::all(document)?.into_iter();
    let rows = rows.flat_map(|table| table.rows).map(|row| Row {
        line: row.line,
        heading: row.heading,
        text: lines[row.line - 1].trim_start_matches(['|', ' ']),
    });
    Ok(rows.collect())
}

/// The numbers in a text, outside of code, with their values: a time in milliseconds, a size in bytes, a fraction by
/// its divisor.
fn numbers(text: &str) -> impl Iterator<Item = (&str, u64)> {
    let outside_of_code = text.split('`').step_by(2);
    outside_of_code.flat_map(|text| {
        let mut start = 0;
        std::iter::from_fn(move || {
            let rest = &text[start..];
            let is_first = |(at, c): &(usize, char)| {
                let follows_word = rest[..*at].ends_with(|c: char| c.is_alphanumeric());
                (c.is_ascii_digit() && !follows_word) || "¼¾".contains(*c)
            };
            let (at, first) = rest.char_indices().find(is_first)?;
            let from = &rest[at..];
            let len = if first.is_ascii_digit() {
                let end = from.find(|c: char| !c.is_ascii_digit() && !",/".contains(c));
                let number = &from[..end.unwrap_or(from.len())];
                number.trim_end_matches([',', '/']).len()
            } else {
                first.len_utf8()
            };
            start += at + len;
            Some((&from[..len], value(&from[..len], &from[len..])))
        })
    })
}

/// The value of a number before a unit.
fn value(number: &str, after: &str) -> u64 {
    let divisor = number.rsplit('/').next().unwrap_or(number);
    let plain = match number {
        "¼" | "¾" => 4,
        _ => divisor.replace(',', "").parse().unwrap_or(u64::MAX),
    };
    let unit = after.trim_start_matches([' ', '-']);
    let unit = unit.split(|c: char| !c.is_alphanumeric()).next();
    plain.saturating_mul(match unit.unwrap_or_default() {
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "s" => 1000,
        _ => 1,
    })
}

/// The value of a constant, or of a field of a default, in a source.
fn constant(source: &str, name: &str) -> Option<u64> {
    let after_const = source.split_once(&format!("const {name}: "));
    let expression = match after_const {
        Some((_, rest)) => rest.split_once('=')?.1.split_once(';')?.0,
        None => {
            let field = format!("{name}: ");
            let mut values = source.lines().filter_map(|line| {
                let value = line.trim().strip_prefix(&field)?;
                evaluate(value.trim_end_matches(','), source)
            });
            return values.next();
        }
    };
    evaluate(expression, source)
}

/// Evaluates the arithmetic of constants: `<<`, `*`, `/`, durations, and other constants of the source.
fn evaluate(expression: &str, source: &str) -> Option<u64> {
    let expression = expression.trim();
    let inner = |start: &str| expression.strip_prefix(start)?.strip_suffix(')');
    if let Some(seconds) = inner("Duration::from_secs(") {
        return Some(evaluate(seconds, source)?.saturating_mul(1000));
    }
    if let Some(millis) = inner("Duration::from_millis(") {
        return evaluate(millis, source);
    }
    for (operator, apply) in [
        ("<<", (|a, b| a << b) as fn(u64, u64) -> u64),
        ("*", |a, b| a.saturating_mul(b)),
        ("/", |a, b| a / b.max(1)),
    ] {
        if let Some((lhs, rhs)) = expression.rsplit_once(operator) {
            return Some(apply(evaluate(lhs, source)?, evaluate(rhs, source)?));
        }
    }
    if expression.starts_with(|c: char| c.is_ascii_digit()) {
        return expression.replace('_', "").parse().ok();
    }
    let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let is_other = !expression.is_empty() && expression.chars().all(is_name);
    is_other.then(|| constant(source, expression)).flatten()
}

/// The names of tests in a line's backquotes: at least four words.
fn test_names(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split('`').skip(1).step_by(2);
    quoted.filter(|name| {
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        name.chars().all(is_name) && name.split('_').count() >= 4
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "# Security\n## rsocket\n| a peer | limit | option |\n|---|---|---|\n\
        | memory of `16` peers | 1,024 KiB, ¼ of 7 s | `Options::receive_buffer` |\n\
        | requests | ¾ | `peer_without_room_delays_no_other` |\n## rds\n| a peer | limit |\n|---|---|\n| frames | 5 |\n";
    const SOURCE: &str = "pub(crate) const SIZE: usize = KIB << 10;\nconst KIB: usize = 2 * 512;\nconst PART: u64 = 4;\n\
        const TIME: Duration =\n    Duration::from_secs(7);\n  requests: 4,\n  requests: u32,\n";

    fn differing_with(list: &str, source: &str) -> Vec<String> {
        let tests = HashSet::from(["peer_without_room_delays_no_other".to_owned()]);
        let read = |file: &str| (file == "a.rs").then(|| source.to_owned());
        differing(DOCUMENT, list, &tests, read)
    }

    const LIST: &str = "# Remark.\n\n## rsocket\n| row | number | file | constant |\n|---|---|---|---|\n\
        | memory of | 1,024 | `a.rs` | `SIZE` |\n| memory of | ¼ | `a.rs` | `PART` |\n\
        | memory of | 7 | `a.rs` | `TIME` |\n| requests | ¾ | `a.rs` | `requests` |\n";

    #[test]
    fn number_equal_to_its_constant_is_accepted() {
        assert_eq!(differing_with(LIST, SOURCE), [""; 0]);
    }

    #[test]
    fn number_different_from_its_constant_is_reported() {
        let changed = SOURCE.replace("512", "511");
        let complaints = differing_with(LIST, &changed);
        let expected =
            "ci/limits.md:6: `SIZE` of a.rs is 1046528, and SECURITY.md:5 has 1048576 (1,024)";
        assert_eq!(complaints, [expected]);
        for changed in [
            ("from_secs(7", "from_secs(8"),
            ("requests: 4", "requests: 5"),
        ] {
            let complaints = differing_with(LIST, &SOURCE.replace(changed.0, changed.1));
            assert_eq!(complaints.len(), 1, "{changed:?}");
        }
    }

    #[test]
    fn number_without_a_constant_is_reported() {
        let complaints = differing_with(
            &LIST.replace("| memory of | ¼ | `a.rs` | `PART` |\n", ""),
            SOURCE,
        );
        assert_eq!(
            complaints,
            ["SECURITY.md:5: `¼` has no constant in ci/limits.md"]
        );
        let complaints = differing_with(&LIST.replace("PART", "PORT"), SOURCE);
        assert_eq!(
            complaints,
            ["ci/limits.md:7: a.rs defines no number `PORT`"]
        );
        let listed = LIST.replace("`a.rs` | `PART`", "| the format's");
        assert_eq!(differing_with(&listed, SOURCE), [""; 0]);
        for (before, after) in [
            ("| 7 |", "| 8 |"),
            ("| requests |", "| reqs |"),
            ("| requests |", "| requests"),
        ] {
            assert!(!differing_with(&LIST.replace(before, after), SOURCE).is_empty());
        }
    }

    #[test]
    fn name_of_absent_test_is_reported() {
        let complaints = differing(DOCUMENT, "", &HashSet::new(), |_| None);
        let expected = "SECURITY.md:6: no test is called `peer_without_room_delays_no_other`";
        assert_eq!(complaints, [expected]);
    }
}
