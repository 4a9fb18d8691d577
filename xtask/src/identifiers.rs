//! Names in code: everyday words as identifiers, and names that two types of a crate have.

use std::collections::BTreeMap;

use crate::tidy::GENERATED;

/// Words that name nothing of RDMA, of networks or of Rust.
const EVERYDAY: [&str; 39] = [
    "came",
    "gone",
    "most",
    "place",
    "places",
    "nothing",
    "nowhere",
    "others",
    "own",
    "whole",
    "left",
    "told",
    "tell",
    "seen",
    "looks",
    "there",
    "wanted",
    "given",
    "known",
    "patience",
    "alone",
    "over",
    "kept",
    "taken",
    "meant",
    "held",
    "made",
    "asked",
    "due",
    "room",
    "turn",
    "few",
    "many",
    "less",
    "behind",
    "beside",
    "within",
    "apart",
    "elsewhere",
];

/// Maximum number of everyday words in 1,000 lines of a crate.
const MAX_EVERYDAY: usize = 3;

/// Maximum share of a crate's types with the name of another one of the crate, in percent.
const MAX_SHARED: usize = 9;

/// Minimum number of types of a crate for [`MAX_SHARED`].
const MIN_TYPES: usize = 20;

/// Folders of separate programs, which may name their types alike.
const PROGRAMS: [&str; 3] = ["examples", "xtask", "fuzz"];

/// Words before the name of a type.
const TYPE_WORDS: [&str; 4] = ["struct", "enum", "trait", "union"];

/// Counts over a crate's files.
#[derive(Default)]
struct Crate {
    lines: usize,
    everyday: BTreeMap<&'static str, usize>,
    types: BTreeMap<String, usize>,
}

/// The names of a workspace's crates, by the folder in the root.
#[derive(Default)]
pub(crate) struct Names(BTreeMap<String, Crate>);

impl Names {
    /// Adds a file, unless it is generated.
    pub(crate) fn add(&mut self, name: &str, text: &str) {
        let Some((folder, rest)) = name.split_once('/') else {
            return;
        };
        if GENERATED.contains(&name) {
            return;
        }
        let of_crate = self.0.entry(folder.to_owned()).or_default();
        let code = code(text);
        of_crate.lines += code.lines().filter(|line| !line.trim().is_empty()).count();
        for word in identifiers(&code) {
            if let Some(word) = EVERYDAY.iter().find(|everyday| **everyday == word) {
                *of_crate.everyday.entry(word).or_default() += 1;
            }
        }
        if rest.starts_with("tests") || rest.contains("/tests") {
            return;
        }
        let production = code.split("#[cfg(test)]\nmod").next().unwrap_or("");
        for name in production.lines().filter_map(type_name) {
            *of_crate.types.entry(name.to_owned()).or_default() += 1;
        }
    }

    /// Complains about crates above the maxima.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        for (folder, of_crate) in &self.0 {
            let Crate {
                lines,
                everyday,
                types,
            } = of_crate;
            let count: usize = everyday.values().sum();
            if count * 1000 > MAX_EVERYDAY * lines {
                complaints.push(format!(
                    "{folder}: {count} identifiers in {lines} lines are everyday words: use the field's nouns for {everyday:?}"
                ));
            }
            let total: usize = types.values().sum();
            let shared = types.iter().filter(|(_, count)| **count > 1);
            let count: usize = shared.clone().map(|(_, count)| count).sum();
            let is_exempt = total <= MIN_TYPES || PROGRAMS.contains(&folder.as_str());
            if !is_exempt && count * 100 > MAX_SHARED * total {
                let names: Vec<_> = shared.map(|(name, _)| name.as_str()).collect();
                complaints.push(format!(
                    "{folder}: {count} of {total} types have another one's name ({}): name their owners",
                    names.join(", ")
                ));
            }
        }
        complaints
    }
}

/// The name of the type declared by a line.
fn type_name(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let is_prefix = |word: &&str| word.starts_with("pub") || *word == "unsafe";
    let word = words.find(|word| !is_prefix(word))?;
    TYPE_WORDS.contains(&word).then_some(())?;
    let name = words.next()?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
    Some(&name[..end.unwrap_or(name.len())])
}

/// Identifiers that begin with a small letter, and keywords.
fn identifiers(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase()))
}

/// A text without its line comments and the contents of its strings.
fn code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['"', '/']) {
        let (before, found) = rest.split_at(at);
        code.push_str(before);
        rest = if found.starts_with("//") {
            &found[found.find('\n').unwrap_or(found.len())..]
        } else if found.starts_with('/') || before.ends_with('\'') {
            code.push_str(&found[..1]);
            &found[1..]
        } else {
            code.push_str("\"\"");
            &found[string_len(found)..]
        };
    }
    code.push_str(rest);
    code
}

/// Length of the string at the beginning of a text, with both quotation marks.
fn string_len(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The complaints about a crate with this text.
    fn complaints(folder: &str, text: &str) -> Vec<String> {
        let mut names = Names::default();
        names.add(&format!("{folder}/src/lib.rs"), text);
        names.complaints()
    }

    #[test]
    fn everyday_words_are_found_in_code_only() {
        assert_eq!(complaints("a", "let held = 1;\n").len(), 1);
        assert_eq!(
            complaints("a", "// held\nlet x = \"held \\\" held\"; // held\n").len(),
            0
        );
        assert_eq!(
            complaints("a", "let quote = '\"'; let held = 1 / 2;\n").len(),
            1
        );
        assert_eq!(complaints("a", "let held_bytes = upheld;\n").len(), 0);
        let rare = format!("let held = 1;\n{}", "x();\n".repeat(400));
        assert_eq!(complaints("a", &rare).len(), 0);
    }

    #[test]
    fn shared_type_names_are_found_in_libraries_only() {
        let mut text: String = (0..25).map(|i| format!("struct Type{i};\n")).collect();
        assert_eq!(complaints("a", &text).len(), 0);
        text.push_str("pub(crate) enum Type1 {}\nunsafe trait Type2: Send {}\n");
        assert_eq!(complaints("a", &text).len(), 1);
        assert_eq!(complaints("examples", &text).len(), 0);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{text}");
        assert_eq!(complaints("a", &tests).len(), 0);
    }
}
