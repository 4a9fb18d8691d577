//! The table of assumptions about C and the kernel, and the proofs that cite them: each row is cited by the files that it
//! names, each citation has a row, and the tests of each row exist.

use std::collections::HashSet;

/// The table.
pub(crate) const FILE: &str = "verbs/ASSUMPTIONS.md";

/// Folder of the cited files whose names begin with `src/`; others are relative to the workspace.
const FOLDER: &str = "verbs/";

/// Folders of the sources that cite assumptions.
const CITING: [&str; 7] = [
    "verbs/src/",
    "cm/src/",
    "efa/src/",
    "mlx5/src/",
    "rsocket/",
    "rds/",
    "interpose/src/",
];

/// Precedes an assumption in a comment. A full stop, a semicolon or the end of the comment follows.
const MARK: &str = "Assumption: ";

const COLUMNS: [&str; 5] = [
    "assumption",
    "cited in",
    "source",
    "test",
    "where it is false",
];

/// The citation of an assumption in a comment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Citation {
    file: String,
    line: usize,
    words: String,
}

/// The citations in a source of a crate that cites assumptions.
pub(crate) fn citations(file: &str, source: &str) -> Vec<Citation> {
    let mut citations = Vec::new();
    if !CITING.iter().any(|folder| file.starts_with(folder)) {
        return citations;
    }
    let lines: Vec<_> = source.lines().map(str::trim_start).enumerate().collect();
    for comment in lines.split(|(_, line)| !line.starts_with("//")) {
        let Some(&(first, _)) = comment.first() else {
            continue;
        };
        let text = words(comment.iter().map(|(_, line)| *line));
        for cited in text.split(MARK).skip(1) {
            let end = cited.find(". ").or_else(|| cited.find("; "));
            let cited = end.map_or(cited, |end| &cited[..end]);
            citations.push(Citation {
                file: file.to_owned(),
                line: first + 1,
                words: cited.trim_end_matches('.').to_owned(),
            });
        }
    }
    citations
}

/// Complains about rows without all columns, tests that do not exist, files named by a row that do not cite the
/// assumption, and citations without a row that names the file. A row may name a folder for its files.
pub(crate) fn complaints(
    text: &str,
    tests: &HashSet<String>,
    citations: &[Citation],
) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut named_citations = HashSet::new();
    let rows = match tables::rows(text, COLUMNS) {
        Ok(rows) => rows,
        Err(error) => return vec![format!("{FILE}:{error}")],
    };
    for row in rows {
        let mut complain = |message: String| {
            complaints.push(format!("{FILE}:{}: {message}", row.line));
        };
        let cells = row.cells;
        if cells.iter().any(|cell| cell.is_empty()) {
            complain("an empty cell".to_owned());
            continue;
        }
        let assumption = words([cells[0]]);
        let [files, named] =
            [cells[1], cells[3]].map(|cell| tables::quoted(cell).collect::<Vec<_>>());
        if files.is_empty() {
            complain("no file cites the assumption".to_owned());
        }
        if named.is_empty() {
            complain("no test".to_owned());
        }
        for file in files {
            let path = path(file);
            let mut citing = (0..citations.len()).filter(|&citation| {
                let citation = &citations[citation];
                citation.words == assumption && citation.file.starts_with(&path)
            });
            let mut cited = false;
            for citation in citing.by_ref() {
                cited = true;
                named_citations.insert(citation);
            }
            if !cited {
                complain(format!("`{file}` does not cite \"{assumption}\""));
            }
        }
        let absent = named.into_iter().filter(|test| !tests.contains(*test));
        absent.for_each(|test| complain(format!("no test `{test}`")));
    }
    for (index, citation) in citations.iter().enumerate() {
        if !named_citations.contains(&index) {
            let Citation { file, line, words } = citation;
            complaints.push(format!(
                "{file}:{line}: no row of {FILE} names this file for \"{words}\""
            ));
        }
    }
    complaints
}

/// The path of a file named by a row.
fn path(file: &str) -> String {
    if file.starts_with("src/") {
        format!("{FOLDER}{file}")
    } else {
        file.to_owned()
    }
}

/// The words of lines, without the marks of comments.
fn words<'a, L: IntoIterator<Item = &'a str>>(lines: L) -> String {
    let lines = lines.into_iter().map(|line| {
        let line = line.trim_start().trim_start_matches('/');
        line.trim_start_matches('!')
    });
    let words: Vec<_> = lines.flat_map(str::split_whitespace).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADING: &str =
        "| assumption | cited in | source | test | where it is false |\n|---|---|---|---|---|\n";
    const SOURCE: &str = "\
        fn f() {
            // SAFETY: as before. Assumption: the
            // device obeys; nothing else.
        }";

    fn check(row: &str, source: &str) -> Vec<String> {
        let tests = HashSet::from(["it_holds".to_owned()]);
        let citations = citations("verbs/src/x.rs", source);
        complaints(&format!("{HEADING}{row}\n"), &tests, &citations)
    }

    #[test]
    fn cited_assumption_with_a_test_passes() {
        for files in ["src/x.rs", "verbs/src/x.rs", "src/"] {
            let row = format!("| the device obeys | `{files}` | all | `it_holds` | refuses |");
            assert_eq!(check(&row, SOURCE), [""; 0]);
        }
    }

    #[test]
    fn citations_end_with_the_sentence_or_the_comment() {
        for source in [
            "// Assumption: the device obeys.",
            "/// Assumption: the device\n/// obeys\nfn f() {}",
            "// Assumption: the device obeys. It does; it does.",
        ] {
            let citations = citations("cm/src/x.rs", source);
            let words: Vec<_> = citations.iter().map(|found| &found.words[..]).collect();
            assert_eq!(words, ["the device obeys"], "{source}");
        }
        assert_eq!(citations("softnic/src/x.rs", SOURCE), []);
    }

    #[test]
    fn citation_without_a_row_is_reported() {
        let complaint = "verbs/src/x.rs:2: no row of verbs/ASSUMPTIONS.md names this file for \"the device obeys\"";
        assert_eq!(check("", SOURCE), [complaint]);
    }

    #[test]
    fn assumption_without_citation_or_test_is_reported() {
        let obeys = "// Assumption: the device obeys.";
        for (row, complaint) in [
            (
                "| the device disobeys | `src/x.rs` | all | `it_holds` | refuses |",
                "`src/x.rs` does not cite \"the device disobeys\"",
            ),
            (
                "| the device obeys | `src/y.rs` | all | `it_holds` | refuses |",
                "`src/y.rs` does not cite \"the device obeys\"",
            ),
            (
                "| the device obeys | `src/x.rs` | all | `it_fails` | refuses |",
                "no test `it_fails`",
            ),
            (
                "| the device obeys | `src/x.rs` | all | none | refuses |",
                "no test",
            ),
            (
                "| the device obeys | none | all | `it_holds` | refuses |",
                "no file cites the assumption",
            ),
            (
                "| the device obeys | `src/x.rs` | all | `it_holds` |",
                "not the columns `assumption | cited in | source | test | where it is false`",
            ),
            (
                "| the device obeys | `src/x.rs` | | `it_holds` | refuses |",
                "an empty cell",
            ),
        ] {
            let complaint = format!("{FILE}:3: {complaint}");
            let complaints = check(row, obeys);
            assert_eq!(complaints.first(), Some(&complaint), "{row}");
        }
    }
}
