//! Functions declared by header files, parsed from the preprocessor's output. Shared by the -sys crates.

use crate::compiler::{Compiler, includes};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;

/// Function names of one header.
#[derive(Debug, Default)]
pub(crate) struct Declared {
    /// Functions of the library.
    pub(crate) external: BTreeSet<String>,
    /// Functions with a body in the header.
    pub(crate) inline: BTreeSet<String>,
    /// Macros with the name of a library function.
    pub(crate) hiding: BTreeSet<String>,
}

impl Declared {
    /// Reads `header`, included after `before`.
    pub(crate) fn read(compiler: &Compiler, before: &[&str], header: &str) -> Self {
        let source = includes(before) + &includes(&[header]);
        let preprocessed = compiler.compile(&source, &["-E", "-dD"]);
        let (code, macros) = of_header(&preprocessed, header);
        let mut declared = Self::default();
        for declaration in top_level(&code) {
            match function_name(&declaration.text) {
                Some(name) if declaration.has_body => declared.inline.insert(name),
                Some(name) => declared.external.insert(name),
                None => false,
            };
        }
        declared.hiding = macros.intersection(&declared.external).cloned().collect();
        declared
    }

    /// All function names, without duplicates.
    pub(crate) fn all(&self) -> BTreeSet<String> {
        self.external.union(&self.inline).cloned().collect()
    }
}

/// The code of `header` without other headers, and the names of its function-like macros.
fn of_header(preprocessed: &str, header: &str) -> (String, BTreeSet<String>) {
    let (mut code, mut macros, mut inside) = (String::new(), BTreeSet::new(), false);
    for line in preprocessed.lines() {
        if let Some(marker) = line.strip_prefix("# ") {
            inside = marker
                .split('"')
                .nth(1)
                .is_some_and(|path| Path::new(path).ends_with(header));
        } else if let Some(definition) = line.strip_prefix("#define ").filter(|_| inside) {
            macros.extend(definition.split_once('(').map(|(name, _)| name.to_owned()));
        } else if inside && !line.starts_with('#') {
            code.push_str(line);
            code.push('\n');
        }
    }
    (code, macros)
}

/// A top-level declaration.
#[derive(Default)]
struct Declaration {
    /// Text of the declaration, without the contents of braces.
    text: String,
    has_body: bool,
}

fn top_level(code: &str) -> Vec<Declaration> {
    let (mut declarations, mut current, mut depth) = (Vec::new(), Declaration::default(), 0);
    for character in code.chars() {
        match character {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                // A function definition ends with its body; a struct declaration continues to a semicolon.
                if depth == 0 && current.text.trim_end().ends_with(')') {
                    current.has_body = true;
                    declarations.push(std::mem::take(&mut current));
                }
            }
            ';' if depth == 0 => declarations.push(std::mem::take(&mut current)),
            _ if depth == 0 => current.text.push(character),
            _ => {}
        }
    }
    declarations
}

/// The identifier before the first parenthesis; `None` unless a function is declared.
fn function_name(declaration: &str) -> Option<String> {
    let mut text = declaration.trim().to_owned();
    while let Some((before, attribute)) = text.split_once("__attribute__") {
        text = format!("{before}{}", after_parentheses(attribute));
    }
    let (before, _) = text
        .split_once('(')
        .filter(|_| !text.starts_with("typedef"))?;
    let name = before
        .trim_end()
        .rsplit(|character: char| !is_identifier(character))
        .next()?;
    // `int (*callback)(void)` declares a variable.
    (!name.is_empty()).then(|| name.to_owned())
}

/// The text after the first pair of parentheses.
fn after_parentheses(text: &str) -> &str {
    let mut depth = 0;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 && character == ')' {
            return &text[at + 1..];
        }
    }
    ""
}

fn is_identifier(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// Prints the result for a header directly to standard error, which the test harness does not capture.
pub(crate) fn report(crate_name: &str, header: &str, declared: &Declared, missing: &[String]) {
    let Declared {
        external,
        inline,
        hiding,
    } = declared;
    writeln!(
        io::stderr().lock(),
        "{crate_name}: {header}: {} functions, {} static inlines, {} macros that hide a function; \
         {} missing",
        external.len(),
        inline.len(),
        hiding.len(),
        missing.len()
    )
    .unwrap();
}

/// The declared functions without an entry in `table` (resolved by the linker), except functions newer than the table
/// that are in the bindings and in the library.
pub(crate) fn missing(
    declared: &Declared,
    table: &[(&str, *const ())],
    bindings: &str,
) -> Vec<String> {
    let is_callable = |name: &String| {
        table
            .iter()
            .any(|(entry, address)| entry == name && !address.is_null())
            || declared.external.contains(name)
                && bindings.contains(&format!("pub fn {name}("))
                && is_in_a_library(name)
    };
    declared
        .all()
        .into_iter()
        .filter(|name| !is_callable(name))
        .collect()
}

fn is_in_a_library(name: &str) -> bool {
    let name = std::ffi::CString::new(name).unwrap();
    // SAFETY: the name ends with a NUL, and RTLD_DEFAULT needs no handle.
    !unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.is_null()
}
