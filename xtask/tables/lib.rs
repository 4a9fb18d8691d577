//! Tables in Markdown: lists of tests, cases, calls and limits, for the tests and commands that compare the lists.
//!
//! A table is a line of columns, a rule (`|---|`), and rows of as many cells, each between `|`.
#![forbid(unsafe_code)]

/// A table of a document.
#[derive(Debug, PartialEq, Eq)]
pub struct Table<'t> {
    /// The last heading of level 2 above, or an empty text.
    pub heading: &'t str,
    /// Names of the columns.
    pub columns: Vec<&'t str>,
    /// Rows, with as many cells as columns.
    pub rows: Vec<Row<'t>>,
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row<'t, C = Vec<&'t str>> {
    /// The last heading of level 2 above.
    pub heading: &'t str,
    /// Number of the line in the document, from 1.
    pub line: usize,
    /// Texts of the cells, without the space around.
    pub cells: C,
}

/// All tables of a document.
///
/// # Errors
///
/// A line that begins with `|` is in no table, or has another number of cells than its table has columns. The error begins
/// with the number of the line.
pub fn all(text: &str) -> Result<Vec<Table<'_>>, String> {
    let mut tables = Vec::<Table<'_>>::new();
    let (mut heading, mut is_in_table) = ("", false);
    let mut lines = text.lines().zip(1..).peekable();
    while let Some((text, line)) = lines.next() {
        if let Some(title) = text.strip_prefix("## ") {
            heading = title;
        }
        if !text.starts_with('|') {
            is_in_table = false;
            continue;
        }
        let cells = cells(text).ok_or_else(|| format!("{line}: no `|` at the end of the row"))?;
        match tables.last_mut().filter(|_| is_in_table) {
            Some(table) if table.columns.len() == cells.len() => table.rows.push(Row {
                heading,
                line,
                cells,
            }),
            Some(table) => {
                let columns = table.columns.join(" | ");
                return Err(format!("{line}: not the columns `{columns}`"));
            }
            None if lines.next_if(|(rule, _)| rule.starts_with("|-")).is_some() => {
                is_in_table = true;
                tables.push(Table {
                    heading,
                    columns: cells,
                    rows: Vec::new(),
                });
            }
            None => return Err(format!("{line}: a row outside of a table")),
        }
    }
    Ok(tables)
}

/// Rows of the tables with exactly these columns.
///
/// # Errors
///
/// As for [`all`].
pub fn rows<'t, const N: usize>(
    text: &'t str,
    columns: [&str; N],
) -> Result<Vec<Row<'t, [&'t str; N]>>, String> {
    let tables = all(text)?.into_iter();
    let rows = tables
        .filter(|table| table.columns == columns)
        .flat_map(|table| table.rows);
    let rows = rows.filter_map(|row| {
        Some(Row {
            heading: row.heading,
            line: row.line,
            cells: row.cells.try_into().ok()?,
        })
    });
    Ok(rows.collect())
}

/// Texts in a cell's backquotes.
pub fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.strip_prefix('|')?.trim_end().strip_suffix('|')?;
    Some(inner.split('|').map(str::trim).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Title\n\n| case | tests |\n|---|---|\n| a | `one`, `two` |\n| b | |\n\n\
        ## Second\n\n| id | where | reason |\n|--|--|--|\n| c | x | y |\n";

    #[test]
    fn rows_have_the_cells_of_their_columns() {
        let found = rows(TEXT, ["case", "tests"]).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].line, found[0].cells), (5, ["a", "`one`, `two`"]));
        assert_eq!((found[1].line, found[1].cells), (6, ["b", ""]));
        assert_eq!(
            quoted(found[0].cells[1]).collect::<Vec<_>>(),
            ["one", "two"]
        );
        let found = rows(TEXT, ["id", "where", "reason"]).unwrap();
        let expected = Row {
            heading: "Second",
            line: 12,
            cells: ["c", "x", "y"],
        };
        assert_eq!(found, [expected]);
        assert_eq!(rows(TEXT, ["id", "where"]).unwrap(), []);
    }

    #[test]
    fn row_with_other_columns_is_an_error() {
        for (row, error) in [
            ("| d | x |", "13: not the columns `id | where | reason`"),
            (
                "| d | x | y | z |",
                "13: not the columns `id | where | reason`",
            ),
            ("| d | x | y", "13: no `|` at the end of the row"),
            ("\n| d | x | y |", "14: a row outside of a table"),
        ] {
            assert_eq!(all(&format!("{TEXT}{row}\n")).unwrap_err(), error);
        }
    }
}
