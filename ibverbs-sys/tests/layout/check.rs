//! Compares layout and constants of the bindings with the C compiler's. Shared by both -sys crates.
//!
//! Rust's numbers are taken from the bindings' own layout assertions, checked by the compiler of the crate. syn lists
//! types and fields, so a type or field without an assertion is an error. bindgen asserts nothing about anonymous
//! fields; the caller supplies their offsets.

use crate::compiler::{Compiler, includes, succeed};
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::process::Command;
use syn::{Expr, ExprLit, ExprUnary, Fields, ImplItem, Item, Lit, Type, UnOp};

/// An expected equality: name, C expression, and Rust's number.
struct Fact {
    name: String,
    c: String,
    rust: i128,
}

/// A struct or union of the bindings.
struct Compound {
    keyword: &'static str,
    fields: Vec<(String, String)>,
}

/// Numbers of compared items.
#[derive(Debug)]
pub(crate) struct Count {
    pub(crate) types: usize,
    pub(crate) fields: usize,
    pub(crate) constants: usize,
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            types,
            fields,
            constants,
        } = self;
        write!(
            f,
            "{types} types, {fields} fields and {constants} constants"
        )
    }
}

/// Compares the bindings with the headers; the error lists the differences.
pub(crate) fn check(
    bindings: &str,
    unnamed: &[(&str, usize)],
    headers: &[&str],
    compiler: &Compiler,
) -> Result<Count, String> {
    let file = syn::parse_file(bindings).unwrap();
    let compounds = compounds(&file);
    let mut asserted = assertions(bindings);
    for (field, offset) in unnamed {
        asserted.insert(format!("Offset of field: {field}"), *offset as i128);
    }
    let (mut facts, mut types) = (Vec::new(), 0);
    let mut fields = 0;
    for (name, compound) in &compounds {
        // Opaque types have no layout.
        if compound.fields.iter().any(|(field, _)| is_opaque(field)) {
            continue;
        }
        types += 1;
        let location = location(&compounds, &asserted, name);
        if location.nameable {
            for (what, operator) in [("Size of", "sizeof"), ("Alignment of", "_Alignof")] {
                let key = format!("{what} {name}");
                let c = format!("{operator}({})", location.c_type);
                facts.push(Fact {
                    rust: proved(&asserted, &key),
                    name: key,
                    c,
                });
            }
        }
        for (field, _) in &compound.fields {
            fields += 1;
            let key = format!("Offset of field: {name}::{field}");
            let offset = proved(&asserted, &key);
            // An anonymous union cannot be named in C; its fields are checked as part of their own type.
            if !field.starts_with("__bindgen_anon") {
                let member = field.strip_suffix('_').unwrap_or(field);
                let c = format!("__builtin_offsetof({}, {member})", location.c_type);
                facts.push(Fact {
                    name: key,
                    c,
                    rust: location.offset + offset,
                });
            }
        }
    }
    let enums = facts.len();
    facts.extend(enums_and_constants(&file, &mut types));
    let constants = facts[enums..]
        .iter()
        .filter(|fact| !fact.c.starts_with("sizeof"))
        .count();
    compare(&facts, headers, compiler)?;
    Ok(Count {
        types,
        fields,
        constants,
    })
}

/// C expression for a type. An anonymous struct or union is named through its field.
struct Place {
    c_type: String,
    /// Offset of the type within `c_type`.
    offset: i128,
    nameable: bool,
}

fn location(
    compounds: &BTreeMap<String, Compound>,
    asserted: &BTreeMap<String, i128>,
    name: &str,
) -> Place {
    if !name.contains("__bindgen_ty_") {
        let c_type = format!("{} {name}", compounds[name].keyword);
        return Place {
            c_type,
            offset: 0,
            nameable: true,
        };
    }
    let has = |compound: &Compound| {
        let field = compound.fields.iter().find(|(_, of)| of == name);
        field.map(|(field, _)| field.clone())
    };
    let (parent, field) = compounds
        .iter()
        .find_map(|(parent, compound)| Some((parent, has(compound)?)))
        .unwrap_or_else(|| panic!("no field has the type {name}"));
    let outer = location(compounds, asserted, parent);
    if field.starts_with("__bindgen_anon") {
        let key = format!("Offset of field: {parent}::{field}");
        let offset = outer.offset + proved(asserted, &key);
        return Place {
            c_type: outer.c_type,
            offset,
            nameable: false,
        };
    }
    let c_type = format!("__typeof__((({} *)0)->{field})", outer.c_type);
    Place {
        c_type,
        offset: 0,
        nameable: true,
    }
}

/// Whether `field` is bindgen's placeholder in an opaque struct.
fn is_opaque(field: &str) -> bool {
    field == "_unused" || field == "_address"
}

fn proved(asserted: &BTreeMap<String, i128>, key: &str) -> i128 {
    *asserted
        .get(key)
        .unwrap_or_else(|| panic!("no assertion: {key}"))
}

fn compounds(file: &syn::File) -> BTreeMap<String, Compound> {
    let mut compounds = BTreeMap::new();
    for item in &file.items {
        let (name, keyword, fields) = match item {
            Item::Struct(item) => match &item.fields {
                Fields::Named(fields) => (&item.ident, "struct", fields),
                _ => continue,
            },
            Item::Union(item) => (&item.ident, "union", &item.fields),
            _ => continue,
        };
        let fields = fields
            .named
            .iter()
            .map(|field| {
                (
                    field.ident.as_ref().unwrap().to_string(),
                    type_name(&field.ty),
                )
            })
            .collect();
        compounds.insert(name.to_string(), Compound { keyword, fields });
    }
    compounds
}

fn type_name(ty: &Type) -> String {
    match ty {
        Type::Path(path) => path.path.segments.last().unwrap().ident.to_string(),
        _ => String::new(),
    }
}

/// Text and number of each assertion: `["Size of ibv_gid"][size_of::<ibv_gid>() - 16usize]`.
fn assertions(bindings: &str) -> BTreeMap<String, i128> {
    let mut asserted = BTreeMap::new();
    for part in bindings.split("[\"").skip(1) {
        let (name, rest) = part.split_once("\"]").unwrap();
        let number = rest
            .split_once("usize]")
            .unwrap()
            .0
            .rsplit_once(['-', ' '])
            .unwrap()
            .1;
        asserted.insert(name.to_owned(), number.trim().parse().unwrap());
    }
    asserted
}

/// Sizes of the enums, and values of all constants.
fn enums_and_constants(file: &syn::File, types: &mut usize) -> Vec<Fact> {
    let mut facts = Vec::new();
    for item in &file.items {
        match item {
            Item::Struct(item) if matches!(item.fields, Fields::Unnamed(_)) => {
                *types += 1;
                let name = item.ident.to_string();
                facts.push(Fact {
                    c: format!("sizeof(enum {name})"),
                    name,
                    rust: 4,
                });
            }
            Item::Impl(item) if item.trait_.is_none() => {
                for item in &item.items {
                    if let ImplItem::Const(item) = item {
                        let Expr::Call(call) = &item.expr else {
                            panic!("a value in a newtype")
                        };
                        facts.push(constant(&item.ident, &call.args[0]));
                    }
                }
            }
            Item::Const(item) if item.ident != "_" => {
                facts.push(constant(&item.ident, &item.expr));
            }
            _ => {}
        }
    }
    facts
}

fn constant(name: &syn::Ident, value: &Expr) -> Fact {
    Fact {
        name: name.to_string(),
        c: name.to_string(),
        rust: integer(value),
    }
}

fn integer(value: &Expr) -> i128 {
    match value {
        Expr::Lit(ExprLit {
            lit: Lit::Int(value),
            ..
        }) => value.base10_parse().unwrap(),
        Expr::Unary(ExprUnary {
            op: UnOp::Neg(_),
            expr,
            ..
        }) => -integer(expr),
        _ => panic!("not an integer"),
    }
}

fn compare(facts: &[Fact], headers: &[&str], compiler: &Compiler) -> Result<(), String> {
    let mut source = includes(headers);
    source += "#include <stdio.h>\n#define SHOW(x) ((x) < 0 ? printf(\"%lld\\n\", (long long)(x)) : \
               printf(\"%llu\\n\", (unsigned long long)(x)))\nint main(void)\n{\n";
    for fact in facts {
        writeln!(source, "\tSHOW({});", fact.c).unwrap();
    }
    source += "}\n";
    let printed = run(compiler, &source);
    assert_eq!(printed.lines().count(), facts.len());
    let differences: Vec<String> = facts
        .iter()
        .zip(printed.lines().map(|line| line.parse::<i128>().unwrap()))
        .filter(|(fact, c)| fact.rust != *c)
        .map(|(fact, c)| format!("{}: {} in Rust, {c} in C", fact.name, fact.rust))
        .collect();
    if differences.is_empty() {
        Ok(())
    } else {
        Err(differences.join("\n"))
    }
}

/// Compiles the program `source`, runs the program, and returns standard output.
pub(crate) fn run(compiler: &Compiler, source: &str) -> String {
    let program = compiler.file("program");
    compiler.compile(source, &["-o", program.to_str().unwrap()]);
    // A program of another architecture runs by the command of cargo's runner, if `CC` is a cross compiler.
    let runner = std::env::var("CC_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace();
    match words.next() {
        Some(runner) => succeed(Command::new(runner).args(words).arg(program)),
        None => succeed(&mut Command::new(program)),
    }
}
