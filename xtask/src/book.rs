//! `cargo xtask book`: the book as HTML with a search, by mdBook.
//!
//! Pages of several folders are copied below `target/book`, with their links made links between the copies. The index,
//! `book/README.md`, has the order. The programs of the pages are tests of the package `book`.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use soft_roce::process;

use crate::document_paths::joined;
use crate::tidy::files;
use crate::workspace::{self, Workspace};

/// Release of mdBook, of which `book/book.toml` has the settings.
const RELEASE: &str = "0.5.4";

/// The page with the list of all others.
const INDEX: &str = "book/README.md";

/// Pages after those of the index.
const APPENDICES: [(&str, &str); 2] = [("Design", "DESIGN.md"), ("Security", "SECURITY.md")];

/// Builds the book below `target/book/html`, and returns the path of its first page.
///
/// # Errors
///
/// mdBook cannot be installed, a page cannot be read, or a link of the HTML leads nowhere.
pub(crate) fn run(workspace: &Workspace) -> Result<PathBuf> {
    let mdbook = mdbook(workspace)?;
    let folder = workspace.target().join("book");
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let index = read(workspace.root(), INDEX)?;
    let chapters = chapters(&index)?;
    let mut pages: HashSet<&str> = chapters
        .iter()
        .filter_map(|chapter| chapter.page.as_deref())
        .collect();
    pages.insert(INDEX);
    let mut files: HashSet<String> = HashSet::new();
    for page in &pages {
        let linked = linked(page, &read(workspace.root(), page)?, &pages);
        files.extend(linked.files);
        write(
            &folder.join("src").join(in_book(page)),
            linked.text.as_bytes(),
        )?;
    }
    for file in &files {
        let bytes =
            fs::read(workspace.root().join(file)).with_context(|| format!("cannot read {file}"))?;
        write(&folder.join("src").join(in_book(file)), &bytes)?;
    }
    write(
        &folder.join("src/SUMMARY.md"),
        summary(&chapters).as_bytes(),
    )?;
    for file in ["book.toml", "book.css"] {
        let text = read(&workspace.root().join("book"), file)?;
        write(&folder.join(file), text.as_bytes())?;
    }
    process::run(Command::new(mdbook).arg("build").arg(&folder)).context("mdBook failed")?;
    let html = folder.join("html");
    let broken = broken_links(&html)?;
    ensure!(
        broken.is_empty(),
        "links lead nowhere:\n{}",
        broken.join("\n")
    );
    Ok(html.join("index.html"))
}

/// The program mdBook: of this release on the search path or below `target`, else installed there.
fn mdbook(workspace: &Workspace) -> Result<PathBuf> {
    let root = workspace.target().join("mdbook");
    let installed = root.join("bin/mdbook");
    for program in [Path::new("mdbook"), &installed] {
        let version = process::output(Command::new(program).arg("--version"));
        if version.is_ok_and(|version| version.trim() == format!("mdbook v{RELEASE}")) {
            return Ok(program.to_owned());
        }
    }
    println!(
        "Installing mdBook {RELEASE} below {}, for the first time.",
        root.display()
    );
    let mut cargo = workspace::cargo(workspace);
    cargo.args(["install", "mdbook", "--version", RELEASE, "--locked"]);
    cargo
        .args(["--no-default-features", "--features", "search", "--root"])
        .arg(&root);
    cargo.arg("--target-dir").arg(root.join("build"));
    process::run(&mut cargo).context("mdBook cannot be installed")?;
    fs::remove_dir_all(root.join("build")).context("cannot remove mdBook's build")?;
    Ok(installed)
}

/// A line of the book's contents.
#[derive(Debug, PartialEq, Eq)]
struct Chapter {
    title: String,
    /// The file in the workspace; none for a title above other chapters.
    page: Option<String>,
    is_nested: bool,
}

/// The chapters in the index's table. A row has a chapter, a nested one after `·`, or a title; further pages in a row are
/// nested.
fn chapters(index: &str) -> Result<Vec<Chapter>> {
    let rows = index
        .lines()
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1);
    let mut chapters = Vec::new();
    for row in rows.take_while(|line| line.starts_with('|')) {
        let first = row.split('|').nth(1).unwrap_or_default().trim();
        let mut is_nested = first.starts_with('·');
        if !first.contains("](") {
            chapters.push(Chapter {
                title: first.to_owned(),
                page: None,
                is_nested: false,
            });
        }
        for (_, title, target) in links(row) {
            chapters.push(Chapter {
                title: title.to_owned(),
                page: Some(resolved(INDEX, target)),
                is_nested,
            });
            is_nested = true;
        }
    }
    for (title, page) in APPENDICES {
        chapters.push(Chapter {
            title: title.to_owned(),
            page: Some(page.to_owned()),
            is_nested: false,
        });
    }
    ensure!(
        chapters.len() > APPENDICES.len(),
        "{INDEX} has no table of pages"
    );
    Ok(chapters)
}

/// mdBook's table of contents.
fn summary(chapters: &[Chapter]) -> String {
    let mut text = format!("# Summary\n\n[RDMA in Rust]({})\n\n", in_book(INDEX));
    for chapter in chapters {
        let indent = if chapter.is_nested { "  " } else { "" };
        let page = chapter.page.as_deref().map(in_book).unwrap_or_default();
        text += &format!("{indent}- [{}]({page})\n", chapter.title);
    }
    text
}

/// The file of a page or picture below mdBook's `src`: `book` is the root, and the first page of a folder its index.
fn in_book(file: &str) -> String {
    let file = file.strip_prefix("book/").unwrap_or(file);
    file.replace("README.md", "index.md")
}

/// The links of a line: offset of the bracket, label, target.
fn links(line: &str) -> Vec<(usize, &str, &str)> {
    let mut found = Vec::new();
    for (middle, _) in line.match_indices("](") {
        let begin = line[..middle].rfind('[');
        let end = line[middle..].find(')');
        if let (Some(begin), Some(end)) = (begin, end) {
            found.push((
                begin,
                &line[begin + 1..middle],
                &line[middle + 2..middle + end],
            ));
        }
    }
    found
}

/// The file in the workspace to which the target of a link leads from a page, without its anchor.
fn resolved(page: &str, target: &str) -> String {
    let file = target.split('#').next().unwrap_or_default();
    let folder = Path::new(page).parent().unwrap_or(Path::new(""));
    joined(folder, file).display().to_string()
}

/// A page with links of the book.
struct Linked {
    text: String,
    /// Pictures of the page, in the workspace.
    files: Vec<String>,
}

/// The text of a page with links between copies. A link to a file outside of the book becomes its label.
fn linked(page: &str, text: &str, pages: &HashSet<&str>) -> Linked {
    let mut linked = Linked {
        text: String::new(),
        files: Vec::new(),
    };
    let mut in_code = false;
    for line in text.lines() {
        in_code ^= line.trim_start().starts_with("```");
        let mut rest = 0;
        for (begin, label, target) in if in_code { Vec::new() } else { links(line) } {
            let file = resolved(page, target);
            let is_picture = line[..begin].ends_with('!');
            let end = begin + label.len() + target.len() + "[]()".len();
            let link = if target.starts_with("http") || target.starts_with('#') {
                line[begin..end].to_owned()
            } else if is_picture || pages.contains(file.as_str()) {
                let anchor = target.find('#').map_or("", |at| &target[at..]);
                if is_picture {
                    linked.files.push(file.clone());
                }
                format!(
                    "[{label}]({}{anchor})",
                    relative(&in_book(page), &in_book(&file))
                )
            } else {
                label.to_owned()
            };
            linked.text += &line[rest..begin];
            linked.text += &link;
            rest = end;
        }
        linked.text += &line[rest..];
        linked.text.push('\n');
    }
    linked
}

/// The path from a file of the book to another one.
fn relative(from: &str, to: &str) -> String {
    let up = from.matches('/').count();
    "../".repeat(up) + to
}

/// Links of the pages that lead to no file, or to no heading of one.
fn broken_links(html: &Path) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for page in files(html, ".html")? {
        let page = html.join(page);
        // A copy of all pages in one, with links to itself, and a page that a server sends for a wrong address.
        if page.ends_with("print.html") || page.ends_with("404.html") {
            continue;
        }
        let text =
            fs::read_to_string(&page).with_context(|| format!("cannot read {}", page.display()))?;
        for part in text.split("href=\"").skip(1) {
            let target = part.split('"').next().unwrap_or_default();
            if target.contains(':') || target.is_empty() {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = match file {
                "" => page.clone(),
                file => page.with_file_name("").join(file),
            };
            let is_there = match anchor {
                "" => file.exists(),
                anchor => fs::read_to_string(&file)
                    .is_ok_and(|text| text.contains(&format!("id=\"{anchor}\""))),
            };
            if !is_there {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    Ok(broken)
}

fn read(root: &Path, file: &str) -> Result<String> {
    fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let Some(folder) = path.parent() else {
        bail!("{} has no folder", path.display());
    };
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# Book\n\n| chapter | question |\n|---|---|\n| [Start](start.md) | How? |\n\
        | [Porting](../examples/PORTING.md) | Calls: [verbs](../verbs/FUNCTIONS.md) |\n| Cookbook | Calls |\n\
        | · [Reads](cookbook/reads.md) | memory |\n\nText with [a link](other.md).\n";

    #[test]
    fn contents_follow_the_table_of_the_index() {
        let chapters = chapters(TABLE).unwrap();
        assert_eq!(
            summary(&chapters),
            "# Summary\n\n[RDMA in Rust](index.md)\n\n- [Start](start.md)\n- [Porting](examples/PORTING.md)\n  \
             - [verbs](verbs/FUNCTIONS.md)\n- [Cookbook]()\n  - [Reads](cookbook/reads.md)\n- [Design](DESIGN.md)\n\
             - [Security](SECURITY.md)\n"
        );
        assert!(super::chapters("no table").is_err());
    }

    #[test]
    fn links_lead_to_copies_and_links_to_other_files_become_text() {
        let pages = [
            "book/README.md",
            "book/cookbook/reads.md",
            "softnic/GUIDE.md",
        ]
        .into();
        let text = "[All](../README.md), [guide](../../softnic/GUIDE.md#a-link) and [code](../../cm/src/lib.rs), \
            [web](https://x.y/z)\n![states](../pictures/s.svg)\n```rust\nlist[0](../README.md)\n```\n[below](#end)";
        let linked = linked("book/cookbook/reads.md", text, &pages);
        assert_eq!(
            linked.text,
            "[All](../index.md), [guide](../softnic/GUIDE.md#a-link) and code, [web](https://x.y/z)\n\
             ![states](../pictures/s.svg)\n```rust\nlist[0](../README.md)\n```\n[below](#end)\n"
        );
        assert_eq!(linked.files, ["book/pictures/s.svg"]);
    }

    #[test]
    fn link_without_a_file_or_a_heading_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let page =
            |name: &str, text: &str| write(&folder.path().join(name), text.as_bytes()).unwrap();
        page(
            "a.html",
            r##"<a href="b/c.html#heading">, <a href="#top">, <a href="https://x.y"> <h1 id="top">"##,
        );
        page("b/c.html", r#"<h1 id="heading"> <a href="../a.html">"#);
        assert_eq!(broken_links(folder.path()).unwrap(), [""; 0]);
        page("d.html", r#"<a href="b/c.html#missing"> <a href="e.html">"#);
        let broken = broken_links(folder.path()).unwrap();
        assert_eq!(broken.len(), 2, "{broken:?}");
        assert!(
            broken[0].ends_with("d.html: b/c.html#missing"),
            "{broken:?}"
        );
    }
}
