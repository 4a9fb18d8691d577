//! Pages of the book for rustdoc: copies of the Markdown files, with links to files made links to modules.

use std::{env, fs, path::Path};

/// The pages, relative to the workspace, each with its module.
const PAGES: [(&str, &str); 18] = [
    ("book/README.md", "crate"),
    ("book/start.md", "crate::start"),
    ("softnic/GUIDE.md", "crate::test_your_protocol"),
    ("examples/kv_store/README.md", "crate::first_protocol"),
    ("examples/PORTING.md", "crate::porting_from_c"),
    (
        "book/cookbook/request_response.md",
        "crate::cookbook::request_response",
    ),
    (
        "book/cookbook/one_sided_reads.md",
        "crate::cookbook::one_sided_reads",
    ),
    (
        "book/cookbook/write_with_immediate.md",
        "crate::cookbook::write_with_immediate",
    ),
    ("book/cookbook/srq_server.md", "crate::cookbook::srq_server"),
    ("book/cookbook/data_plane.md", "crate::cookbook::data_plane"),
    ("book/cookbook/failover.md", "crate::cookbook::failover"),
    ("book/cookbook/striping.md", "crate::cookbook::striping"),
    ("book/cookbook/gpu_memory.md", "crate::cookbook::gpu_memory"),
    ("book/when_it_fails.md", "crate::when_it_fails"),
    ("book/check_your_program.md", "crate::check_your_program"),
    ("book/safety.md", "crate::safety"),
    ("DESIGN.md", "crate::design"),
    ("SECURITY.md", "crate::security"),
];

/// Files whose contents are in the documentation of other crates.
const ELSEWHERE: [(&str, &str); 3] = [
    ("cm/FUNCTIONS.md", "cm::functions"),
    ("cm/src/event_loop/mod.rs", "cm::event_loop"),
    ("verbs/FUNCTIONS.md", "verbs::functions"),
];

fn main() {
    let book = env::var("CARGO_MANIFEST_DIR").expect("cargo sets the variable");
    let out = env::var("OUT_DIR").expect("cargo sets the variable");
    let workspace = Path::new(&book).join("..");
    println!("cargo::rerun-if-changed=build.rs");
    for (page, module) in PAGES {
        let path = workspace.join(page);
        println!("cargo::rerun-if-changed={}", path.display());
        let text = fs::read_to_string(&path).expect("the page is text");
        let name = format!("{}.md", module.replace("::", "_"));
        fs::write(Path::new(&out).join(name), linked(page, &text)).expect("the folder is writable");
    }
}

/// The text of a page with links to modules. A link to any other file becomes its text, as a picture does.
fn linked(page: &str, text: &str) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let (target, after) = after.split_once(')').expect("a link ends");
        match module(page, target) {
            _ if target.starts_with("http") => result += &format!("{before}]({target})"),
            Some(module) => result += &format!("{before}]({module})"),
            None => {
                let (outside, label) = before.rsplit_once('[').expect("a link begins");
                match outside.strip_suffix('!') {
                    // A picture is for readers of the Markdown and of mdBook's HTML.
                    Some(outside) => result += &format!("{outside}*{label}*"),
                    None => result += &format!("{outside}{label}"),
                }
            }
        }
        rest = after;
    }
    result + rest
}

/// The module of a link's target, with the anchor.
fn module(page: &str, target: &str) -> Option<String> {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let mut folders: Vec<&str> = page.split('/').collect();
    folders.pop();
    for part in file.split('/') {
        if part == ".." {
            folders.pop();
        } else {
            folders.push(part);
        }
    }
    let path = folders.join("/");
    let mut pages = PAGES.iter().chain(&ELSEWHERE);
    let (_, module) = pages.find(|(file, _)| *file == path)?;
    let separator = if anchor.is_empty() { "" } else { "#" };
    Some(format!("{module}{separator}{anchor}"))
}
