//! The pages: their links, and the completeness of their tables.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

use std::{
    fs,
    path::{Path, PathBuf},
};

const FAILURES: &str = include_str!("../when_it_fails.md");
const HINTS: &str = include_str!("../../verbs/src/hint/completion.rs");
const BUILD: &str = include_str!("../build.rs");
const INDEX: &str = include_str!("../README.md");

/// The Markdown files of the book's folder.
fn pages() -> Vec<PathBuf> {
    let book = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [book.to_owned(), book.join("cookbook")];
    let files = folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap());
    let paths = files.map(|file| file.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .collect()
}

/// The destinations of a page's links to files, with the anchor.
fn links(text: &str) -> Vec<&str> {
    let parts = text.split("](").skip(1);
    let ends = parts.map(|part| part.split(')').next().unwrap());
    ends.filter(|link| !link.starts_with("http")).collect()
}

#[test]
fn links_of_the_book_lead_to_files_and_headings() {
    let pages = pages();
    assert!(pages.len() >= 9, "{pages:?}");
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = page.parent().unwrap().join(file);
            assert!(target.exists(), "{}: {link}", page.display());
            if !anchor.is_empty() {
                let words = anchor.replace('-', " ");
                let headings = fs::read_to_string(&target).unwrap().to_lowercase();
                let is_there = headings.contains(&format!("# {words}\n"));
                assert!(is_there, "{}: {link}", page.display());
            }
        }
    }
}

#[test]
fn index_and_html_of_the_book_have_every_page() {
    for page in pages() {
        let book = Path::new(env!("CARGO_MANIFEST_DIR"));
        let name = page.strip_prefix(book).unwrap().to_str().unwrap();
        assert!(
            name == "README.md" || links(INDEX).contains(&name),
            "{name} is not in the index"
        );
        assert!(
            BUILD.contains(&format!("\"book/{name}\"")),
            "{name} has no module in the HTML"
        );
    }
}

#[test]
fn every_status_with_a_hint_is_in_the_chapter_on_failures() {
    let statuses = HINTS.split("WcStatus::").skip(1);
    let is_of_name = |c: char| c.is_ascii_uppercase() || c == '_';
    let names = statuses.map(|rest| rest.split(|c| !is_of_name(c)).next().unwrap());
    let names: Vec<&str> = names.filter(|name| name.ends_with("_ERR")).collect();
    assert!(names.len() >= 11, "{names:?}");
    for name in names {
        assert!(FAILURES.contains(&format!("`{name}`")), "{name}");
    }
}
