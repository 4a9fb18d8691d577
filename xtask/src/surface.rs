//! The public names of the crate `verbs`: few in the root, one module for each, and no import that hides a name of
//! the standard library.

use std::collections::HashMap;

/// The root of `verbs`.
pub(crate) const ROOT: &str = "verbs/src/lib.rs";

/// Maximum number of names that the root of `verbs` re-exports, so that a reader takes them in at a glance.
const MAX_ROOT_NAMES: usize = 30;

/// The requests of `verbs::op`. `Send`, `Read` and `Write` hide traits; the others are written in the same way.
const REQUESTS: [&str; 13] = [
    "AtomicWrite",
    "CompareSwap",
    "FetchAdd",
    "Flush",
    "LocalInvalidate",
    "Read",
    "Send",
    "SendFrame",
    "SendFrameTso",
    "SendTo",
    "SendTso",
    "ToSrq",
    "Write",
];

/// The module `verbs::tokio`, whose types are the namesakes of types of other modules.
const NAMESAKES: &str = "tokio";

/// A name brought into scope by a `use` declaration, with its path.
#[derive(Debug, PartialEq, Eq)]
struct Import {
    line: usize,
    path: Vec<String>,
    public: bool,
}

impl Import {
    fn name(&self) -> &str {
        self.path.last().map_or("", String::as_str)
    }

    /// The module of the name.
    fn module(&self) -> &[String] {
        &self.path[..self.path.len().saturating_sub(1)]
    }

    /// Whether the name is a request of `verbs::op`, or all of them.
    fn is_request(&self, file: &str) -> bool {
        let [.., module] = self.module() else {
            return false;
        };
        let in_op = file.starts_with("verbs/src/op/");
        let from_op = module == "op" || (in_op && module == "super");
        from_op && (REQUESTS.contains(&self.name()) || (module == "op" && self.name() == "*"))
    }

    /// Whether the name is the transport `verbs::Rc`, or the import of a whole module with the transport.
    fn is_rc(&self) -> bool {
        let Some(first) = self.path.first() else {
            return false;
        };
        let is_std = ["std", "alloc", "core"].contains(&first.as_str());
        let all_of = |path: &[&str]| self.name() == "*" && self.module() == path;
        (self.name() == "Rc" && !is_std && self.path.len() > 1)
            || [&["verbs"][..], &["verbs", "qp"], &["crate", "qp"]]
                .into_iter()
                .any(all_of)
    }
}

/// Reports imports of requests and of the transport `Rc` in code, in examples of documentation and in documents.
pub(crate) fn hiding_imports(file: &str, text: &str) -> Vec<String> {
    let is_verbs = file.starts_with("verbs/src/");
    imports(text)
        .iter()
        .filter(|import| !(is_verbs && import.public))
        .filter_map(|import| {
            let (name, line) = (import.name(), import.line);
            let (path, write) = if import.is_request(file) {
                ("op", format!("op::{name}"))
            } else if import.is_rc() {
                ("verbs", "verbs::Rc".to_owned())
            } else {
                return None;
            };
            Some(format!(
                "{file}:{line}: import of `{name}` from `{path}` hides a name of `std` or reads like one: write `{write}`"
            ))
        })
        .collect()
}

/// Reports names in the root of `verbs` that are too many, defined there, or re-exported from a private module.
pub(crate) fn crowded_root(root: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let modules = public_modules(root);
    let names: Vec<_> = imports(root)
        .into_iter()
        .filter(|import| import.public)
        .collect();
    for import in &names {
        let module = import.path.first().map_or("", String::as_str);
        if !modules.contains(&module) || import.name() == "*" {
            complaints.push(format!(
                "{ROOT}:{}: `{}` is in no public module: re-export it there first",
                import.line,
                import.path.join("::")
            ));
        }
    }
    let defined = |line: &str| {
        line.starts_with("pub ") && !line.starts_with("pub use ") && !line.starts_with("pub mod ")
    };
    for (index, line) in root.lines().enumerate().filter(|(_, line)| defined(line)) {
        complaints.push(format!(
            "{ROOT}:{}: `{line}` belongs in a module",
            index + 1
        ));
    }
    if names.len() > MAX_ROOT_NAMES {
        complaints.push(format!(
            "{ROOT}: {} names in the root, more than {MAX_ROOT_NAMES}: leave rare ones in their modules",
            names.len()
        ));
    }
    complaints
}

/// Reports names of `verbs` with two public paths besides the root's. `read` returns a file below `verbs/src`, if there
/// is one.
pub(crate) fn names_of_two_modules(
    root: &str,
    read: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let mut of = HashMap::<String, &str>::new();
    let mut complaints = Vec::new();
    for module in public_modules(root) {
        if module == NAMESAKES {
            continue;
        }
        let Some(text) =
            read(&format!("{module}.rs")).or_else(|| read(&format!("{module}/mod.rs")))
        else {
            complaints.push(format!("{ROOT}: no file of the module `{module}`"));
            continue;
        };
        let reexports = imports(&text).into_iter().filter(|import| import.public);
        let reexports = reexports.map(|import| import.name().to_owned());
        for name in reexports.chain(text.lines().filter_map(public_item)) {
            if let Some(other) = of.insert(name.clone(), module) {
                complaints.push(format!(
                    "{ROOT}: `{name}` is public in the modules `{other}` and `{module}`"
                ));
            }
        }
    }
    complaints
}

/// The names of `pub mod NAME;` lines.
fn public_modules(root: &str) -> Vec<&str> {
    root.lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .collect()
}

/// The name of a public item at the start of the line. Items of macros are indented, and not found.
fn public_item(line: &str) -> Option<String> {
    const KINDS: [&str; 7] = [
        "fn ", "struct ", "enum ", "trait ", "type ", "union ", "const ",
    ];
    let item = line.strip_prefix("pub ")?;
    let item = item.strip_prefix("unsafe ").unwrap_or(item);
    let item = item.replacen("const fn ", "fn ", 1);
    let name = KINDS.iter().find_map(|kind| item.strip_prefix(kind))?;
    Some(identifier(name))
}

fn identifier(text: &str) -> String {
    let is_part = |c: &char| c.is_alphanumeric() || *c == '_';
    text.chars().take_while(is_part).collect()
}

/// The imports of a file: declarations at the start of a line, of a documentation comment or of a hidden line of an
/// example.
fn imports(text: &str) -> Vec<Import> {
    let mut imports = Vec::new();
    let lines: Vec<&str> = text.lines().map(code).collect();
    for (index, line) in lines.iter().enumerate() {
        let Some((public, start)) = declaration(line) else {
            continue;
        };
        let mut tree = String::new();
        for part in [start]
            .into_iter()
            .chain(lines[index + 1..].iter().copied())
        {
            let (part, ended) = part
                .split_once(';')
                .map_or((part, false), |(part, _)| (part, true));
            tree.push_str(part);
            tree.push(' ');
            if ended {
                let mut rest = tree.as_str();
                let mut paths = Vec::new();
                flatten(&mut rest, &[], &mut paths);
                imports.extend(paths.into_iter().map(|path| Import {
                    line: index + 1,
                    path,
                    public,
                }));
            }
            // A sentence that begins with "use" ends the search.
            let in_tree = |c: char| c.is_alphanumeric() || " _:{},*\t".contains(c);
            if ended || !part.chars().all(in_tree) {
                break;
            }
        }
    }
    imports
}

/// The line without the marks of a documentation comment and of a hidden line.
fn code(line: &str) -> &str {
    let line = line.trim_start();
    let doc = ["///", "//!"]
        .iter()
        .find_map(|mark| line.strip_prefix(mark));
    let line = doc.map_or(line, str::trim_start);
    line.strip_prefix("# ").unwrap_or(line).trim()
}

/// Whether a `use` declaration is public, and its tree.
fn declaration(line: &str) -> Option<(bool, &str)> {
    if let Some(tree) = line.strip_prefix("use ") {
        return Some((false, tree));
    }
    let rest = line.strip_prefix("pub")?;
    if let Some(tree) = rest.strip_prefix(" use ") {
        return Some((true, tree));
    }
    let (_, tree) = rest.strip_prefix('(')?.split_once(") use ")?;
    Some((false, tree))
}

/// Adds the paths of the tree at the start of `rest`, and leaves the text after the tree.
fn flatten(rest: &mut &str, prefix: &[String], paths: &mut Vec<Vec<String>>) {
    let mut path = prefix.to_vec();
    loop {
        *rest = rest.trim_start().trim_start_matches("::");
        if let Some(inner) = rest.strip_prefix('{') {
            *rest = inner.trim_start();
            while !rest.is_empty() && !rest.starts_with('}') {
                let before = rest.len();
                flatten(rest, &path, paths);
                *rest = rest.trim_start().trim_start_matches(',').trim_start();
                if rest.len() == before {
                    return;
                }
            }
            *rest = rest.strip_prefix('}').unwrap_or(rest);
            return;
        }
        let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '*';
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        if end == 0 {
            return;
        }
        path.push(rest[..end].to_owned());
        *rest = &rest[end..];
        if !rest.starts_with("::") {
            break;
        }
    }
    if let Some(alias) = rest.trim_start().strip_prefix("as ") {
        let end = alias.find([',', '}']).unwrap_or(alias.len());
        *rest = &alias[end..];
    }
    if path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    paths.push(path);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, text: &str) -> usize {
        hiding_imports(file, text).len()
    }

    #[test]
    fn imports_that_hide_std_names_are_reported() {
        for (count, text) in [
            (1, "use verbs::op::Send;\n"),
            (1, "    use verbs::{Buf, op::Read};\n"),
            (
                2,
                "use verbs::{\n    Buf,\n    op::{Send, SendOps, Write},\n};\n",
            ),
            (1, "use crate::op::FetchAdd;\n"),
            (1, "use verbs::op::*;\n"),
            (1, "use verbs::Rc;\n"),
            (1, "use verbs::{QueuePair, Rc, Rts};\n"),
            (1, "use verbs::qp::{self, Rc};\n"),
            (1, "pub use verbs::Rc;\n"),
            (1, "pub(crate) use crate::qp::Rc;\n"),
            (1, "use verbs::*;\n"),
            (1, "//! use verbs::{Completed, op::Send};\n"),
            (1, "/// # use verbs::{CompletionQueue, Rc};\n"),
            (1, "```rust\nuse verbs::op::Send;\n```\n"),
        ] {
            assert_eq!(found("examples/x.rs", text), count, "{text}");
        }
        assert_eq!(
            found("verbs/src/op/inline.rs", "use super::{Emit, Send};\n"),
            1
        );
        assert_eq!(
            hiding_imports("cm/src/a.rs", "\nuse verbs::op::Send;\n"),
            [
                "cm/src/a.rs:2: import of `Send` from `op` hides a name of `std` or reads like one: write `op::Send`"
            ]
        );
    }

    #[test]
    fn qualified_names_and_names_of_std_pass() {
        for text in [
            "use verbs::{op, op::SendOps};\n",
            "use verbs::op::{self, SendRequest};\n",
            "use std::{io::{Read, Write}, rc::Rc};\n",
            "use std::rc::Rc as Shared;\n",
            "use proto::op::Kind;\n",
            "use super::*;\n",
            "/// use the queue pair, whose\n/// transport is Rc;\n",
            "let send = op::Send::new(buf); // use verbs::op::Send;\n",
        ] {
            assert_eq!(found("examples/x.rs", text), 0, "{text}");
        }
        assert_eq!(
            found("verbs/src/lib.rs", "pub use qp::{QueuePair, Rc};\n"),
            0
        );
    }

    #[test]
    fn crowded_root_is_reported() {
        let names: Vec<_> = (0..MAX_ROOT_NAMES).map(|i| format!("N{i}")).collect();
        let full = format!("pub mod cq;\npub use cq::{{{}}};\n", names.join(", "));
        assert_eq!(crowded_root(&full), [""; 0]);
        let crowded = format!("{full}pub use cq::Another;\n");
        assert_eq!(
            crowded_root(&crowded),
            [
                "verbs/src/lib.rs: 31 names in the root, more than 30: leave rare ones in their modules"
            ]
        );
    }

    #[test]
    fn root_name_without_public_module_is_reported() {
        let complaints = |root: &str| crowded_root(root).len();
        assert_eq!(complaints("mod cq;\npub use cq::Poll;\n"), 1);
        assert_eq!(complaints("pub mod cq;\npub use cq::*;\n"), 1);
        assert_eq!(complaints("pub fn devices() {\n"), 1);
        assert_eq!(complaints("pub mod cq;\npub use cq::Poll;\n"), 0);
    }

    #[test]
    fn name_of_two_modules_is_reported() {
        let root = "pub mod cq;\npub mod qp;\npub mod tokio;\n";
        let read = |qp: &'static str| {
            move |file: &str| match file {
                "cq/mod.rs" => Some("pub use queue::{Poll, Wait};\npub struct Cq;\n".to_owned()),
                "qp.rs" => Some(qp.to_owned()),
                _ => None,
            }
        };
        assert_eq!(
            names_of_two_modules(root, read("pub struct Qp {\n")),
            [""; 0]
        );
        let twice = "verbs/src/lib.rs: `Poll` is public in the modules `cq` and `qp`";
        assert_eq!(
            names_of_two_modules(root, read("pub enum Poll {\n")),
            [twice]
        );
        assert_eq!(
            names_of_two_modules(root, read("pub use crate::cq::Poll;\n")),
            [twice]
        );
        assert_eq!(names_of_two_modules(root, |_| None).len(), 2);
    }

    #[test]
    fn public_items_are_found_by_name() {
        let name = |line: &str| public_item(line).unwrap_or_default();
        assert_eq!(name("pub struct Flow {"), "Flow");
        assert_eq!(name("pub unsafe trait Gather {"), "Gather");
        assert_eq!(
            name("pub fn scope<'env, F, R>(pd: &ProtectionDomain)"),
            "scope"
        );
        assert_eq!(name("pub const fn new() {"), "new");
        assert_eq!(name("pub const GRH_LEN: usize = 40;"), "GRH_LEN");
        assert_eq!(name("pub mod cq;"), "");
        assert_eq!(name("pub use cq::Poll;"), "");
        assert_eq!(name("    pub fn inner() {"), "");
    }
}
